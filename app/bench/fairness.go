package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

const (
	greedy    = 100_000 // deliveries that one organization has ready
	slowSlots = 16
	slowTakes = 200 * time.Millisecond
	quietEach = 100 * time.Millisecond
)

// fairness measures how long the events of a quiet organization take from their
// emission to their receipt, by the database's clock, while another one has more
// ready than a slow handler can do.
func (r *run) fairness(ctx context.Context) error {
	if err := r.reset(ctx, 1); err != nil {
		return err
	}
	busy, err := r.store.CreateOrganization(ctx, actor(), "Busy")
	if err != nil {
		return err
	}
	quiet, err := r.store.CreateOrganization(ctx, actor(), "Quiet")
	if err != nil {
		return err
	}
	if err := r.heap(ctx, busy.ID); err != nil {
		return err
	}
	slow := consumer(consumers[0])
	slow.Concurrency = slowSlots
	var took []time.Duration
	err = r.looping(ctx, r.store, []bus.Handler{handler{slow, wait}}, func(ctx context.Context) error {
		n := max(int(r.Span/quietEach), 1)
		if err := r.emitEach(ctx, quiet.ID, n); err != nil {
			return err
		}
		for len(took) < n {
			if took, err = r.receipts(ctx, quiet.ID); err != nil {
				return err
			}
			if err := wait(ctx, nil); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	params := fmt.Sprintf("%d ready of one organization, handler of %s, %d slots", greedy, slowTakes, slowSlots)
	return r.reportQuantiles(params, took)
}

// wait is a handler that takes a while.
func wait(ctx context.Context, _ *bus.Delivery) error {
	timer := time.NewTimer(slowTakes)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// heap makes one organization's deliveries due, all of one event.
func (r *run) heap(ctx context.Context, org uuid.UUID) error {
	if err := r.emitOneFor(ctx, org, 0); err != nil {
		return err
	}
	if err := r.fill(ctx, 0); err != nil {
		return err
	}
	const heapSQL = `
		insert into delivery (consumer_id, destination, organization_id, seq, event_id, due_at)
		select d.consumer_id, d.destination, d.organization_id, d.seq + n, d.event_id, d.due_at
		  from delivery d cross join generate_series(1, $1::int) n`
	if _, err := r.pool.Exec(ctx, heapSQL, greedy-1); err != nil {
		return fmt.Errorf("pile up deliveries: %w", err)
	}
	if err := r.exec(ctx, "update relay_state set last_seq = (select max(seq) from delivery)"); err != nil {
		return err
	}
	return r.rest(ctx)
}

// emitEach emits n events of an organization in steady steps.
func (r *run) emitEach(ctx context.Context, org uuid.UUID, n int) error {
	tick := time.NewTicker(quietEach)
	defer tick.Stop()
	for i := range n {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := r.emitOneFor(ctx, org, int64(i)); err != nil {
			return err
		}
	}
	return nil
}

// receipts returns how long each finished event of an organization has taken.
func (r *run) receipts(ctx context.Context, org uuid.UUID) (took []time.Duration, err error) {
	err = r.pool.QueryRow(ctx, `
		select coalesce(array_agg(r.settled_at - e.created_at), '{}')
		  from receipt r cross join lateral unnest(r.event_ids) u (id) join event_log e on e.id = u.id
		 where r.organization_id = $1`, org).Scan(&took)
	if err != nil {
		return nil, fmt.Errorf("read receipts: %w", err)
	}
	return took, nil
}
