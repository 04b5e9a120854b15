package bus_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
)

func TestBackoffDoublesUpToItsMostAndLeavesOutUpToHalf(t *testing.T) {
	t.Parallel()
	second := time.Second
	for name, tt := range map[string]struct {
		backoff bus.Backoff
		want    []time.Duration // without what is left out
	}{
		"of a loop":        {bus.Backoff{First: second}, []time.Duration{second, 2 * second, 4 * second, 5 * second, 5 * second}},
		"of a slow loop":   {bus.Backoff{First: time.Minute}, []time.Duration{time.Minute, time.Minute}},
		"with its own end": {bus.Backoff{First: second, Most: 3 * second}, []time.Duration{second, 2 * second, 3 * second}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seen := map[time.Duration]bool{}
			for range 100 {
				b := tt.backoff
				for i, want := range tt.want {
					got := b.Next()
					if got < want/2 || got > want {
						t.Fatalf("rest %d = %s, want between half of %s and all of it", i+1, got, want)
					}
					seen[got] = true
				}
				b.Reset()
				if got := b.Next(); got > tt.want[0] {
					t.Fatalf("rest after a success = %s, want at most %s", got, tt.want[0])
				}
			}
			if len(seen) < 100 {
				t.Errorf("%d different rests of %d, want them spread", len(seen), 100*len(tt.want))
			}
		})
	}
}

// For a quarter of an hour whatever the loops ask of the database fails: at no
// time in a hot loop, and they never give up.
func TestNoLoopGrowsHotWhileTheDatabaseFails(t *testing.T) {
	t.Parallel()
	const outage = 15 * time.Minute
	for name, fault := range map[string]error{"away": bus.ErrUnavailable, "refusing": errRefused} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var claims, settles, extends atomic.Int64
			var failing atomic.Bool
			count := func(n *atomic.Int64) error {
				if !failing.Load() {
					return nil
				}
				n.Add(1)
				return fault
			}
			inBubble(t, func(r *rig) {
				r.log.Hooks.Claim = func(context.Context, bus.Claim) error { return count(&claims) }
				r.log.Hooks.Settle = func(context.Context, []bus.Settlement) error { return count(&settles) }
				r.log.Hooks.Extend = func(context.Context, []bus.Lease) error { return count(&extends) }
				r.log.Emit(happened, 3)
				r.start() // two are in hand: one is done at once, the other one's handler goes on
				failing.Store(true)
				for range outage / (100 * time.Millisecond) { // whoever wakes it
					select {
					case r.wake <- struct{}{}:
					default:
					}
					bustest.Advance(100 * time.Millisecond)
				}
				r.wantBetween("claims", claims.Load(), outage/bus.MostBackoff, 2*outage/bus.MostBackoff+4)
				r.wantBetween("extensions", extends.Load(), outage/bus.MostBackoff, 2*outage/bus.MostBackoff+4)
				r.wantBetween("settlements", settles.Load(), outage/(30*time.Second), 2*outage/bus.MostBackoff+4)
				failing.Store(false)
				bustest.Advance(time.Minute)
				r.wantCount("done", 3)
			}, handler{reader("any", concurrency(3)), slowFirst()})
		})
	}
}

// slowFirst takes half an hour for the first delivery and a second for the others.
func slowFirst() func(context.Context, *bus.Delivery) error {
	var calls atomic.Int64
	return func(context.Context, *bus.Delivery) error {
		if calls.Add(1) == 1 {
			<-time.After(15*time.Minute + 10*time.Second)
			return nil
		}
		<-time.After(time.Second)
		return nil
	}
}

func (r *rig) wantBetween(what string, got int64, least, most time.Duration) {
	r.Helper()
	if got < int64(least) || got > int64(most) {
		r.Errorf("%d %s failed in %s, want %d to %d", got, what, r.at(), least, most)
	}
}

