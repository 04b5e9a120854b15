package bus_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
)

func TestDrainerBuriesAfterMaxAttemptsAlongTheLadderToTheSecond(t *testing.T) {
	t.Parallel()
	ladder := bus.DefaultRetry()
	ladder.Jitter = 0
	var began time.Time
	var tries []time.Duration
	fail := func(_ context.Context, d *bus.Delivery) error {
		tries = append(tries, time.Since(began))
		if d.Attempt != len(tries) {
			t.Errorf("attempt %d at try %d", d.Attempt, len(tries))
		}
		return fmt.Errorf("try %d: %w", d.Attempt, errRefused)
	}
	c := reader("failing", retry(ladder))
	inBubble(t, func(r *rig) {
		began = r.began
		event := r.log.Emit(happened, 1)[0]
		r.start()
		bustest.Advance(time.Hour + 48*time.Minute + 29*time.Second)
		if got, want := r.log.State(event, c.Name), (bustest.State{Status: "pending", Attempts: 7, LastError: "try 7: refused"}); got != want {
			t.Errorf("state = %+v a second before the last attempt, want %+v", got, want)
		}
		bustest.Advance(time.Second)
		dead := bustest.State{Status: "dead", Attempts: 8, LastError: "try 8: refused"}
		if got := r.log.State(event, c.Name); got != dead {
			t.Errorf("state = %+v after the last attempt, want %+v", got, dead)
		}
		bustest.Advance(24 * time.Hour)
		want := []time.Duration{
			0, 30 * time.Second, 90 * time.Second, 210 * time.Second, 510 * time.Second,
			1110 * time.Second, 2910 * time.Second, 6510 * time.Second,
		}
		if diff := cmp.Diff(want, tries); diff != "" {
			t.Errorf("tries (-want +got):\n%s", diff)
		}
		r.wantLines("attempt failed", 7)
		r.wantLines("delivery is dead", 1)
	}, handler{c, fail})
}

// Nothing is spent by postponing, so a handler that always does must not be asked
// all the time.
func TestWhatIsPostponedForNoTimeWaitsASecond(t *testing.T) {
	t.Parallel()
	c := reader("any")
	var tries atomic.Int64
	handle := func(context.Context, *bus.Delivery) error {
		tries.Add(1)
		return bus.Postpone(0, errRefused)
	}
	inBubble(t, func(r *rig) {
		r.log.Emit(happened, 1)
		r.start()
		bustest.Advance(10 * time.Second)
		if n := tries.Load(); n < 2 || n > 12 {
			t.Errorf("%d tries in ten seconds, want about one a second", n)
		}
	}, handler{c, handle})
}

func TestErrorsBecomeVerdicts(t *testing.T) {
	t.Parallel()
	wrap := func(err error) error { return fmt.Errorf("send message: %w", err) }
	cases := map[string]struct {
		err  error
		want bustest.State
		told bool // when to come again, an hour later
	}{
		"nil is done":                     {nil, bustest.State{Status: "done", Attempts: 1}, false},
		"any error is retried":            {errRefused, bustest.State{Status: "pending", Attempts: 1, LastError: "refused"}, false},
		"permanent is dead":               {bus.Permanent(errRefused), bustest.State{Status: "dead", Attempts: 1, LastError: "refused"}, false},
		"wrapped permanent is dead":       {wrap(bus.Permanent(errRefused)), bustest.State{Status: "dead", Attempts: 1, LastError: "send message: refused"}, false},
		"skip is skipped":                 {bus.Skip("read already"), bustest.State{Status: "skipped", Attempts: 1, LastError: "read already"}, false},
		"wrapped skip is skipped":         {wrap(bus.Skip("read already")), bustest.State{Status: "skipped", Attempts: 1, LastError: "read already"}, false},
		"retry after waits":               {bus.RetryAfter(time.Hour, errRefused), bustest.State{Status: "pending", Attempts: 1, LastError: "refused"}, true},
		"wrapped retry after waits":       {wrap(bus.RetryAfter(time.Hour, errRefused)), bustest.State{Status: "pending", Attempts: 1, LastError: "send message: refused"}, true},
		"retry after never hurries":       {bus.RetryAfter(time.Second, errRefused), bustest.State{Status: "pending", Attempts: 1, LastError: "refused"}, false},
		"permanent beats our own trouble": {bus.Permanent(bus.ErrUnavailable), bustest.State{Status: "dead", Attempts: 1, LastError: "the database is not available"}, false},
		"postpone spends nothing":         {bus.Postpone(time.Hour, errRefused), bustest.State{Status: "pending", LastError: "refused"}, true},
		"wrapped postpone spends nothing": {wrap(bus.Postpone(time.Hour, errRefused)), bustest.State{Status: "pending", LastError: "send message: refused"}, true},
		"permanent beats postpone":        {bus.Postpone(time.Hour, bus.Permanent(errRefused)), bustest.State{Status: "dead", Attempts: 1, LastError: "refused"}, false},
		"permanent beats retry":           {bus.RetryAfter(time.Hour, bus.Permanent(errRefused)), bustest.State{Status: "dead", Attempts: 1, LastError: "refused"}, false},
		"one of joined errors":            {errors.Join(errRefused, bus.Permanent(errRefused)), bustest.State{Status: "dead", Attempts: 1, LastError: "refused\nrefused"}, false},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := reader("any")
			var tries atomic.Int64
			handle := func(context.Context, *bus.Delivery) error {
				tries.Add(1)
				return tt.err
			}
			inBubble(t, func(r *rig) {
				event := r.log.Emit(happened, 1)[0]
				r.start()
				if diff := cmp.Diff(tt.want, r.log.State(event, c.Name)); diff != "" {
					t.Errorf("state (-want +got):\n%s", diff)
				}
				bustest.Advance(59 * time.Second)
				if tries.Load() != 1 {
					t.Errorf("%d tries before the policy's step has passed, want 1", tries.Load())
				}
				bustest.Advance(time.Second)
				again := int64(1)
				if tt.want.Status == "pending" && !tt.told {
					again = 2
				}
				if tries.Load() != again {
					t.Errorf("%d tries when the policy's step has passed, want %d", tries.Load(), again)
				}
				bustest.Advance(59*time.Minute - time.Second)
				if tt.told && tries.Load() != 1 {
					t.Errorf("%d tries before the time that was told, want 1", tries.Load())
				}
				bustest.Advance(time.Second)
				if tt.told && tries.Load() != 2 {
					t.Errorf("%d tries at the time that was told, want 2", tries.Load())
				}
			}, handler{c, handle})
		})
	}
}

