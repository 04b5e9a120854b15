package bus_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
)

// once is a consumer whose effect must not be repeated.
func once(name string, change ...func(*bus.Consumer)) bus.Consumer {
	return reader(name, append(change, func(c *bus.Consumer) { c.Effect = bus.EffectOnce; c.Timeout = 10 * time.Second })...)
}

// begun begins the effect and goes on with what follows.
func begun(t *testing.T, effects *atomic.Int64, then func(ctx context.Context) error) func(context.Context, *bus.Delivery) error {
	t.Helper()
	return func(ctx context.Context, d *bus.Delivery) error {
		if err := d.BeginEffect(ctx); err != nil {
			t.Errorf("BeginEffect() = %v", err)
		}
		effects.Add(1)
		return then(ctx)
	}
}

func TestInvariant9WhatEndsAfterItsEffectHasBegunIsRepeatedOnlyOnTheHandlersWord(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		then   func(context.Context) error
		status string
		text   string
	}{
		"done":                     {func(context.Context) error { return nil }, "done", ""},
		"a plain error":            {func(context.Context) error { return errRefused }, "pending", "refused"},
		"retry after":              {func(context.Context) error { return bus.RetryAfter(time.Hour, errRefused) }, "pending", "refused"},
		"permanent":                {func(context.Context) error { return bus.Permanent(errRefused) }, "dead", "refused"},
		"uncertain":                {func(context.Context) error { return bus.Uncertain(errRefused) }, "uncertain", "refused"},
		"wrapped uncertain":        {func(context.Context) error { return fmt.Errorf("send: %w", bus.Uncertain(errRefused)) }, "uncertain", "send: refused"},
		"a panic":                  {func(context.Context) error { panic("boom") }, "uncertain", "handler panicked: boom"},
		"the end of its goroutine": {func(context.Context) error { runtime.Goexit(); return nil }, "uncertain", "ended its goroutine"},
		"our own trouble":          {func(context.Context) error { return bus.ErrUnavailable }, "uncertain", "not available"},
		"a timeout":                {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, "uncertain", "deadline exceeded"},
		"a timeout in other words": {func(ctx context.Context) error { <-ctx.Done(); return errRefused }, "uncertain", "refused"},
		"a timeout and permanent of it": {
			func(ctx context.Context) error { <-ctx.Done(); return bus.Permanent(ctx.Err()) }, "uncertain", "deadline exceeded",
		},
		"a verdict after the timeout": {func(ctx context.Context) error { <-ctx.Done(); return bus.Permanent(errRefused) }, "dead", "refused"},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := once("sender")
			var effects atomic.Int64
			inBubble(t, func(r *rig) {
				event := r.log.Emit(happened, 1)[0]
				r.start()
				bustest.Advance(11 * time.Second)
				if got := r.log.State(event, c.Name); got.Status != tt.status || got.Attempts != 1 || !strings.Contains(got.LastError, tt.text) {
					t.Errorf("state = %+v, want %s with %q after 1 attempt", got, tt.status, tt.text)
				}
				bustest.Advance(24 * time.Hour)
				if n := effects.Load(); n != 1 && tt.status != "pending" {
					t.Errorf("%d effects within a day, want 1", n)
				}
			}, handler{c, begun(t, &effects, tt.then)})
		})
	}
}

func TestWhatEndsBeforeItsEffectHasBegunIsRetried(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(context.Context, *bus.Delivery) error{
		"a panic":                  func(context.Context, *bus.Delivery) error { panic("boom") },
		"the end of its goroutine": func(context.Context, *bus.Delivery) error { runtime.Goexit(); return nil },
		"a timeout":                untilCancelled,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := once("sender")
			inBubble(t, func(r *rig) {
				event := r.log.Emit(happened, 1)[0]
				r.start()
				bustest.Advance(11 * time.Second)
				if got := r.log.State(event, c.Name); got.Status != "pending" || got.Attempts != 1 {
					t.Errorf("state = %+v, want pending after 1 attempt", got)
				}
			}, handler{c, end})
		})
	}
}

func TestAShutdownLeavesABegunEffectUncertain(t *testing.T) {
	t.Parallel()
	c := once("sender")
	var effects atomic.Int64
	inBubble(t, func(r *rig) {
		r.drainer.Grace = time.Second
		event := r.log.Emit(happened, 1)[0]
		r.start()
		r.stop()
		bustest.Advance(time.Second)
		if r.running() {
			t.Fatal("Run has not returned when its grace was over")
		}
		if got := r.log.State(event, c.Name); got.Status != "uncertain" || got.Attempts != 1 {
			t.Errorf("state = %+v, want uncertain after 1 attempt", got)
		}
		r.wantLines("delivery is uncertain", 1)
	}, handler{c, begun(t, &effects, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })})
}

