package bustest

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// State is what has become of a delivery.
type State struct {
	Status    string // pending, processing, done, dead, uncertain or skipped
	Attempts  int
	LastError string
}

// State returns what has become of an event for a consumer; the zero State when
// the event is not for it.
func (l *Log) State(event uuid.UUID, consumer string) State {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.find(event, consumer); r != nil {
		return r.state()
	}
	return State{}
}

// Count returns how many deliveries have a status.
func (l *Log) Count(status string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, r := range l.rows {
		if r.state().Status == status {
			n++
		}
	}
	return n
}

// Steal lets another process claim a delivery, as it can when the lease has run
// out.
func (l *Log) Steal(event uuid.UUID, consumer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token++
	l.grant(l.find(event, consumer))
}

// Elapse makes everything as though d had passed.
func (l *Log) Elapse(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.elapsed += d
}

// NewOrg returns an organization of its own.
func (l *Log) NewOrg() uuid.UUID { return uuid.New() }

// MakeInteractive makes the deliveries of events interactive.
func (l *Log) MakeInteractive(events ...uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.rows {
		r.interactive = r.interactive || slices.Contains(events, r.event.ID)
	}
}

// Suspend makes an organization's deliveries wait.
func (l *Log) Suspend(org uuid.UUID) { l.pause(org) }

// Disable makes the deliveries for a destination of an organization wait.
func (l *Log) Disable(_, destination uuid.UUID) { l.pause(destination) }

func (l *Log) pause(id uuid.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused[id] = true
}

func (l *Log) find(event uuid.UUID, consumer string) *row {
	for _, r := range l.rows {
		if r.event.ID == event && r.consumer.Name == consumer {
			return r
		}
	}
	return nil
}

func (r *row) state() State {
	status := "pending"
	switch {
	case r.outcome != "":
		status = string(r.outcome)
	case r.leased:
		status = "processing"
	}
	return State{Status: status, Attempts: r.attempts, LastError: r.lastError}
}