// What no handler should do may spoil its own delivery only.
func TestABrokenHandlerFailsItsDeliveryAndTheLoopGoesOn(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		broken func() error
		text   string
	}{
		"a panic":                           {func() error { panic("boom") }, "handler panicked: boom"},
		"a panic with an error":             {func() error { panic(errRefused) }, "handler panicked: refused"},
		"a panic with nil":                  {func() error { panic(nil) }, "handler panicked: panic called with nil"}, //nolint:govet // on purpose
		"a failed assertion":                {func() error { var v any = 1; return v.(error) }, "handler panicked: interface conversion"},
		"a typed nil that unwraps":          {func() error { var e *bus.PermanentError; return fmt.Errorf("send: %w", e) }, "handler panicked: runtime error: invalid memory address"},
		"a typed nil skip":                  {func() error { var e *bus.SkipError; return e }, "handler panicked: runtime error: invalid memory address"},
		"an error whose text panics":        {func() error { return bus.RetryAfter(0, nil) }, "PANIC=Error method"},
		"the end of the handlers goroutine": {func() error { runtime.Goexit(); return nil }, "the handler ended its goroutine"},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := reader("fragile")
			handle := func(_ context.Context, d *bus.Delivery) error {
				if d.Attempt == 1 {
					return tt.broken()
				}
				return nil
			}
			inBubble(t, func(r *rig) {
				events := r.log.Emit(happened, 2)
				r.start()
				for _, event := range events {
					got := r.log.State(event, c.Name)
					if got.Status != "pending" || got.Attempts != 1 || !strings.Contains(got.LastError, tt.text) {
						t.Errorf("state = %+v, want pending after 1 attempt with %q", got, tt.text)
					}
				}
				bustest.Advance(2 * time.Minute)
				r.wantCount("done", len(events))
			}, handler{c, handle})
		})
	}
}

func TestASlowConsumerDelaysNoOther(t *testing.T) {
	t.Parallel()
	quick := reader("quick", concurrency(5))
	inBubble(t, func(r *rig) {
		r.drainer.Poll = time.Hour
		r.log.Emit(happened, 100)
		r.start()
		r.wantCount("done", 100)
		r.wantCount("processing", 1)
		if r.at() != 0 {
			t.Errorf("the quick consumer took %s of the slow one's time", r.at())
		}
	}, handler{quick, succeed}, handler{reader("slow"), untilCancelled})
}

func TestConcurrencyIsNeverExceededAndFreedSlotsAreFilled(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var busy, most int
	count := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		busy += n
		most = max(most, busy)
	}
	handle := func(context.Context, *bus.Delivery) error {
		count(1)
		defer count(-1)
		<-time.After(time.Second)
		return nil
	}
	inBubble(t, func(r *rig) {
		r.drainer.Poll = time.Hour // no slot may wait for the next look
		r.log.Emit(happened, 100)
		r.start()
		bustest.Advance(33 * time.Second)
		r.wantCount("done", 99)
		bustest.Advance(time.Second)
		r.wantCount("done", 100)
		if most != 3 {
			t.Errorf("%d handlers ran at once, want 3", most)
		}
	}, handler{reader("three", concurrency(3)), handle})
}