func TestABegunEffectWhoseLeaseIsLostIsTheNextOwners(t *testing.T) {
	t.Parallel()
	c := once("sender")
	var effects atomic.Int64
	inBubble(t, func(r *rig) {
		event := r.log.Emit(happened, 1)[0]
		r.start()
		r.log.Steal(event, c.Name)
		bustest.Advance(10 * time.Second)
		if got := r.log.State(event, c.Name); got.Status != "processing" {
			t.Errorf("state = %+v, want it in the thief's hands", got)
		}
		r.wantLines("the lease was lost", 1)
	}, handler{c, begun(t, &effects, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })})
}

func TestNoEffectBeginsWithoutTheLeaseOrForAConsumerThatRepeats(t *testing.T) {
	t.Parallel()
	if err := (&bus.Delivery{}).BeginEffect(t.Context()); !errors.Is(err, bus.ErrLeaseLost) {
		t.Errorf("BeginEffect() of what nobody holds = %v, want %v", err, bus.ErrLeaseLost)
	}
	robbed, repeating := once("robbed"), reader("repeating")
	var lost, refused error
	inBubble(t, func(r *rig) {
		event := r.log.Emit(happened, 1)[0]
		r.start()
		r.log.Steal(event, robbed.Name)
		bustest.Advance(5 * time.Second) // before the next heartbeat
		if !errors.Is(lost, bus.ErrLeaseLost) {
			t.Errorf("BeginEffect() under a lost lease = %v, want %v", lost, bus.ErrLeaseLost)
		}
		if got := r.log.State(event, robbed.Name); got.Status != "processing" {
			t.Errorf("state = %+v, want it in the thief's hands", got)
		}
		if refused == nil {
			t.Error("an effect was begun that the consumer declares to repeat")
		}
	}, handler{robbed, func(ctx context.Context, d *bus.Delivery) error {
		<-time.After(5 * time.Second)
		lost = d.BeginEffect(ctx)
		return lost
	}}, handler{repeating, func(ctx context.Context, d *bus.Delivery) error {
		refused = d.BeginEffect(ctx)
		return nil
	}})
}

// The answer of the database is lost: the handler must not go on, and what stands
// there is no effect.
func TestABeginningWhoseAnswerWasLostIsNoEffect(t *testing.T) {
	t.Parallel()
	c := once("sender")
	var effects atomic.Int64
	inBubble(t, func(r *rig) {
		r.log.Hooks.Begun = bustest.Times[bus.Lease](1, bus.ErrUnavailable)
		r.log.Emit(happened, 1)
		r.start()
		r.wantCount("pending", 1)
		bustest.Advance(time.Minute)
		r.wantCount("done", 1)
		if n := effects.Load(); n != 1 {
			t.Errorf("%d effects, want 1", n)
		}
	}, handler{c, func(ctx context.Context, d *bus.Delivery) error {
		if err := d.BeginEffect(ctx); err != nil {
			return err
		}
		effects.Add(1)
		return nil
	}})
}

// reconciling is a handler that can find out what has become of its effect.
type reconciling struct {
	handler
	reconcile func(ctx context.Context, d *bus.Delivery) (bus.Effected, error)
}

func (h reconciling) Reconcile(ctx context.Context, d *bus.Delivery) (bus.Effected, error) {
	return h.reconcile(ctx, d)
}

// wrapped is a handler around another one.
type wrapped struct{ bus.Handler }

func (w wrapped) Unwrap() bus.Handler { return w.Handler }

