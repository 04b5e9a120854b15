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

// keep keeps flows that were found at that time.
func (l *leftover) keep(flows []waitingFlow, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.flows, l.since = flows, since
}

// take hands out what was kept if it fills each of the wants, and forgets it: who
// takes it keeps what is left of it then.
func (l *leftover) take(wants []bus.Want) ([]waitingFlow, time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	flows := l.flows
	l.flows = nil
	if time.Since(l.since) > leftoverTime {
		return nil, l.since
	}
	waiting := make(map[string]int)
	for _, f := range flows {
		waiting[f.Consumer] += f.Waiting
	}
	for _, w := range wants {
		if waiting[w.Consumer] < roomOf(w) {
			return nil, l.since
		}
	}
	return flows, l.since
}
