package bus_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
)

// counted counts the calls of a handler.
func counted(calls *atomic.Int64, handle func(context.Context, *bus.Delivery) error) func(context.Context, *bus.Delivery) error {
	return func(ctx context.Context, d *bus.Delivery) error {
		calls.Add(1)
		return handle(ctx, d)
	}
}

func TestAVerdictIsWrittenHoweverOftenThatFailsAndNothingIsHandledTwice(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		fault error
		times int
		wait  time.Duration // at most until it is written, at least half of it; longer than any lease
	}{
		"the database is away":           {bus.ErrUnavailable, 20, (1 + 2 + 4 + 17*5) * time.Second},
		"the database refuses the batch": {errRefused, 6, (1 + 2 + 4 + 8 + 16 + 30) * time.Second},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			inBubble(t, func(r *rig) {
				r.log.Hooks.Settle = bustest.Times[[]bus.Settlement](tt.times, tt.fault)
				r.log.Emit(happened, 1)
				r.start()
				bustest.Advance(tt.wait/2 - time.Millisecond)
				r.wantCount("processing", 1)
				bustest.Advance(tt.wait/2 + time.Millisecond)
				r.wantLines("settle deliveries", tt.times)
				r.wantCount("done", 1)
				bustest.Advance(time.Hour)
				if n := calls.Load(); n != 1 {
					t.Errorf("%d calls of the handler, want 1", n)
				}
			}, handler{reader("any", concurrency(3)), counted(&calls, succeed)})
		})
	}
}

func TestASettlementWhoseAnswerWasLostIsNotHandledTwice(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	inBubble(t, func(r *rig) {
		r.log.Hooks.Settled = bustest.Times[[]bus.Settlement](2, bus.ErrUnavailable)
		r.log.Emit(happened, 1)
		r.start()
		r.wantCount("done", 1)
		bustest.Advance(time.Hour)
		r.wantCount("done", 1)
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls of the handler, want 1", n)
		}
		r.log.Emit(happened, 1) // its slot is free
		bustest.Advance(time.Second)
		r.wantCount("done", 2)
	}, handler{reader("any"), counted(&calls, succeed)})
}

func TestOneVerdictThatTheDatabaseRefusesKeepsNoOther(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	slow := after(time.Second) // verdicts of one instant make a batch
	inBubble(t, func(r *rig) {
		events := r.log.Emit(happened, 200)
		poison := events[77]
		r.log.Hooks.Settle = func(_ context.Context, batch []bus.Settlement) error {
			if slices.ContainsFunc(batch, func(s bus.Settlement) bool { return s.Delivery.Event.ID == poison }) && r.at() < time.Hour {
				return errRefused
			}
			return nil
		}
		r.start()
		bustest.Advance(20 * time.Second)
		r.wantCount("done", 2*199)
		r.wantCount("processing", 2)
		bustest.Advance(time.Hour + time.Minute)
		r.wantCount("done", 2*200)
		if n := calls.Load(); n != 2*200 {
			t.Errorf("%d calls of the handlers, want %d", n, 2*200)
		}
	}, handler{reader("one", concurrency(100)), counted(&calls, slow)}, handler{reader("other", concurrency(100)), counted(&calls, slow)})
}

func TestADeliveryThatDiesOfItsLastRetryIsReportedDead(t *testing.T) {
	t.Parallel()
	refuse := func(context.Context, *bus.Delivery) error { return errRefused }
	inBubble(t, func(r *rig) {
		r.log.Emit(happened, 1)
		r.start()
		r.wantCount("dead", 1)
		r.wantLines("delivery is dead", 1)
		r.wantLines("attempt failed", 0)
	}, handler{reader("once", retry(bus.Ladder(nil))), refuse})
}

func TestAShutdownGivesVerdictsUpOnlyAfterTheirOwnGrace(t *testing.T) {
	t.Parallel()
	c := reader("any")
	for name, fault := range map[string]error{"the database is away": bus.ErrUnavailable, "the database refuses": errRefused} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(r *rig) {
				r.log.Hooks.Settle = bustest.Times[[]bus.Settlement](1000, fault)
				event := r.log.Emit(happened, 1)[0]
				r.start()
				bustest.Advance(time.Minute)
				r.stop()
				bustest.Advance(5*time.Second - time.Millisecond)
				if !r.running() {
					t.Fatalf("verdicts were given up after %s", r.endedAt)
				}
				bustest.Advance(time.Millisecond)
				if r.running() {
					t.Error("Run still tries when its grace for verdicts is over")
				}
				if got, want := r.log.State(event, c.Name), (bustest.State{Status: "processing"}); got != want {
					t.Errorf("state = %+v, want %+v: its lease has to run out", got, want)
				}
				r.wantLines("given up", 1)
			}, handler{c, succeed})
		})
	}
}

func TestAShutdownWritesTheLastVerdictsWhenTheDatabaseComesBack(t *testing.T) {
	t.Parallel()
	inBubble(t, func(r *rig) {
		r.log.Hooks.Settle = bustest.Times[[]bus.Settlement](2, bus.ErrUnavailable)
		events := r.log.Emit(happened, 5)
		r.start()
		r.stop()
		bustest.Advance(4 * time.Second)
		r.wantCount("done", len(events))
		if r.running() {
			t.Error("Run has not returned after the last verdict")
		}
	}, handler{reader("any", concurrency(5)), succeed})
}
