package bench

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/deskcomm/deskcomm/db"
)

const (
	callers   = 8    // that emit at the same time
	bulk      = 1000 // events of one call
	bulkCalls = 60

	groupedCallers = 64
	grouped        = "64 callers coalesced by 2 writers"
)

// insert measures emission alone: nobody relays.
func (r *run) insert(ctx context.Context) error {
	for _, way := range []struct {
		what    string
		callers int
		emit    func(context.Context, int64) error
	}{
		{fmt.Sprintf("emit_event x1, own commit, %d callers", callers), callers, r.emitOne},
		{"emission x1, " + grouped, groupedCallers, r.emitGrouped},
	} {
		if err := r.reset(ctx, 1); err != nil {
			return err
		}
		n, took, err := r.publish(ctx, way.callers, func(_ int64, began time.Time) bool { return time.Since(began) < r.Span/2 }, way.emit)
		if err != nil {
			return err
		}
		if err := r.report(fmt.Sprintf("%s, payload=%d", way.what, r.Payload), "rows_per_s", float64(n)/took.Seconds()); err != nil {
			return err
		}
	}
	if err := r.reset(ctx, 1); err != nil {
		return err
	}
	batches := make([][]db.NewEvent, bulkCalls)
	for i := range batches {
		batches[i] = r.batch(i*bulk, bulk)
	}
	began := time.Now()
	for i, events := range batches {
		if err := r.emitAll(ctx, i, events); err != nil {
			return err
		}
	}
	params := fmt.Sprintf("EmitAll x%d, 1 caller, payload=%d", bulk, r.Payload)
	return r.report(params, "rows_per_s", bulk*bulkCalls/time.Since(began).Seconds())
}

// publish emits one event after the other by parallel callers for as long as more
// says, and returns how many that were and how long it took.
func (r *run) publish(ctx context.Context, callers int, more func(n int64, began time.Time) bool, emit func(context.Context, int64) error) (int64, time.Duration, error) {
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for range callers {
		g.Go(func() error {
			for {
				n := next.Add(1) - 1
				if !more(n, began) {
					next.Add(-1)
					return nil
				}
				if err := emit(ctx, n); err != nil {
					return err
				}
			}
		})
	}
	err := g.Wait()
	return next.Load(), time.Since(began), err
}

// emitOne emits event n as a business transaction in any language does, but that
// it has nothing else to write.
func (r *run) emitOne(ctx context.Context, n int64) error {
	return r.emitOneFor(ctx, r.orgs[int(n)%len(r.orgs)], n)
}

func (r *run) emitOneFor(ctx context.Context, org uuid.UUID, n int64) error {
	_, err := r.store.Emit(ctx, org, actor(), r.event(n))
	return err
}

// emitGrouped emits event n as the API does.
func (r *run) emitGrouped(ctx context.Context, n int64) error {
	_, err := r.store.EmitGrouped(ctx, r.orgs[int(n)%len(r.orgs)], actor(), r.event(n))
	return err
}

func (r *run) event(n int64) db.NewEvent {
	return db.NewEvent{Type: typ, EntityKind: "contact", Payload: payload(n, r.Payload)}
}

func (r *run) batch(from, n int) []db.NewEvent {
	events := make([]db.NewEvent, n)
	for i := range events {
		events[i] = r.event(int64(from + i))
	}
	return events
}

func (r *run) emitAll(ctx context.Context, call int, events []db.NewEvent) error {
	return r.emitFor(ctx, r.orgs[call%len(r.orgs)], events)
}

func (r *run) emitFor(ctx context.Context, org uuid.UUID, events []db.NewEvent) error {
	return r.store.InOrg(ctx, org, actor(), func(t *db.OrgTx) error {
		_, err := t.EmitAll(ctx, events)
		return err
	})
}

// fill emits n events, spread over the organizations, and relays them.
func (r *run) fill(ctx context.Context, n int) error {
	for i := 0; i*bulk < n; i++ {
		if err := r.emitAll(ctx, i, r.batch(i*bulk, min(bulk, n-i*bulk))); err != nil {
			return err
		}
	}
	for {
		moved, err := r.store.Relay(ctx)
		if err != nil {
			return err
		}
		if moved == 0 {
			return r.rest(ctx)
		}
	}
}

// relay measures the way from the outbox to the deliveries of three consumers.
func (r *run) relay(ctx context.Context) error {
	if err := r.reset(ctx, len(consumers)); err != nil {
		return err
	}
	for i := 0; i*bulk < r.FanOut; i++ {
		if err := r.emitAll(ctx, i, r.batch(i*bulk, min(bulk, r.FanOut-i*bulk))); err != nil {
			return err
		}
	}
	if err := r.rest(ctx); err != nil {
		return err
	}
	began := time.Now()
	for {
		moved, err := r.store.Relay(ctx)
		if err != nil {
			return err
		}
		if moved == 0 {
			break
		}
	}
	return r.report(fmt.Sprintf("3 consumers, payload=%d", r.Payload), "events_per_s", float64(r.FanOut)/time.Since(began).Seconds())
}
