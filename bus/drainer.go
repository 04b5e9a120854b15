package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// claimBatch bounds what one claim asks of one consumer, so that a process that
// has just started does not lease more than it can begin.
const claimBatch = 500

// Drainer claims due deliveries for a set of handlers, runs them and settles
// what they return. One Drainer serves all consumers of a process; each has its
// own slots, so that none waits for another.
type Drainer struct {
	Log      Log
	Handlers []Handler
	Poll     time.Duration   // the longest wait between two looks for due work
	Wake     <-chan struct{} // an early look; may be nil
	Grace    time.Duration   // how long a shutdown waits for work in hand
	Logger   *slog.Logger
}

// run is the state of one Run.
type run struct {
	*Drainer
	lanes    []*consumerLane
	byName   map[string]*consumerLane
	freed    chan struct{}   // a slot became free after a claim had filled all
	results  chan Settlement // unbuffered work for the settler
	handlers sync.WaitGroup
	inflight inflight
}

// consumerLane is one consumer's handler and its slots.
type consumerLane struct {
	handler  Handler
	consumer Consumer
	mu       sync.Mutex
	busy     int
	hungry   bool // the last claim filled every slot, so more may be due
}

// Run claims and handles until ctx ends, then waits up to the grace for the work
// in hand and returns nil. What is not finished by then keeps its lease and is
// claimed again when that has run out.
func (d *Drainer) Run(ctx context.Context) error {
	r := &run{
		Drainer: d,
		byName:  make(map[string]*consumerLane, len(d.Handlers)),
		freed:   make(chan struct{}, 1),
		results: make(chan Settlement),
	}
	for _, h := range d.Handlers {
		lane := &consumerLane{handler: h, consumer: h.Consumer()}
		r.lanes = append(r.lanes, lane)
		r.byName[lane.consumer.Name] = lane
	}

	// Work in hand outlives ctx: a shutdown ends claiming first.
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	var settler sync.WaitGroup
	settler.Go(func() { r.settleLoop(work) })
	beat, stopBeat := context.WithCancel(context.WithoutCancel(ctx))
	var heart sync.WaitGroup
	heart.Go(func() { r.heartbeat(beat) })

	r.claimLoop(ctx, work)
	r.waitForHandlers(stopWork)
	stopWork()
	close(r.results)
	settler.Wait()
	stopBeat()
	heart.Wait()
	return nil
}

// claimLoop looks for due work when woken, when a slot becomes free while more
// is due, and at least every Poll.
func (r *run) claimLoop(ctx, work context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.Wake:
		case <-r.freed:
		case <-timer.C:
		}
		more, err := r.claimOnce(ctx, work)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			r.Logger.ErrorContext(ctx, "claim deliveries", "error", err)
			timer.Reset(r.Poll)
		case more:
			timer.Reset(0)
		default:
			timer.Reset(r.Poll)
		}
	}
}

// claimOnce claims once for all consumers with free slots, starts what it got
// and reports whether it is worth asking again at once.
func (r *run) claimOnce(ctx, work context.Context) (bool, error) {
	wants := make([]Want, 0, len(r.lanes))
	for _, lane := range r.lanes {
		if free := lane.free(); free > 0 {
			wants = append(wants, Want{Consumer: lane.consumer.Name, Limit: min(free, claimBatch)})
		}
	}
	if len(wants) == 0 {
		return false, nil
	}
	claimed, err := r.Log.Claim(ctx, wants)
	if err != nil {
		return false, err
	}
	got := make(map[string]int, len(wants))
	for i := range claimed {
		got[claimed[i].Consumer]++
		r.start(work, &claimed[i])
	}
	more := false
	for _, w := range wants {
		full := got[w.Consumer] == w.Limit
		if r.byName[w.Consumer].setHungry(full) {
			more = true
		}
	}
	return more, nil
}

// start handles one claimed delivery on a goroutine of its own, in a slot that
// is free again when the delivery is settled.
func (r *run) start(work context.Context, d *Delivery) {
	lane, ok := r.byName[d.Consumer]
	if !ok {
		r.Logger.ErrorContext(work, "claimed for a consumer that was not asked for", "consumer", d.Consumer)
		return
	}
	lane.take()
	ctx, cancel := context.WithCancelCause(work)
	r.inflight.add(d, cancel)
	r.handlers.Go(func() {
		defer cancel(nil)
		if d.Budgeted > d.MaxAttempts {
			// Its last attempt ended with its process.
			r.results <- verdict(d, Permanent(errDiedTrying))
			return
		}
		err := r.handle(ctx, lane, d)
		if cause := context.Cause(ctx); err != nil && (errors.Is(cause, ErrLeaseLost) || work.Err() != nil) {
			// Somebody else owns it, or the grace is over: its lease runs out.
			r.release(d)
			return
		}
		r.results <- verdict(d, err)
	})
}

// handle runs the handler within its timeout and turns a panic into an error.
func (r *run) handle(ctx context.Context, lane *consumerLane, d *Delivery) (err error) {
	ctx, cancel := context.WithTimeout(ctx, lane.consumer.Timeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{value: v}
			r.Logger.ErrorContext(ctx, "handler panicked", "consumer", d.Consumer, "event_id", d.Event.ID,
				"event_type", d.Event.Type, "error", err, "stack", string(debug.Stack()))
		}
	}()
	return lane.handler.Handle(ctx, d)
}

// release gives the slot of d back and forgets its lease.
func (r *run) release(d *Delivery) {
	r.inflight.remove(d)
	if r.byName[d.Consumer].give() {
		select {
		case r.freed <- struct{}{}:
		default:
		}
	}
}

// waitForHandlers waits for the work in hand: first politely, then cancelled.
func (r *run) waitForHandlers(stopWork func()) {
	done := make(chan struct{})
	go func() {
		r.handlers.Wait()
		close(done)
	}()
	grace := time.NewTimer(r.Grace)
	defer grace.Stop()
	select {
	case <-done:
	case <-grace.C:
		stopWork()
		<-done
	}
}

// verdict reads a handler's error.
func verdict(d *Delivery, err error) Settlement {
	s := Settlement{Delivery: d, Verdict: VerdictDone}
	if err == nil {
		return s
	}
	s.Error = fmt.Sprint(err)
	s.Verdict = VerdictRetry
	if skip, ok := errors.AsType[*SkipError](err); ok {
		s.Verdict, s.Error = VerdictSkip, skip.Reason
	} else if _, ok := errors.AsType[*PermanentError](err); ok {
		s.Verdict = VerdictDead
	} else if later, ok := errors.AsType[*RetryAfterError](err); ok {
		s.NotUntil = later.After
	}
	return s
}

func (l *consumerLane) free() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.consumer.Concurrency - l.busy
}

func (l *consumerLane) take() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy++
}

// give frees a slot and reports whether a claim is worth it.
func (l *consumerLane) give() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy--
	return l.hungry
}

// setHungry records whether more may be due and reports whether there are slots
// for it right now.
func (l *consumerLane) setHungry(full bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hungry = full
	return full && l.busy < l.consumer.Concurrency
}
