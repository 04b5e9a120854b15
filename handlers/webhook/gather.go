package webhook

import (
	"context"
	"sync"
)

// gatherer answers those who ask while an earlier question is under way with one
// question for all of them. Nobody waits for others to come: who asks alone is
// answered alone.
type gatherer[Q, A any] struct {
	ask  func(context.Context, []Q) ([]A, error) // answers in the order of the questions
	most int                                     // questions asked at once
	busy chan struct{}                           // holds a token while one is under way

	mu   sync.Mutex
	next *gathering[Q, A] // takes questions; may be nil
}

// gathering is the questions of several callers.
type gathering[Q, A any] struct {
	questions []Q
	callers   int // who still wait
	cancel    context.CancelFunc
	done      chan struct{}
	answers   []A
	err       error
}

func newGatherer[Q, A any](most int, ask func(context.Context, []Q) ([]A, error)) *gatherer[Q, A] {
	return &gatherer[Q, A]{ask: ask, most: most, busy: make(chan struct{}, 1)}
}

// do returns the answer to q. A caller whose context ends does not end the question
// for the others; the last of them does.
func (g *gatherer[Q, A]) do(ctx context.Context, q Q) (a A, err error) {
	b, i := g.join(ctx, q)
	select {
	case <-b.done:
	case <-ctx.Done():
		if g.leave(b) {
			<-b.done // ends soon now, and nobody else waits for its goroutine
		}
		return a, ctx.Err()
	}
	if b.err != nil {
		return a, b.err
	}
	return b.answers[i], nil
}

// join adds q to the questions that are asked next.
func (g *gatherer[Q, A]) join(ctx context.Context, q Q) (b *gathering[Q, A], i int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if b = g.next; b == nil {
		b = &gathering[Q, A]{done: make(chan struct{})}
		asking, cancel := context.WithCancel(context.WithoutCancel(ctx))
		b.cancel, g.next = cancel, b
		go g.run(asking, b)
	}
	b.questions, b.callers = append(b.questions, q), b.callers+1
	if len(b.questions) == g.most {
		g.next = nil
	}
	return b, len(b.questions) - 1
}

// leave reports whether the last caller has left.
func (g *gatherer[Q, A]) leave(b *gathering[Q, A]) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if b.callers--; b.callers > 0 {
		return false
	}
	if g.next == b {
		g.next = nil // who comes now must not join what has ended
	}
	b.cancel()
	return true
}

// run asks when the question before has been answered.
func (g *gatherer[Q, A]) run(ctx context.Context, b *gathering[Q, A]) {
	defer b.cancel()
	defer close(b.done)
	g.busy <- struct{}{}
	defer func() { <-g.busy }()
	g.mu.Lock()
	if g.next == b {
		g.next = nil
	}
	g.mu.Unlock()
	b.answers, b.err = g.ask(ctx, b.questions)
}
