package app

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/web"
)

// registration is whether the database knows the handlers of this process. Until
// it does nothing is relayed or handled here: an event that is relayed before its
// reader is known is never that reader's.
type registration struct {
	done chan struct{} // closed when it does

	mu   sync.Mutex
	said error // why it does not; nil when it does
}

func newRegistration() *registration { return &registration{done: make(chan struct{})} }

// check is nil when the handlers are registered.
func (r *registration) check(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.said
}

// note keeps what the last try has come to and reports whether that is new.
func (r *registration) note(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.said = nil
		close(r.done)
		return true
	}
	was := r.said
	r.said = err
	return was == nil || was.Error() != err.Error()
}

// register makes one try to tell the database who reads what, and reports whether
// another one can do better.
func (s *server) register(ctx context.Context) (again bool) {
	again, err := s.tryRegister(ctx)
	if ctx.Err() != nil {
		return false
	}
	if s.registered.note(err) && err != nil {
		s.logger.ErrorContext(ctx, "register handlers", "error", err)
	}
	return again
}

func (s *server) tryRegister(ctx context.Context) (again bool, err error) {
	if err := bus.CheckHandlers(s.handlers); err != nil {
		return false, web.ReasonError(err.Error())
	}
	consumers := make([]bus.Consumer, len(s.handlers))
	for i, h := range s.handlers {
		consumers[i] = h.Consumer()
	}
	if err := s.store.RegisterConsumers(ctx, consumers); err != nil {
		words := cmp.Or(db.Reason(err), "the database refuses them")
		return true, fmt.Errorf("%w: %w", web.ReasonError(words), err)
	}
	return false, nil
}

// keepRegistering tries until the handlers are registered or nothing can change
// that any more, and then waits for the end of ctx.
func (s *server) keepRegistering(ctx context.Context) error {
	rest := bus.Backoff{First: time.Second}
	for again := s.registered.check(ctx) != nil; again && pause(ctx, rest.Next()); {
		again = s.register(ctx)
	}
	<-ctx.Done()
	return nil
}

// whenRegistered is a loop that begins when the handlers are registered.
func (s *server) whenRegistered(run func(ctx context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-s.registered.done:
			return run(ctx)
		}
	}
}

// pause waits and reports whether ctx goes on.
func pause(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
