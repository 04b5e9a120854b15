package db

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// waitingFlow is a flow with due work. Waiting counts it, no further than to Most.
type waitingFlow struct {
	Consumer    string
	ConsumerID  int16
	OrgID       uuid.UUID
	Destination uuid.UUID
	Interactive bool
	DueAt       time.Time
	Waiting     int
	Most        int
}

// leftover is what the last claim that had to look for flows has found and not
// taken. To look is half of the work of a claim, and under load the next one
// follows at once.
type leftover struct {
	mu    sync.Mutex
	flows []waitingFlow
	since time.Time
}

// leftoverTime is how long flows are claimed by without another look at who has
// due work.
const leftoverTime = 50 * time.Millisecond

// keep keeps flows, which their claims go on to take from.
func (l *leftover) keep(flows []waitingFlow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flows, l.since = flows, time.Now()
}

// enough hands out what was kept if it fills each of the wants, and forgets it
// otherwise. The caller keeps what it leaves of it.
func (l *leftover) enough(wants []bus.Want) []waitingFlow {
	l.mu.Lock()
	defer l.mu.Unlock()
	flows := l.flows
	if time.Since(l.since) > leftoverTime {
		flows = nil
	}
	waiting := make(map[string]int)
	for _, f := range flows {
		waiting[f.Consumer] += f.Waiting
	}
	for _, w := range wants {
		if waiting[w.Consumer] < roomOf(w) {
			l.flows = nil
			return nil
		}
	}
	return flows
}
