package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deskcomm/deskcomm/bus"
)

// latency measures, at a steady rate, how long it takes from the return of an
// event's commit to the start of its handler.
func (r *run) latency(ctx context.Context) error {
	if err := r.reset(ctx, 1); err != nil {
		return err
	}
	total := int(r.Span.Seconds() * float64(r.Rate))
	committed, started := make([]atomic.Int64, total), make([]atomic.Int64, total)
	calls := make([]time.Duration, total)
	list := readers(1, func(_ context.Context, d *bus.Delivery) error {
		now := time.Now().UnixNano()
		var body struct {
			ID int `json:"id"`
		}
		err := json.Unmarshal(d.Event.Payload, &body)
		started[body.ID].Store(now)
		return err
	})
	_, err := r.working(ctx, list, total, func(ctx context.Context) error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(64)
		pace := time.NewTimer(0)
		defer pace.Stop()
		began := time.Now()
		for i := range total {
			pace.Reset(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(r.Rate))))
			select {
			case <-pace.C:
			case <-ctx.Done():
				return g.Wait()
			}
			g.Go(func() error {
				at := time.Now()
				err := r.emitOne(ctx, int64(i))
				committed[i].Store(time.Now().UnixNano())
				calls[i] = time.Since(at)
				return err
			})
		}
		return g.Wait()
	})
	if err != nil {
		return err
	}
	waits := make([]time.Duration, total)
	for i := range waits {
		waits[i] = time.Duration(max(started[i].Load()-committed[i].Load(), 0))
	}
	params := fmt.Sprintf("rate=%d organizations=%d payload=%d", r.Rate, r.Organizations, r.Payload)
	if err := r.reportQuantiles(params, waits); err != nil {
		return err
	}
	return r.report(params, "insert_p50_ms", quantile(calls, 0.5))
}

func (r *run) reportQuantiles(params string, waits []time.Duration) error {
	for _, q := range []struct {
		metric string
		at     float64
	}{{"p50_ms", 0.5}, {"p95_ms", 0.95}, {"p99_ms", 0.99}, {"max_ms", 1}} {
		if err := r.report(params, q.metric, quantile(waits, q.at)); err != nil {
			return err
		}
	}
	return nil
}

// quantile is in milliseconds.
func quantile(list []time.Duration, q float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	i := int(math.Ceil(q*float64(len(sorted)))) - 1
	return float64(sorted[min(max(i, 0), len(sorted)-1)]) / float64(time.Millisecond)
}