func TestARelayThatFailsRestsEverLongerWhoeverWakesIt(t *testing.T) {
	t.Parallel()
	const outage = 15 * time.Minute
	var back atomic.Bool
	o := &outbox{events: 5, batch: 10, fault: func(context.Context) error {
		if !back.Load() {
			return bus.ErrUnavailable
		}
		return nil
	}}
	synctest.Test(t, func(t *testing.T) {
		var lines logbook
		wake := make(chan struct{}, 1)
		relay := &bus.Relay{Step: o.step, Poll: time.Second, Wake: wake, Drain: func() { o.drained.Add(1) }, Logger: lines.logger()}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- relay.Run(ctx) }()
		for range outage / (100 * time.Millisecond) {
			select {
			case wake <- struct{}{}:
			default:
			}
			bustest.Advance(100 * time.Millisecond)
		}
		if n, least, most := o.steps.Load(), int64(outage/bus.MostBackoff), int64(2*outage/bus.MostBackoff)+4; n < least || n > most {
			t.Errorf("%d steps failed in %s, want %d to %d", n, outage, least, most)
		}
		back.Store(true)
		bustest.Advance(bus.MostBackoff)
		if n := o.drained.Load(); n != 1 {
			t.Errorf("%d batches relayed after the outage, want 1", n)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

// A database that is back within a lease must find the leases renewed: the next
// try is not a third of a lease away.
func TestARenewalThatFailedIsTriedAgainBeforeTheLeaseRunsOut(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	inBubble(t, func(r *rig) {
		r.log.Hooks.Extend = func(context.Context, []bus.Lease) error {
			if at := r.at(); at >= 10*time.Second && at < 23*time.Second {
				return errors.New("the connection was cut")
			}
			<-time.After(time.Second) // too late for one that comes when the lease ends
			return nil
		}
		r.log.Hooks.Claim = func(context.Context, bus.Claim) error {
			if r.at() >= 10*time.Second && r.at() < 23*time.Second {
				return bus.ErrUnavailable
			}
			return nil
		}
		r.log.Emit(happened, 1)
		r.start()
		bustest.Advance(2 * time.Minute)
		r.wantCount("done", 1)
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls of the handler, want 1", n)
		}
	}, handler{reader("slow", concurrency(2)), counted(&calls, after(time.Minute))})
}

// A failure after a success is the first one again.
func TestALoopThatHasSucceededForgetsItsEarlierFailures(t *testing.T) {
	t.Parallel()
	const failed, quick = 8, time.Second
	t.Run("claim", func(t *testing.T) {
		t.Parallel()
		var claims []time.Duration
		inBubble(t, func(r *rig) {
			r.log.Hooks.Claim = func(context.Context, bus.Claim) error {
				claims = append(claims, r.at())
				if n := len(claims); n <= failed || n == failed+2 {
					return bus.ErrUnavailable
				}
				return nil
			}
			r.start()
			bustest.Advance(time.Minute)
			if len(claims) < failed+3 {
				t.Fatalf("%d claims in a minute, want more than %d", len(claims), failed+3)
			}
			if got := claims[failed+2] - claims[failed+1]; got > quick {
				t.Errorf("rest after a failure that follows a success = %s, want at most %s", got, quick)
			}
		}, handler{reader("any"), succeed})
	})
	t.Run("relay", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var steps []time.Duration
			relay := &bus.Relay{Poll: time.Second, Drain: func() {}, Logger: new(logbook).logger(), Step: func(context.Context) (int, error) {
				steps = append(steps, time.Since(began))
				if n := len(steps); n <= failed || n == failed+2 {
					return 0, bus.ErrUnavailable
				}
				return 0, nil
			}}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- relay.Run(ctx) }()
			bustest.Advance(time.Minute)
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Run() = %v, want nil", err)
			}
			if len(steps) < failed+3 {
				t.Fatalf("%d steps in a minute, want more than %d", len(steps), failed+3)
			}
			if got := steps[failed+2] - steps[failed+1]; got > quick {
				t.Errorf("rest after a failure that follows a success = %s, want at most %s", got, quick)
			}
		})
	})
}

func TestASlowRenewalDoesNotPutOffTheNext(t *testing.T) {
	t.Parallel()
	var extends atomic.Int64
	inBubble(t, func(r *rig) {
		r.log.Hooks.Extend = func(context.Context, []bus.Lease) error {
			extends.Add(1)
			<-time.After(8 * time.Second)
			return nil
		}
		r.log.Emit(happened, 1)
		r.start()
		bustest.Advance(55 * time.Second)
		if n := extends.Load(); n != 5 {
			t.Errorf("%d renewals in 55 s, want one each 10 s", n)
		}
		bustest.Advance(time.Minute)
	}, handler{reader("slow"), after(time.Minute)})
}
