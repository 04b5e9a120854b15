package db

import (
	"context"
	"sync"

	"github.com/google/uuid"
)

// turns lets the callers of each organization take turns within this process,
// before they hold a connection: who waits for a lock in Postgres holds one, and
// an organization that waits long would leave none to the others.
type turns struct {
	mu     sync.Mutex
	queues map[uuid.UUID]*queue
}

// queue is one organization's turn and how many callers want it.
type queue struct {
	turn  chan struct{} // holds one token
	wants int
}

// take waits for the organization's turn and returns what ends it.
func (t *turns) take(ctx context.Context, org uuid.UUID) (done func(), err error) {
	q := t.enter(org)
	select {
	case <-q.turn:
		return func() {
			q.turn <- struct{}{}
			t.leave(org)
		}, nil
	case <-ctx.Done():
		t.leave(org)
		return nil, ctx.Err()
	}
}

func (t *turns) enter(org uuid.UUID) *queue {
	t.mu.Lock()
	defer t.mu.Unlock()
	q, ok := t.queues[org]
	if !ok {
		if t.queues == nil {
			t.queues = make(map[uuid.UUID]*queue)
		}
		q = &queue{turn: make(chan struct{}, 1)}
		q.turn <- struct{}{}
		t.queues[org] = q
	}
	q.wants++
	return q
}

// leave forgets the queue of an organization that nobody waits for.
func (t *turns) leave(org uuid.UUID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.queues[org]
	if q.wants--; q.wants == 0 {
		delete(t.queues, org)
	}
}
