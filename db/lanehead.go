package db

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
)

// HeadAct is what a person does to the head of a lane.
type HeadAct struct {
	Lane     LaneID
	Delivery uuid.NullUUID // the head that they have seen; any when not valid
	Reason   string
}

const lockHeadSQL = `
	select d.seq, d.event_id, c.name as consumer, d.lease_token is not null as in_hand, d.due_at = 'infinity' as stands, d.attempts::int,
	       coalesce(d.last_error, '') as last_error
	  from delivery d
	  join consumers c on c.id = d.consumer_id
	 where d.consumer_id = @consumer_id and d.destination = @destination and d.organization_id = @org_id and d.lane = @lane
	   and d.seq = lane_head(@org_id, @consumer_id, @destination, @lane)
	   for update of d`

// laneHead is the head of a lane, locked.
type laneHead struct {
	Seq       int64
	EventID   uuid.UUID
	Consumer  string
	InHand    bool
	Stands    bool // its lane is paused
	Attempts  int
	LastError string
}

func (h laneHead) id(a HeadAct) uuid.UUID {
	return bus.DeliveryID(h.EventID, h.Consumer, a.Lane.Destination)
}

const retryHeadSQL = `
	update delivery d
	   set due_at = clock_timestamp(), not_before = null, updated_at = clock_timestamp()
	 where d.consumer_id = @consumer_id and d.destination = @destination and d.organization_id = @org_id and d.lane = @lane and d.seq = @seq`

// RetryHead makes the head of a lane due at once, which spends no attempt, and
// returns its id. Like the others it returns bus.ErrConflict when nothing waits in
// the lane and when the head is in hand or another than the one that was seen, and
// bus.ErrNotFound when there is no such lane. It does so of a paused lane, too.
func (t *OrgTx) RetryHead(ctx context.Context, a HeadAct) (uuid.UUID, error) {
	if err := checkReason(a.Reason); err != nil {
		return uuid.Nil, err
	}
	head, err := t.lockHead(ctx, a)
	if err == nil && head.Stands {
		err = fmt.Errorf("the lane is paused: %w", bus.ErrConflict)
	}
	if err != nil {
		return uuid.Nil, wrap("retry the head of a lane", err)
	}
	return t.act(ctx, "delivery.retried", a, head, retryHeadSQL, named{})
}

const skipHeadSQL = `
	with gone as (
	    delete from delivery d
	     where d.consumer_id = @consumer_id and d.destination = @destination and d.organization_id = @org_id and d.lane = @lane and d.seq = @seq
	    returning d.*
	), thawed as (
	    delete from frozen_body where organization_id = @org_id and delivery_id = @delivery_id
	)
	insert into receipt (organization_id, consumer_id, outcome, reason, first_event_id, last_event_id, event_ids, destinations, attempts)
	select organization_id, consumer_id, 'skipped', @reason, event_id, event_id, array[event_id], array[destination], array[attempts] from gone`

// SkipHead ends the head of a lane as skipped, and the lane goes on.
func (t *OrgTx) SkipHead(ctx context.Context, a HeadAct) (uuid.UUID, error) {
	if err := needReason(a.Reason); err != nil {
		return uuid.Nil, err
	}
	head, err := t.lockHead(ctx, a)
	if err != nil {
		return uuid.Nil, wrap("skip the head of a lane", err)
	}
	return t.act(ctx, "delivery.skipped", a, head, skipHeadSQL, named{"reason": a.Reason, "delivery_id": head.id(a)})
}

const parkHeadSQL = `
	select bury_delivery(d, d.attempts, coalesce(d.last_error, 'not tried yet'), case when d.effect_at is null then 'dead' else 'uncertain' end, @reason)
	  from delivery d
	 where d.consumer_id = @consumer_id and d.destination = @destination and d.organization_id = @org_id and d.lane = @lane and d.seq = @seq`

// ParkHead puts the head of a lane with the dead, or with the uncertain when its
// effect may have happened, for a person to decide about later, and the lane goes
// on.
func (t *OrgTx) ParkHead(ctx context.Context, a HeadAct) (uuid.UUID, error) {
	if err := needReason(a.Reason); err != nil {
		return uuid.Nil, err
	}
	head, err := t.lockHead(ctx, a)
	if err != nil {
		return uuid.Nil, wrap("park the head of a lane", err)
	}
	return t.act(ctx, "delivery.parked", a, head, parkHeadSQL, named{"reason": a.Reason})
}

// act does what sql says to a head that is locked, lets the lane go on and audits
// it.
func (t *OrgTx) act(ctx context.Context, action string, a HeadAct, head laneHead, sql string, args named) (uuid.UUID, error) {
	maps.Copy(args, a.Lane.args(t.org))
	args["seq"] = head.Seq
	_, err := t.tx.Exec(ctx, sql, args)
	if err == nil {
		err = t.reorder(ctx, a.Lane)
	}
	if err != nil {
		return uuid.Nil, wrap(action, err)
	}
	t.due = true
	return head.id(a), t.audit(ctx, auditEntry{
		action: action, resourceType: "delivery", resourceID: head.id(a),
		metadata: map[string]any{
			"event_id": head.EventID, "consumer": head.Consumer, "lane": a.Lane.String(), "old_error": head.LastError,
			"attempts": head.Attempts, "reason": a.Reason,
		},
	})
}

// lockHead returns the head of a lane if it may be acted on.
func (t *OrgTx) lockHead(ctx context.Context, a HeadAct) (laneHead, error) {
	if err := t.holdLanes(ctx); err != nil {
		return laneHead{}, err
	}
	head, err := one[laneHead](ctx, t.tx, lockHeadSQL, a.Lane.args(t.org))
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return head, t.laneGone(ctx, a.Lane)
	case err != nil:
		return head, err
	case head.InHand:
		return head, fmt.Errorf("the head is in hand: %w", bus.ErrConflict)
	case a.Delivery.Valid && a.Delivery.UUID != head.id(a):
		return head, fmt.Errorf("the head is another one by now: %w", bus.ErrConflict)
	}
	return head, nil
}
