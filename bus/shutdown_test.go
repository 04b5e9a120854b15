package bus_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
)

func TestAnIdleDrainerStopsAtOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(r *rig) {
		r.start()
		bustest.Advance(time.Minute)
		r.stop()
		if r.running() || r.endedAt != time.Minute {
			t.Errorf("Run has not returned at once, but after %s", r.endedAt)
		}
		r.wantLines("level=ERROR", 0)
	}, handler{reader("any"), succeed})
}

func TestAShutdownClaimsNothingMoreAndWaitsForTheWorkInHand(t *testing.T) {
	t.Parallel()
	inBubble(t, func(r *rig) {
		r.log.Emit(happened, 3)
		r.start()
		bustest.Advance(5 * time.Second)
		r.wake <- struct{}{} // may be seen together with the end
		r.stop()
		bustest.Advance(5*time.Second - time.Millisecond)
		if !r.running() {
			t.Fatal("Run returned before its work in hand was done")
		}
		bustest.Advance(time.Millisecond)
		if r.running() || r.endedAt != 10*time.Second {
			t.Errorf("Run returned after %s, want 10s: when the work in hand was done", r.endedAt)
		}
		r.wantCount("done", 1)
		r.wantCount("pending", 2)
	}, handler{reader("any"), after(10 * time.Second)})
}

func TestAShutdownCancelsAfterTheGraceAndLeavesTheRestToAnotherProcess(t *testing.T) {
	t.Parallel()
	quick, stuck := reader("quick"), reader("stuck")
	inBubble(t, func(r *rig) {
		event := r.log.Emit(happened, 1)[0]
		r.start()
		r.stop()
		bustest.Advance(25*time.Second - time.Millisecond)
		if !r.running() {
			t.Fatal("Run returned before its grace was over")
		}
		if got, want := r.log.State(event, quick.Name), (bustest.State{Status: "done", Attempts: 1}); got != want {
			t.Errorf("what finished within the grace: %+v, want %+v", got, want)
		}
		bustest.Advance(time.Millisecond)
		if r.running() {
			t.Fatal("Run has not returned when its grace was over")
		}
		want := bustest.State{Status: "pending", LastError: "the attempt was cut off by a shutdown"}
		if got := r.log.State(event, stuck.Name); got != want {
			t.Errorf("what did not finish: %+v, want %+v", got, want)
		}
		r.wantLines("level=ERROR", 0)
		r.wantLines("attempt cut off", 1)
		claimed, err := r.log.Claim(t.Context(), bus.Claim{Wants: []bus.Want{{Consumer: stuck.Name, Limit: 1}}})
		if err != nil || len(claimed) != 1 || claimed[0].Attempt != 1 {
			t.Errorf("Claim() = %+v, %v at once after the shutdown, want the first attempt once more", claimed, err)
		}
	}, handler{quick, after(20 * time.Second)}, handler{stuck, untilCancelled})
}

func TestWhatFinishesAfterTheGraceIsStillSettled(t *testing.T) {
	t.Parallel()
	inBubble(t, func(r *rig) {
		r.log.Emit(happened, 1)
		r.start()
		r.stop()
		bustest.Advance(40 * time.Second)
		if r.running() || r.endedAt != 40*time.Second {
			t.Errorf("Run returned after %s, want 40s", r.endedAt)
		}
		r.wantCount("done", 1)
	}, handler{reader("deaf"), after(40 * time.Second)})
}

// A statement that is under way when the caller leaves commits all the same: its
// deliveries would be leased to nobody, and one of their attempts spent.
func TestAShutdownDuringAClaimLosesNothingThatWasClaimed(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	inBubble(t, func(r *rig) {
		r.log.Hooks.Claimed = func(ctx context.Context, _ []bus.Delivery) error {
			select {
			case <-ctx.Done():
			case <-time.After(2 * time.Second): // the answer takes its time
			}
			return nil
		}
		r.log.Emit(happened, 1)
		r.start()
		bustest.Advance(time.Second)
		r.stop()
		bustest.Advance(time.Second)
		r.wantCount("done", 1)
		if n := calls.Load(); n != 1 || r.running() {
			t.Errorf("%d calls of the handler and running is %t, want 1 and false", n, r.running())
		}
	}, handler{reader("any"), counted(&calls, succeed)})
}

func TestAHangingClaimEndsWithTheGrace(t *testing.T) {
	t.Parallel()
	inBubble(t, func(r *rig) {
		r.log.Hooks.Claim = func(ctx context.Context, _ bus.Claim) error {
			<-ctx.Done()
			return ctx.Err()
		}
		r.start()
		r.stop()
		bustest.Advance(25 * time.Second)
		if r.running() {
			t.Error("Run has not returned when its grace was over")
		}
	}, handler{reader("any"), succeed})
}

func TestNoClaimBeginsAfterAShutdown(t *testing.T) {
	t.Parallel()
	for range 50 { // a select between the end and a wake-up is a toss
		var claims atomic.Int64
		inBubble(t, func(r *rig) {
			r.log.Hooks.Claim = func(context.Context, bus.Claim) error {
				claims.Add(1)
				<-time.After(time.Second)
				return nil
			}
			r.start()
			r.wake <- struct{}{}
			r.stop()
			bustest.Advance(time.Minute)
			if n := claims.Load(); n != 1 {
				t.Errorf("%d claims, want the one that was under way", n)
			}
		}, handler{reader("any"), succeed})
	}
}

func TestAShutdownDuringAnExtensionIsNoError(t *testing.T) {
	t.Parallel()
	inBubble(t, func(r *rig) {
		r.log.Hooks.Extend = func(ctx context.Context, _ []bus.Lease) error {
			<-ctx.Done()
			return ctx.Err()
		}
		r.log.Emit(happened, 1)
		r.start()
		bustest.Advance(9 * time.Second)
		r.stop()
		bustest.Advance(2 * time.Second) // the heartbeat at 10 s is under way when the work ends
		r.wantCount("done", 1)
		if r.running() {
			t.Error("Run has not returned after the work in hand")
		}
		r.wantLines("level=ERROR", 0)
	}, handler{reader("any"), after(11 * time.Second)})
}
