package bus_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
)

// classes counts what is being handled of each class, and how much of bulk was.
type classes struct {
	mu                sync.Mutex
	interactive, bulk int
	bulkDone          int
}

func (c *classes) add(d *bus.Delivery, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.Interactive {
		c.interactive += n
	} else {
		c.bulk += n
		c.bulkDone -= min(n, 0)
	}
}

// during handles with another handler.
func (c *classes) during(handle func(context.Context, *bus.Delivery) error) func(context.Context, *bus.Delivery) error {
	return func(ctx context.Context, d *bus.Delivery) error {
		c.add(d, 1)
		defer c.add(d, -1)
		return handle(ctx, d)
	}
}

func (r *rig) wantClasses(what string, c *classes, interactive, bulk int) {
	r.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.interactive != interactive || c.bulk != bulk {
		r.Errorf("%s: %d interactive and %d bulk in hand after %s, want %d and %d", what, c.interactive, c.bulk, r.at(), interactive, bulk)
	}
}

// emitInteractive emits what somebody waits for and wakes the drainer.
func (r *rig) emitInteractive(org, destination uuid.UUID, n int) {
	r.log.MakeInteractive(r.log.EmitTo(org, destination, happened, n)...)
	r.wake <- struct{}{}
	synctest.Wait()
}

func TestInteractiveStartsAtOnceWhileBulkOfTheSameDestinationHangsInAllSlots(t *testing.T) {
	t.Parallel()
	for name, slots := range map[string]struct{ concurrency, express int }{
		"one": {1, 1}, "four": {4, 1}, "sixteen": {16, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var c classes
			inBubble(t, func(r *rig) {
				org, destination := uuid.New(), uuid.New()
				r.log.EmitTo(org, destination, happened, 1000)
				r.start()
				r.wantClasses("bulk alone", &c, 0, slots.concurrency)
				for n := range slots.express {
					r.emitInteractive(org, destination, 1)
					r.wantClasses("beside bulk", &c, n+1, slots.concurrency)
				}
				r.emitInteractive(org, destination, 1)
				r.wantClasses("with all slots in use", &c, slots.express, slots.concurrency)
				if r.at() != 0 {
					r.Errorf("it took %s, want no time", r.at())
				}
				bustest.Advance(time.Minute)
				r.wantClasses("a minute later", &c, slots.express, slots.concurrency)
			}, handler{reader("classes", concurrency(slots.concurrency)), c.during(untilCancelled)})
		})
	}
}

func TestInteractiveAloneHasTheConcurrencyAndTheExpressSlots(t *testing.T) {
	t.Parallel()
	var c classes
	inBubble(t, func(r *rig) {
		org := uuid.New()
		r.log.MakeInteractive(r.log.EmitTo(org, uuid.Nil, happened, 100)...)
		r.start()
		r.wantClasses("alone", &c, 20, 0)
		r.emitTo(org, uuid.Nil, 100)
		r.wantClasses("with bulk waiting", &c, 20, 0)
	}, handler{reader("classes", concurrency(16)), c.during(untilCancelled)})
}

func TestBulkHasAnEighthOfTheSlotsWhileInteractiveIsAlwaysDue(t *testing.T) {
	t.Parallel()
	for name, slots := range map[string]struct{ concurrency, interactive, bulk int }{
		"one": {1, 1, 1}, "four": {4, 4, 1}, "sixteen": {16, 18, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var c classes
			inBubble(t, func(r *rig) {
				org := uuid.New()
				r.log.MakeInteractive(r.log.EmitTo(org, uuid.Nil, happened, 1000)...)
				r.log.EmitTo(org, uuid.Nil, happened, 1000)
				r.drainer.Poll = time.Hour // a slot that becomes free is what wakes
				r.start()
				r.wantClasses("both", &c, slots.interactive, slots.bulk)
				for range 10 {
					bustest.Advance(time.Second)
					r.wantClasses("both, later", &c, slots.interactive, slots.bulk)
				}
				c.mu.Lock()
				defer c.mu.Unlock()
				if got, want := c.bulkDone, 10*slots.bulk; got != want {
					r.Errorf("%d of bulk are done after %s, want %d", got, r.at(), want)
				}
			}, handler{reader("classes", concurrency(slots.concurrency)), c.during(after(time.Second))})
		})
	}
}

func TestBulkThatComesToBusySlotsHasTheNextThatIsFree(t *testing.T) {
	t.Parallel()
	var c classes
	inBubble(t, func(r *rig) {
		org := uuid.New()
		r.log.MakeInteractive(r.log.EmitTo(org, uuid.Nil, happened, 100)...)
		r.drainer.Poll = time.Hour
		r.start()
		bustest.Advance(500 * time.Millisecond)
		r.emitTo(org, uuid.Nil, 10)
		r.wantClasses("when it comes", &c, 5, 0)
		bustest.Advance(500 * time.Millisecond)
		r.wantClasses("when slots are free", &c, 4, 1)
	}, handler{reader("classes", concurrency(4)), c.during(after(time.Second))})
}

// A claim for express slots alone leaves out all that is bulk, of whoever.
func TestBulkGoesOnAfterAClaimForExpressSlotsAlone(t *testing.T) {
	t.Parallel()
	var c classes
	inBubble(t, func(r *rig) {
		for range 20 {
			r.log.EmitTo(uuid.New(), uuid.Nil, happened, 10)
		}
		r.drainer.Poll = time.Hour
		r.start()
		r.wantClasses("with the overflow", &c, 0, 20)
		bustest.Advance(500 * time.Millisecond)
		r.emitInteractive(uuid.New(), uuid.Nil, 1)
		r.wantClasses("and one for whom somebody waits", &c, 1, 20)
		bustest.Advance(time.Minute)
		r.wantCount("done", 201)
	}, handler{reader("classes", concurrency(16)), c.during(after(time.Second))})
}
