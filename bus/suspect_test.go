package bus_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
)

// die claims everything for a consumer as a process does that dies at once.
func (r *rig) die(c bus.Consumer) {
	r.Helper()
	if _, err := r.log.Claim(r.Context(), bus.Claim{Wants: []bus.Want{{Consumer: c.Name, Limit: 1000}}, Suspect: true}); err != nil {
		r.Fatal(err)
	}
}

func TestInvariant8SuspectsAreHandledOneByOneBesideTheOtherWorkAndWithoutWaiting(t *testing.T) {
	t.Parallel()
	c := reader("many", concurrency(10))
	var busy, most, overlap atomic.Int64
	handle := func(_ context.Context, d *bus.Delivery) error {
		if !d.Suspect {
			overlap.Add(min(busy.Load(), 1))
			<-time.After(time.Millisecond)
			return nil
		}
		most.Store(max(most.Load(), busy.Add(1)))
		<-time.After(time.Millisecond)
		busy.Add(-1)
		return nil
	}
	inBubble(t, func(r *rig) {
		r.log.Emit(happened, 100)
		r.die(c)
		r.start()
		bustest.Advance(31 * time.Second) // a look that meets the lease, and one more
		r.log.Emit(happened, 100)
		r.wake <- struct{}{}
		bustest.Advance(200 * time.Millisecond)
		r.wantCount("done", 200)
		if most.Load() != 1 || overlap.Load() == 0 {
			t.Errorf("%d suspects at once, %d others beside one, want 1 and some", most.Load(), overlap.Load())
		}
	}, handler{c, handle})
}

func TestASuspectThatHangsKeepsOnlyTheOtherSuspects(t *testing.T) {
	t.Parallel()
	c := reader("many", concurrency(3))
	handle := func(ctx context.Context, d *bus.Delivery) error {
		if d.Seq == 1 {
			return untilCancelled(ctx, d)
		}
		return nil
	}
	inBubble(t, func(r *rig) {
		r.log.Emit(happened, 2)
		r.die(c)
		r.log.Emit(happened, 50)
		r.start()
		bustest.Advance(40 * time.Second)
		r.wantCount("done", 50)
		r.wantCount("processing", 1)
		r.wantCount("pending", 1)
		bustest.Advance(c.Timeout)
		r.wantCount("done", 51)
	}, handler{c, handle})
}
