package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

// handler is a consumer of the bench: it does what the scenario gives it to do.
type handler struct {
	consumer bus.Consumer
	do       func(ctx context.Context, d *bus.Delivery) error
}

func (h handler) Consumer() bus.Consumer { return h.consumer }

func (h handler) Handle(ctx context.Context, d *bus.Delivery) error { return h.do(ctx, d) }

func nothing(context.Context, *bus.Delivery) error { return nil }

// readers are the first n consumers.
func readers(n int, do func(context.Context, *bus.Delivery) error) []bus.Handler {
	list := make([]bus.Handler, n)
	for i := range list {
		list[i] = handler{consumer(consumers[i]), do}
	}
	return list
}

// countedLog tells when a number of deliveries have been settled in the database.
type countedLog struct {
	*db.DB
	left atomic.Int64
	done chan struct{}
}

func (l *countedLog) Settle(ctx context.Context, s []bus.Settlement) ([]bus.Lease, error) {
	lost, err := l.DB.Settle(ctx, s)
	n := int64(len(s) - len(lost))
	if left := l.left.Add(-n); err == nil && left <= 0 && left+n > 0 {
		close(l.done)
	}
	return lost, err
}

// working runs the loops of a worker while body runs and until total deliveries
// have been settled. It returns how long that took from their start.
func (r *run) working(ctx context.Context, list []bus.Handler, total int, body func(ctx context.Context) error) (time.Duration, error) {
	counted := &countedLog{DB: r.store, done: make(chan struct{})}
	counted.left.Store(int64(total))
	var took time.Duration
	err := r.looping(ctx, counted, list, func(ctx context.Context) error {
		began := time.Now()
		if err := body(ctx); err != nil {
			return err
		}
		select {
		case <-counted.done:
			took = time.Since(began)
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(4 * time.Minute):
			return fmt.Errorf("%d of %d deliveries are left after four minutes", counted.left.Load(), total)
		}
	})
	return took, err
}

// looping runs the loops of a worker while body runs.
func (r *run) looping(ctx context.Context, log bus.Log, list []bus.Handler, body func(ctx context.Context) error) error {
	life, stop := context.WithCancel(ctx)
	relay := &bus.Relay{Step: r.store.Relay, Batch: db.RelayBatch, Poll: time.Second, Wake: r.relayDue, Drain: func() { nudge(r.drainDue) }, Logger: r.Logger}
	drainer := &bus.Drainer{Log: log, Handlers: list, Poll: time.Second, Wake: r.drainDue, Emitted: r.emitted, Grace: time.Second, Logger: r.Logger}
	var loops sync.WaitGroup
	defer loops.Wait()
	defer stop()
	loops.Go(func() { _ = relay.Run(life) })   // returns when life ends, and then nil
	loops.Go(func() { _ = drainer.Run(life) }) // the same
	return body(life)
}

func waitOnly(context.Context) error { return nil }

// drain measures how fast a backlog is claimed, handled by doing nothing and
// settled.
func (r *run) drain(ctx context.Context) error {
	if err := r.reset(ctx, 1); err != nil {
		return err
	}
	if err := r.fill(ctx, r.Events); err != nil {
		return err
	}
	took, err := r.working(ctx, readers(1, nothing), r.Events, waitOnly)
	if err != nil {
		return err
	}
	return r.report(fmt.Sprintf("lease and ack, organizations=%d payload=%d", r.Organizations, r.Payload), "jobs_per_s", float64(r.Events)/took.Seconds())
}

// fanOut measures events for three consumers each: emission alone, their drain,
// and both at once.
func (r *run) fanOut(ctx context.Context) error {
	n := len(consumers)
	params := fmt.Sprintf("%d consumers, %d callers, organizations=%d payload=%d", n, callers, r.Organizations, r.Payload)
	all := func(i int64, _ time.Time) bool { return i < int64(r.FanOut) }
	if err := r.reset(ctx, n); err != nil {
		return err
	}
	_, took, err := r.publish(ctx, groupedCallers, all, r.emitGrouped)
	if err != nil {
		return err
	}
	if err := r.report(fmt.Sprintf("%d consumers, %s, payload=%d", n, grouped, r.Payload), "publish_events_per_s", float64(r.FanOut)/took.Seconds()); err != nil {
		return err
	}
	if err := r.reset(ctx, n); err != nil {
		return err
	}
	_, took, err = r.publish(ctx, callers, all, r.emitOne)
	if err != nil {
		return err
	}
	if err := r.report(params, "publish_events_per_s", float64(r.FanOut)/took.Seconds()); err != nil {
		return err
	}
	if err := r.fill(ctx, 0); err != nil {
		return err
	}
	if took, err = r.working(ctx, readers(n, nothing), n*r.FanOut, waitOnly); err != nil {
		return err
	}
	if err := r.report(params, "drain_deliveries_per_s", float64(n*r.FanOut)/took.Seconds()); err != nil {
		return err
	}
	if err := r.reset(ctx, n); err != nil {
		return err
	}
	var emitting time.Duration
	took, err = r.working(ctx, readers(n, nothing), n*r.FanOut, func(ctx context.Context) (err error) {
		_, emitting, err = r.publish(ctx, callers, all, r.emitOne)
		return err
	})
	if err != nil {
		return err
	}
	if err := r.report(params, "live_deliveries_per_s", float64(n*r.FanOut)/took.Seconds()); err != nil {
		return err
	}
	return r.report(params, "live_publish_events_per_s", float64(r.FanOut)/emitting.Seconds())
}
