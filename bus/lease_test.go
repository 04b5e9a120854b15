package bus_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
)

func TestALostLeaseCancelsTheHandlerAndItsLateVerdictIsRefused(t *testing.T) {
	t.Parallel()
	cases := map[string]error{
		"done":      nil,
		"retry":     errRefused,
		"permanent": bus.Permanent(errRefused),
		"skip":      bus.Skip("pointless"),
	}
	for name, verdict := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := reader("robbed", concurrency(2))
			var cause error
			handle := func(ctx context.Context, _ *bus.Delivery) error {
				<-ctx.Done()
				cause = context.Cause(ctx)
				return verdict
			}
			inBubble(t, func(r *rig) {
				event := r.log.Emit(happened, 1)[0]
				r.start()
				bustest.Advance(5 * time.Second)
				r.log.Steal(event, c.Name)
				bustest.Advance(5 * time.Second) // the next heartbeat
				if !errors.Is(cause, bus.ErrLeaseLost) {
					t.Errorf("cause of the context = %v, want %v", cause, bus.ErrLeaseLost)
				}
				want := bustest.State{Status: "processing"} // by the thief
				if got := r.log.State(event, c.Name); got != want {
					t.Errorf("state = %+v, want %+v", got, want)
				}
				r.wantLines("the lease was lost", 1)
			}, handler{c, handle})
		})
	}
}

func TestTheHeartbeatKeepsTheLeaseOfASlowHandler(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	handle := func(context.Context, *bus.Delivery) error {
		calls.Add(1)
		<-time.After(5 * time.Minute)
		return nil
	}
	inBubble(t, func(r *rig) {
		r.log.Emit(happened, 1)
		r.start()
		bustest.Advance(5*time.Minute - time.Second)
		r.wantCount("processing", 1)
		bustest.Advance(time.Second)
		r.wantCount("done", 1)
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls of the handler, want 1", n)
		}
		r.wantLines("lease was lost", 0)
	}, handler{reader("slow", concurrency(2)), handle})
}

func TestOneHangingExtensionDoesNotLoseTheLease(t *testing.T) {
	t.Parallel()
	var extensions, calls atomic.Int64
	handle := func(context.Context, *bus.Delivery) error {
		calls.Add(1)
		<-time.After(2 * time.Minute)
		return nil
	}
	inBubble(t, func(r *rig) {
		r.log.Hooks.Extend = func(ctx context.Context, _ []bus.Lease) error {
			if extensions.Add(1) > 1 {
				return nil
			}
			select { // a connection that nothing comes from, until the call gives up
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(bustest.NewLog().Lease):
				return bus.ErrUnavailable
			}
		}
		r.log.Emit(happened, 1)
		r.start()
		bustest.Advance(3 * time.Minute)
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls of the handler, want 1", n)
		}
		r.wantCount("done", 1)
	}, handler{reader("slow", concurrency(2)), handle})
}

func TestWhatIsSettledIsNotExtendedAnyMore(t *testing.T) {
	t.Parallel()
	var extended atomic.Int64
	inBubble(t, func(r *rig) {
		r.log.Hooks.Extend = func(_ context.Context, leases []bus.Lease) error {
			extended.Add(int64(len(leases)))
			return nil
		}
		r.log.Emit(happened, 10)
		r.start()
		bustest.Advance(10*time.Minute + time.Second)
		r.wantCount("done", 9)
		if n := extended.Load(); n != 60 { // the tenth, every 10 s
			t.Errorf("%d extensions in ten minutes, want 60", n)
		}
	}, handler{reader("any", concurrency(10)), func(ctx context.Context, d *bus.Delivery) error {
		if d.Seq == 10 {
			return untilCancelled(ctx, d)
		}
		return nil
	}})
}

// Its extensions fail for longer than the lease, so the process claims its own
// delivery a second time. The loss of the first lease is told after that.
func TestAnOlderHandlerOfTheSameDeliveryIsCancelledAndTheNewerIsNot(t *testing.T) {
	t.Parallel()
	c := reader("double", concurrency(2))
	var older, newer error
	var handled atomic.Int64
	handle := func(ctx context.Context, d *bus.Delivery) error {
		if d.Seq > 1 {
			return untilCancelled(ctx, d)
		}
		if handled.Add(1) == 1 {
			<-ctx.Done()
			older = context.Cause(ctx)
			return ctx.Err()
		}
		<-time.After(5 * time.Minute)
		newer = context.Cause(ctx)
		return nil
	}
	inBubble(t, func(r *rig) {
		r.drainer.Poll = 700 * time.Millisecond // claims again at 30.1 s
		r.log.Hooks.Extend = func(context.Context, []bus.Lease) error {
			if r.at() < 30*time.Second {
				return bus.ErrUnavailable
			}
			<-time.After(time.Second)
			return nil
		}
		event := r.log.Emit(happened, 1)[0]
		r.start()
		bustest.Advance(31 * time.Second)
		if !errors.Is(older, bus.ErrLeaseLost) {
			t.Errorf("cause of the older context = %v, want %v", older, bus.ErrLeaseLost)
		}
		bustest.Advance(time.Hour)
		if newer != nil {
			t.Errorf("cause of the newer context = %v, want none", newer)
		}
		if got, want := r.log.State(event, c.Name), (bustest.State{Status: "done", Attempts: 1}); got != want {
			t.Errorf("state = %+v, want %+v", got, want)
		}
		r.log.Emit(happened, 2) // both slots are free again
		bustest.Advance(time.Second)
		r.wantCount("processing", 2)
	}, handler{c, handle})
}
