package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// claimBatch bounds what one claim asks of one consumer, so that a process that
// has just started does not lease more than it can begin.
const claimBatch = 1000

// leastPostponed is the shortest wait of what a handler postpones: it spends no
// attempt, so nothing else would end a loop.
const leastPostponed = time.Second

// unavailableWait is how long a delivery waits that our own database has failed.
const unavailableWait = 5 * time.Second

// Drainer claims due deliveries for a set of handlers, runs them and settles
// what they return. One Drainer serves all consumers of a process; each has its
// own slots, so that none waits for another, and in them no organization and no
// destination waits for the work of another that hangs; see Want.
type Drainer struct {
	Log      Log
	Handlers []Handler
	Poll     time.Duration   // the longest wait between two looks for due work
	Wake     <-chan struct{} // an early look; may be nil
	Emitted  <-chan struct{} // an early look that relays first; may be nil
	Grace    time.Duration   // how long a shutdown waits for work in hand
	Logger   *slog.Logger
}

// run is the state of one Run.
type run struct {
	*Drainer
	consumers []*consumerSlots
	byName    map[string]*consumerSlots
	freed     chan struct{}   // a slot became free after a claim had left something out
	results   chan Settlement // has room for a verdict from every slot, so that no handler waits for the settler
	handlers  sync.WaitGroup
	refused   sync.WaitGroup // verdicts that are written alone; see settle
	suspect   atomic.Bool    // a suspect is in hand
	inflight  inflight
}

// Run claims and handles until ctx ends, then waits up to the grace for the work
// in hand and returns nil. What is not finished by then is cancelled and due at
// once, for another process.
func (d *Drainer) Run(ctx context.Context) error {
	r := d.newRun()
	// Work in hand outlives ctx: a shutdown ends claiming first. What keeps and
	// settles that work outlives it in turn.
	work, stopWork := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWork()
	last, stopLast := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLast()
	var settler, keepers sync.WaitGroup
	settler.Go(func() { r.settleLoop(last) })
	keepers.Go(func() { r.heartbeat(last) })
	keepers.Go(func() { r.cutOff(ctx, work, stopWork) })

	r.claimLoop(ctx, work)
	r.handlers.Wait()
	close(r.results)
	giveUp := time.AfterFunc(settleGrace, stopLast)
	defer giveUp.Stop()
	settler.Wait()
	stopLast()
	stopWork()
	keepers.Wait()
	return nil
}

func (d *Drainer) newRun() *run {
	r := &run{
		Drainer: d,
		byName:  make(map[string]*consumerSlots, len(d.Handlers)),
		freed:   make(chan struct{}, 1),
	}
	room := 0
	for _, h := range d.Handlers {
		slots := newSlots(h)
		r.consumers = append(r.consumers, slots)
		r.byName[slots.consumer.Name] = slots
		room += slots.all()
	}
	r.results = make(chan Settlement, room)
	return r
}

// cutOff ends work when the grace has passed since the end of ctx.
func (r *run) cutOff(ctx, work context.Context, stopWork func()) {
	<-ctx.Done()
	grace := time.NewTimer(r.Grace)
	defer grace.Stop()
	select {
	case <-grace.C:
		stopWork()
	case <-work.Done():
	}
}

// claimLoop looks for due work when woken, when a slot becomes free while more
// is due, and at least every Poll. After failures it rests, ever longer and whoever
// wakes it. A claim that is under way when ctx ends is waited for: what it
// leased would be nobody's.
func (r *run) claimLoop(ctx, work context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	wake, emitted, freed := r.Wake, r.Emitted, (<-chan struct{})(r.freed)
	rest := Backoff{First: r.Poll}
	again := false
	for {
		relay := false
		select {
		case <-ctx.Done():
		case <-wake:
			again = false
		case <-emitted:
			again, relay = false, true
		case <-freed:
		case <-timer.C:
			wake, emitted, freed = r.Wake, r.Emitted, r.freed
		}
		if ctx.Err() != nil {
			return
		}
		select {
		case <-wake: // at the same time
			again = false
		default:
		}
		more, err := r.claimOnce(work, Claim{Again: again, Relay: relay})
		again = err == nil
		switch {
		case err != nil:
			r.Logger.ErrorContext(ctx, "claim deliveries", "error", err)
			wake, emitted, freed = nil, nil, nil
			timer.Reset(rest.Next())
		case more:
			rest.Reset()
			timer.Reset(0)
		default:
			rest.Reset()
			timer.Reset(r.Poll)
		}
	}
}