func TestInvariant9ACrashAfterTheBeginningIsReconciledOrLeftToAPerson(t *testing.T) {
	t.Parallel()
	answer := func(found bus.Effected, err error) func(context.Context, *bus.Delivery) (bus.Effected, error) {
		return func(context.Context, *bus.Delivery) (bus.Effected, error) { return found, err }
	}
	cases := map[string]struct {
		reconcile func(context.Context, *bus.Delivery) (bus.Effected, error) // nil when the handler cannot
		want      string
		attempts  int
		effects   int64
	}{
		"nobody can tell":                      {nil, "uncertain", 1, 0},
		"it is unknown":                        {answer(bus.EffectUnknown, nil), "uncertain", 1, 0},
		"it is done":                           {answer(bus.EffectDone, nil), "done", 1, 0},
		"it is not done":                       {answer(bus.EffectNotDone, nil), "done", 1, 1},
		"asking fails, to the last attempt":    {answer(bus.EffectNotDone, errRefused), "uncertain", 5, 0},
		"asking will never work":               {answer(bus.EffectNotDone, bus.Permanent(errRefused)), "uncertain", 1, 0},
		"asking is pointless":                  {answer(bus.EffectDone, bus.Skip("gone")), "uncertain", 1, 0},
		"asking is uncertain":                  {answer(bus.EffectDone, bus.Uncertain(errRefused)), "uncertain", 1, 0},
		"asking waits for our own database":    {answer(bus.EffectDone, bus.ErrUnavailable), "pending", 0, 0},
		"asking panics, to the last attempt":   {func(context.Context, *bus.Delivery) (bus.Effected, error) { panic("boom") }, "uncertain", 5, 0},
		"asking hangs, to the last attempt":    {func(ctx context.Context, _ *bus.Delivery) (bus.Effected, error) { <-ctx.Done(); return 0, ctx.Err() }, "uncertain", 5, 0},
		"asking exits, to the last attempt":    {func(context.Context, *bus.Delivery) (bus.Effected, error) { runtime.Goexit(); return 0, nil }, "uncertain", 5, 0},
		"asking is told to come again, always": {answer(bus.EffectUnknown, bus.RetryAfter(time.Second, errRefused)), "uncertain", 5, 0},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := once("sender")
			var effects atomic.Int64
			h := handler{c, begun(t, &effects, func(context.Context) error { return nil })}
			inBubble(t, func(r *rig) {
				r.drainer.Handlers = []bus.Handler{h}
				if tt.reconcile != nil {
					r.drainer.Handlers = []bus.Handler{wrapped{reconciling{h, tt.reconcile}}}
				}
				event := r.log.Emit(happened, 1)[0]
				claimed, err := r.log.Claim(t.Context(), bus.Claim{Wants: []bus.Want{{Consumer: c.Name, Limit: 1}}})
				if err != nil || len(claimed) != 1 {
					t.Fatalf("Claim() = %d deliveries, %v", len(claimed), err)
				}
				if err := r.log.BeginEffect(t.Context(), claimed[0].Lease()); err != nil { // and then it dies
					t.Fatal(err)
				}
				r.start()
				bustest.Advance(time.Hour)
				if got := r.log.State(event, c.Name); got.Status != tt.want || got.Attempts != tt.attempts {
					t.Errorf("state = %+v, want %s after %d attempts", got, tt.want, tt.attempts)
				}
				if n := effects.Load(); n != tt.effects {
					t.Errorf("%d effects after the crash, want %d", n, tt.effects)
				}
			}, h)
		})
	}
}

func TestAShutdownWhileAskingLeavesTheEffectUnknown(t *testing.T) {
	t.Parallel()
	c := once("sender")
	h := handler{c, func(context.Context, *bus.Delivery) error { t.Error("the effect was repeated"); return nil }}
	inBubble(t, func(r *rig) {
		r.drainer.Handlers = []bus.Handler{reconciling{h, func(ctx context.Context, _ *bus.Delivery) (bus.Effected, error) {
			<-ctx.Done()
			return bus.EffectUnknown, ctx.Err()
		}}}
		r.drainer.Grace = time.Second
		r.log.Emit(happened, 1)
		want := bus.Claim{Wants: []bus.Want{{Consumer: c.Name, Limit: 1}}, Suspect: true}
		claimed, err := r.log.Claim(t.Context(), want)
		if err != nil || len(claimed) != 1 || r.log.BeginEffect(t.Context(), claimed[0].Lease()) != nil {
			t.Fatalf("Claim() = %d deliveries, %v", len(claimed), err)
		}
		r.start()
		bustest.Advance(31 * time.Second)
		r.stop()
		bustest.Advance(time.Second)
		if claimed, err = r.log.Claim(t.Context(), want); err != nil || len(claimed) != 1 || !claimed[0].Unknown {
			t.Errorf("Claim() = %+v, %v after the shutdown, want it at once and still unknown", claimed, err)
		}
	}, h)
}

// settling is a handler that settles its deliveries itself.
type settling struct{ handler }

func (settling) SettlesItself() {}

func TestWhatIsSettledWithItsEffectIsNotSettledAgainWhateverTheHandlerReturns(t *testing.T) {
	t.Parallel()
	c := reader("local", func(c *bus.Consumer) { c.Effect = bus.EffectLocal })
	h := handler{c, func(_ context.Context, d *bus.Delivery) error {
		d.MarkSettled()
		if d.Seq%2 == 0 {
			panic("too late")
		}
		return bus.Permanent(errRefused)
	}}
	inBubble(t, func(r *rig) {
		r.drainer.Handlers = []bus.Handler{settling{h}}
		r.log.Hooks.Settle = func(context.Context, []bus.Settlement) error {
			t.Error("a verdict was written")
			return nil
		}
		r.log.Emit(happened, 2)
		r.start()
		bustest.Advance(20 * time.Second) // two slots' worth, one after the other
		r.wantCount("processing", 2)
	}, h)
}
