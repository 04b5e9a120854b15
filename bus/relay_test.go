package bus_test

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
)

// outbox is what a relay works on.
type outbox struct {
	events, batch  int // waiting, and moved by one step
	steps, drained atomic.Int64
	fault          func(ctx context.Context) error
}

func (o *outbox) step(ctx context.Context) (int, error) {
	o.steps.Add(1)
	if err := o.fault(ctx); err != nil {
		return 0, err
	}
	n := min(o.events, o.batch)
	o.events -= n
	return n, nil
}

// relayRig is a relay that looks at an outbox once a minute, inside a bubble.
type relayRig struct {
	*testing.T
	wake  chan struct{}
	stop  func() // ends the relay and waits for it
	lines logbook
}

func relayInBubble(t *testing.T, o *outbox, test func(r *relayRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &relayRig{T: t, wake: make(chan struct{}, 1)}
		relay := &bus.Relay{
			Step: o.step, Poll: time.Minute, Wake: r.wake, Drain: func() { o.drained.Add(1) },
			Logger: slog.New(slog.NewTextHandler(&r.lines, nil)),
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := relay.Run(ctx); err != nil {
				t.Errorf("Run() = %v, want nil", err)
			}
		}()
		r.stop = func() {
			cancel()
			<-ended
		}
		synctest.Wait()
		test(r)
		r.stop()
	})
}

func never(context.Context) error { return nil }

func TestRelayEmptiesTheOutboxAndDrainsAfterEachBatch(t *testing.T) {
	t.Parallel()
	o := &outbox{events: 25, batch: 10, fault: never}
	relayInBubble(t, o, func(_ *relayRig) {
		if steps, drained := o.steps.Load(), o.drained.Load(); steps != 4 || drained != 3 {
			t.Errorf("%d steps and %d drains at the start, want 4 and 3", steps, drained)
		}
		bustest.Advance(time.Minute)
		if steps, drained := o.steps.Load(), o.drained.Load(); steps != 5 || drained != 3 {
			t.Errorf("%d steps and %d drains after an idle minute, want 5 and 3", steps, drained)
		}
	})
}

func TestRelayLooksEarlyWhenWoken(t *testing.T) {
	t.Parallel()
	o := &outbox{batch: 10, fault: never}
	relayInBubble(t, o, func(r *relayRig) {
		bustest.Advance(time.Second)
		o.events = 1
		r.wake <- struct{}{}
		synctest.Wait()
		if drained := o.drained.Load(); drained != 1 {
			t.Errorf("%d drains after a wake-up, want 1", drained)
		}
	})
}

func TestRelayRestsAfterAFailureWhoeverWakesIt(t *testing.T) {
	t.Parallel()
	fail := bustest.Times[int](2, bus.ErrUnavailable)
	o := &outbox{events: 1, batch: 10, fault: func(ctx context.Context) error { return fail(ctx, 0) }}
	relayInBubble(t, o, func(r *relayRig) {
		for range 5 {
			select {
			case r.wake <- struct{}{}:
			default:
			}
			bustest.Advance(5 * time.Second)
		}
		if steps := o.steps.Load(); steps != 1 {
			t.Errorf("%d steps within the rest, want the one that failed", steps)
		}
		bustest.Advance(2 * time.Minute)
		if drained, logged := o.drained.Load(), r.lines.count("relay events"); drained != 1 || logged != 2 {
			t.Errorf("%d drains and %d log lines after two failures, want 1 and 2", drained, logged)
		}
	})
}

func TestRelayEndsQuietlyDuringAStep(t *testing.T) {
	t.Parallel()
	o := &outbox{fault: func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}}
	relayInBubble(t, o, func(r *relayRig) {
		r.stop()
		if got := r.lines.String(); got != "" {
			t.Errorf("logged %q at a shutdown, want nothing", got)
		}
	})
}