// claimOnce claims once for all consumers with free slots, starts what it got
// and reports whether it is worth asking once more at once.
func (r *run) claimOnce(work context.Context, c Claim) (bool, error) {
	wants := make([]Want, 0, len(r.consumers))
	for _, slots := range r.consumers {
		if w, ok := slots.want(); ok {
			wants = append(wants, w)
		}
	}
	if len(wants) == 0 && !c.Relay {
		return false, nil
	}
	c.Wants, c.Suspect = wants, !r.suspect.Load()
	claimed, err := r.Log.Claim(work, c)
	if err != nil {
		return false, err
	}
	got := make(map[string]granted, len(wants))
	for _, d := range claimed { // each copied: a slow one must not keep the payloads of the others
		got[d.Consumer] = got[d.Consumer].with(&d)
		r.start(work, &d)
	}
	more := false
	for _, w := range wants {
		if r.byName[w.Consumer].claimed(w, got[w.Consumer]) {
			more = true
		}
	}
	return more, nil
}

// start handles one claimed delivery on a goroutine of its own, in a slot that
// is free again when the delivery is settled.
func (r *run) start(work context.Context, d *Delivery) {
	slots, ok := r.byName[d.Consumer]
	if !ok {
		r.Logger.ErrorContext(work, "claimed for a consumer that was not asked for", "consumer", d.Consumer)
		return
	}
	slots.take(d)
	if d.Suspect {
		r.suspect.Store(true)
		r.Logger.InfoContext(work, "tried alone, its process died", Settlement{Delivery: d}.attrs()...)
	}
	d.hold = &hold{begin: func(ctx context.Context) error { return r.beginEffect(ctx, slots, d) }}
	ctx, cancel := context.WithCancelCause(work)
	r.inflight.add(d, cancel)
	r.handlers.Go(func() {
		defer cancel(nil)
		var e *ending // nil when the handler never returns here
		defer func() {
			if e == nil {
				e = &ending{Settlement: verdict(d, errGone)}
			}
			r.finish(ctx, work, slots, *e)
		}()
		e = new(r.handle(ctx, slots, d))
	})
}

func (r *run) beginEffect(ctx context.Context, slots *consumerSlots, d *Delivery) error {
	if slots.consumer.Effect != EffectOnce {
		return fmt.Errorf("consumer %q begins an effect and does not declare it to happen %s", d.Consumer, EffectOnce)
	}
	return r.Log.BeginEffect(ctx, d.Lease())
}

// ending is how an attempt has ended.
type ending struct {
	Settlement
	said    bool // by the handler itself, and not because it was interrupted
	notDone bool // the effect that had begun is known not to have happened
}

// handle runs the handler within its timeout and reads its verdict. A panic, in
// the handler or in the error it returned, is an error of this attempt.
func (r *run) handle(ctx context.Context, slots *consumerSlots, d *Delivery) (e ending) {
	ctx, cancel := context.WithTimeout(ctx, slots.consumer.Timeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			err := &panicError{value: v}
			e = ending{Settlement: verdict(d, err)}
			r.Logger.ErrorContext(ctx, "handler panicked", "consumer", d.Consumer, "event_id", d.Event.ID,
				"event_type", d.Event.Type, "error", err, "stack", string(debug.Stack()))
		}
	}()
	if slots.unknown(d) {
		return reconcile(ctx, slots.handler, d)
	}
	err := slots.handler.Handle(ctx, d)
	return ending{Settlement: verdict(d, err), said: said(ctx, err)}
}

