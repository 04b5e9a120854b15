package bus_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/deskcomm/deskcomm/bus"
)

// What has become due must be looked for by the claim that it wakes, not taken
// for what an earlier one has found.
func TestAClaimIsNotAgainWhenSomethingHasBecomeDue(t *testing.T) {
	t.Parallel()
	inBubble(t, func(r *rig) {
		var mu sync.Mutex
		var again []bool
		r.log.Hooks.Claim = func(_ context.Context, c bus.Claim) error {
			mu.Lock()
			defer mu.Unlock()
			again = append(again, c.Again)
			return nil
		}
		claims := func() []bool {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			got := again
			again = nil
			return got
		}
		r.log.Emit(happened, 20)
		r.start()
		if got := claims(); len(got) < 2 || got[0] || !got[1] {
			t.Errorf("the first claims are again %v, want only those after the first", got)
		}
		r.log.Emit(happened, 1)
		r.wake <- struct{}{}
		if got := claims(); len(got) == 0 || got[0] {
			t.Errorf("the claims after a wake are again %v, want the first not to be", got)
		}
	}, handler{reader("a", concurrency(4)), succeed})
}

// An idle drainer relays what this process has emitted with its claim.
func TestAnEmissionIsRelayedByTheClaimThatItWakes(t *testing.T) {
	t.Parallel()
	var handled atomic.Int64
	inBubble(t, func(r *rig) {
		var mu sync.Mutex
		var relays []bool
		r.log.Hooks.Claim = func(_ context.Context, c bus.Claim) error {
			mu.Lock()
			defer mu.Unlock()
			if relays = append(relays, c.Relay); c.Relay {
				r.log.Emit(happened, 1)
			}
			return nil
		}
		emitted := make(chan struct{})
		r.drainer.Emitted = emitted
		r.start()
		emitted <- struct{}{}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if len(relays) < 2 || relays[0] || !relays[1] {
			t.Errorf("claims relay %v, want the second to", relays)
		}
		if got := handled.Load(); got != 1 {
			t.Errorf("%d handled at once, want 1", got)
		}
	}, handler{reader("a", concurrency(4)), func(context.Context, *bus.Delivery) error {
		handled.Add(1)
		return nil
	}})
}