func TestMoreSlotsThanOneClaimTakesAreFilledAtOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(r *rig) {
		r.drainer.Poll = time.Hour
		r.log.Emit(happened, 1300)
		r.start()
		r.wantCount("processing", 1200)
		r.wantCount("pending", 100)
		bustest.Advance(time.Minute)
		r.wantCount("done", 1200)
		bustest.Advance(time.Minute)
		r.wantCount("done", 1300)
	}, handler{reader("wide", concurrency(1200)), after(time.Minute)})
}

func TestAWakeUpIsAnEarlyLook(t *testing.T) {
	t.Parallel()
	inBubble(t, func(r *rig) {
		r.drainer.Poll = time.Hour
		r.start()
		bustest.Advance(time.Minute)
		r.log.Emit(happened, 1)
		synctest.Wait()
		r.wantCount("pending", 1)
		r.wake <- struct{}{}
		synctest.Wait()
		r.wantCount("done", 1)
		r.log.Emit(happened, 1)
		bustest.Advance(time.Hour) // without one, the next look
		r.wantCount("done", 2)
	}, handler{reader("any"), succeed})
}

func TestAHandlerThatOverrunsItsTimeoutFailsItsAttempt(t *testing.T) {
	t.Parallel()
	c := reader("stuck", func(c *bus.Consumer) { c.Timeout = 10 * time.Second })
	inBubble(t, func(r *rig) {
		event := r.log.Emit(happened, 1)[0]
		r.start()
		bustest.Advance(9 * time.Second)
		r.wantCount("processing", 1)
		bustest.Advance(time.Second)
		want := bustest.State{Status: "pending", Attempts: 1, LastError: context.DeadlineExceeded.Error()}
		if got := r.log.State(event, c.Name); got != want {
			t.Errorf("state = %+v when the timeout has passed, want %+v", got, want)
		}
	}, handler{c, untilCancelled})
}

// Nothing was tried outside, and the handler cannot help it.
func TestOurOwnTroubleSpendsNoAttemptAndIsTriedAgainSoon(t *testing.T) {
	t.Parallel()
	cases := map[string]error{
		"bare":    bus.ErrUnavailable,
		"wrapped": fmt.Errorf("load 10.0.0.1: %w", bus.ErrUnavailable),
	}
	for name, trouble := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := reader("any")
			handle := func(_ context.Context, d *bus.Delivery) error {
				if d.Attempt != 1 {
					t.Errorf("attempt %d, want the first until it is made", d.Attempt)
				}
				return trouble
			}
			var calls atomic.Int64
			inBubble(t, func(r *rig) {
				event := r.log.Emit(happened, 1)[0]
				r.start()
				bustest.Advance(5*time.Second - time.Millisecond)
				if n := calls.Load(); n != 1 {
					t.Errorf("%d tries before 5 s, want 1", n)
				}
				bustest.Advance(time.Hour)
				if n := calls.Load(); n < 600 {
					t.Errorf("%d tries within an hour, want one each few seconds and no end", n)
				}
				want := bustest.State{Status: "pending", LastError: "the database is not available"} // and no address
				if got := r.log.State(event, c.Name); got != want {
					t.Errorf("state = %+v, want %+v", got, want)
				}
				r.wantLines("attempt failed", 0)
			}, handler{c, counted(&calls, handle)})
		})
	}
}

func TestAFailedClaimIsLoggedAndRepeatedEverLaterUntilItSucceeds(t *testing.T) {
	t.Parallel()
	inBubble(t, func(r *rig) {
		r.log.Hooks.Claim = bustest.Times[bus.Claim](3, bus.ErrUnavailable)
		r.log.Emit(happened, 1)
		r.start()
		r.wantLines("claim deliveries", 1)
		bustest.Advance((1+2+4)*time.Second/2 - time.Millisecond)
		r.wantCount("pending", 1)
		bustest.Advance((1+2+4)*time.Second/2 + time.Millisecond)
		r.wantCount("done", 1)
		r.wantLines("claim deliveries", 3)
	}, handler{reader("any"), succeed})
}

func TestWakeUpsDoNotHurryAClaimThatFails(t *testing.T) {
	t.Parallel()
	var claims atomic.Int64
	inBubble(t, func(r *rig) {
		r.log.Hooks.Claim = func(context.Context, bus.Claim) error {
			claims.Add(1)
			return bus.ErrUnavailable
		}
		r.start()
		for range 100 {
			select {
			case r.wake <- struct{}{}:
			default:
			}
			bustest.Advance(50 * time.Millisecond)
		}
		if n := claims.Load(); n > 6 {
			t.Errorf("%d claims failed within 5 s, want at most what the rests allow", n)
		}
	}, handler{reader("any"), succeed})
}