// reconcile asks what has become of the effect that an earlier attempt began.
func reconcile(ctx context.Context, h Handler, d *Delivery) ending {
	reconciler, ok := as[Reconciler](h)
	if !ok {
		return ending{Settlement: verdict(d, Uncertain(errUnknown)), said: true}
	}
	found, err := reconciler.Reconcile(ctx, d)
	switch {
	case err == nil && found == EffectDone:
		return ending{Settlement: verdict(d, nil), said: true}
	case err == nil && found == EffectNotDone:
		s := Settlement{Delivery: d, Verdict: VerdictPostpone, Error: errNotDone.Error()} // handled next, which counts
		return ending{Settlement: s, said: true, notDone: true}
	case err == nil:
		return ending{Settlement: verdict(d, Uncertain(errUnknown)), said: true}
	}
	s := verdict(d, err)
	if s.Verdict == VerdictDead || s.Verdict == VerdictSkip {
		s.Verdict = VerdictUncertain
	}
	return ending{Settlement: s, said: said(ctx, err)}
}

// said reports whether err is the handler's own word on what has become of the
// effect, and not the echo of what interrupted it.
func said(ctx context.Context, err error) bool {
	echo := errors.Is(err, ErrUnavailable) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	switch {
	case err == nil:
		return true
	case steers(err):
		return ctx.Err() == nil || !echo
	default:
		return ctx.Err() == nil && !errors.Is(err, ErrUnavailable)
	}
}

// finish hands a verdict to the settler. An attempt whose effect has begun and
// whose handler has not said what became of it is uncertain. One that failed
// because it was cancelled has no verdict of its own: somebody else owns the
// delivery, or is to take it over now.
func (r *run) finish(ctx, work context.Context, slots *consumerSlots, e ending) {
	s, d := e.Settlement, e.Delivery
	s.Unknown = slots.unknown(d) && !e.notDone
	switch {
	case d.hold.settled.Load():
		r.Logger.DebugContext(ctx, "delivery settled with its effect", s.attrs()...)
		r.release(d)
		return
	case e.said:
	case d.hold.begun.Load():
		s.Verdict = VerdictUncertain
	case errors.Is(context.Cause(ctx), ErrLeaseLost):
		r.Logger.WarnContext(ctx, "attempt cancelled, the lease was lost", s.attrs()...)
		r.release(d)
		return
	case work.Err() != nil:
		r.Logger.WarnContext(ctx, "attempt cut off by the shutdown", s.attrs()...)
		s.Verdict, s.NotUntil, s.Error = VerdictPostpone, 0, errCutOff.Error()
	}
	r.results <- s
}

// release gives the slot of d back and forgets its lease.
func (r *run) release(d *Delivery) {
	r.inflight.remove(d)
	if d.Suspect {
		r.suspect.Store(false)
	}
	if r.byName[d.Consumer].give(d) || d.Suspect || d.Lane != 0 { // the next of its lane is due
		select {
		case r.freed <- struct{}{}:
		default:
		}
	}
}

// steers reports whether err says more than that the attempt has failed.
func steers(err error) bool {
	_, skip := errors.AsType[*SkipError](err)
	_, permanent := errors.AsType[*PermanentError](err)
	_, uncertain := errors.AsType[*UncertainError](err)
	_, retry := errors.AsType[*RetryAfterError](err)
	_, postpone := errors.AsType[*PostponeError](err)
	return skip || permanent || uncertain || retry || postpone
}

// verdict reads a handler's error.
func verdict(d *Delivery, err error) Settlement {
	s := Settlement{Delivery: d, Verdict: VerdictDone}
	if err == nil {
		return s
	}
	s.Error = fmt.Sprint(err)
	if errors.Is(err, ErrUnavailable) {
		s.Error = ErrUnavailable.Error() // the rest is of this installation, and tenants read it
	}
	s.Verdict = VerdictRetry
	if _, ok := errors.AsType[*UncertainError](err); ok {
		s.Verdict = VerdictUncertain
	} else if skip, ok := errors.AsType[*SkipError](err); ok {
		s.Verdict, s.Error = VerdictSkip, skip.Reason
	} else if _, ok := errors.AsType[*PermanentError](err); ok {
		s.Verdict = VerdictDead
	} else if later, ok := errors.AsType[*RetryAfterError](err); ok {
		s.NotUntil = later.After
	} else if later, ok := errors.AsType[*PostponeError](err); ok {
		s.Verdict, s.NotUntil = VerdictPostpone, max(later.After, leastPostponed)
	} else if errors.Is(err, ErrUnavailable) {
		s.Verdict, s.NotUntil = VerdictPostpone, unavailableWait
	}
	return s
}
