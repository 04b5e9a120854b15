package db

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// LaneID names a lane of an organization: what one consumer or subscription
// handles one at a time. The zero LaneID names none.
type LaneID struct {
	ConsumerID  int16
	Destination uuid.UUID
	Lane        int64
}

const (
	laneIDVersion = 1
	laneIDSize    = 1 + 2 + 16 + 8
)

// String is the id as clients hold it, which is opaque to them.
func (id LaneID) String() string {
	b := make([]byte, 0, laneIDSize)
	b = append(b, laneIDVersion)
	b = binary.BigEndian.AppendUint16(b, uint16(id.ConsumerID)) //nolint:gosec // taken back the same way
	b = append(b, id.Destination[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(id.Lane)) //nolint:gosec // the same
	return base64.RawURLEncoding.EncodeToString(b)
}

// ParseLaneID reads what String has written and reports whether it is that.
func ParseLaneID(text string) (id LaneID, ok bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) != laneIDSize || b[0] != laneIDVersion {
		return LaneID{}, false
	}
	id = LaneID{
		ConsumerID:  int16(binary.BigEndian.Uint16(b[1:])), //nolint:gosec // as it was written
		Destination: uuid.UUID(b[3:19]),
		Lane:        int64(binary.BigEndian.Uint64(b[19:])), //nolint:gosec // the same
	}
	return id, id.Lane != 0
}

// args are the id's, of an organization.
func (id LaneID) args(org uuid.UUID) named {
	return named{"org_id": org, "consumer_id": id.ConsumerID, "destination": id.Destination, "lane": id.Lane}
}

// Lane is a lane that has work or is paused. Its head is the delivery in hand, or
// else the next; the head's fields are zero when nothing waits.
type Lane struct {
	LaneID
	Consumer      string
	Ordering      bus.Ordering
	OrderKey      *string // what its events have in common, when it is ordered by key and has a head
	Waiting       int     // unfinished deliveries, the head included; LaneCap and one means more
	EventID       uuid.NullUUID
	EventType     *string
	Status        *string // pending, processing or held
	Attempts      int
	MaxAttempts   int
	LastError     *string
	NextAttemptAt *time.Time
	PausedAt      *time.Time
	PausedBy      *string
	PauseReason   *string
}

// HeadID is the id of the head's delivery, when there is one.
func (l Lane) HeadID() uuid.NullUUID {
	if !l.EventID.Valid {
		return uuid.NullUUID{}
	}
	return uuid.NullUUID{UUID: bus.DeliveryID(l.EventID.UUID, l.Consumer, l.Destination), Valid: true}
}

// LaneCap is how far the deliveries of a lane are counted.
const LaneCap = 1000

// LaneFilter narrows a list of lanes; zero fields do not.
type LaneFilter struct {
	Consumer string
	Paused   *bool
	After    LaneID
	Limit    int
}

// Each lane with work has one current delivery, unless it is paused: neither
// index grows with what waits. What is behind is only counted, up to a bound.
const listLanesSQL = `
	with page as materialized (
	    select l.consumer_id, l.destination, l.lane
	      from (
	        (select d.consumer_id, d.destination, d.lane
	           from delivery d
	          where d.organization_id = @org_id and d.lane <> 0 and d.due_at < 'infinity'
	            and (@consumer_id::smallint = 0 or d.consumer_id = @consumer_id)
	            and (d.consumer_id, d.destination, d.lane) > (@after_consumer::smallint, @after_destination::uuid, @after_lane::bigint)
	            and (@paused::boolean is null or not @paused and not exists (
	                select from paused_lane p
	                 where p.organization_id = d.organization_id and p.consumer_id = d.consumer_id and p.destination = d.destination and p.lane = d.lane))
	          order by d.consumer_id, d.destination, d.lane
	          limit @limit)
	        union
	        (select p.consumer_id, p.destination, p.lane
	           from paused_lane p
	          where p.organization_id = @org_id
	            and (@consumer_id::smallint = 0 or p.consumer_id = @consumer_id)
	            and (p.consumer_id, p.destination, p.lane) > (@after_consumer::smallint, @after_destination::uuid, @after_lane::bigint)
	            and coalesce(@paused::boolean, true)
	          order by p.consumer_id, p.destination, p.lane
	          limit @limit)
	      ) l
	     order by l.consumer_id, l.destination, l.lane
	     limit @limit
	)
	select l.consumer_id, l.destination, l.lane, c.name as consumer, case l.lane when 1 then 'strict' else 'key' end as ordering,
	       case when l.lane <> 1 then coalesce(e.metadata ->> 'order_key', e.entity_kind || ':' || e.entity_id) end as order_key,
	       (select count(*) from (
	           select from delivery w
	            where w.consumer_id = l.consumer_id and w.destination = l.destination and w.organization_id = @org_id and w.lane = l.lane and w.lane <> 0
	            limit @cap) w)::int as waiting,
	       d.event_id, e.event_type,
	       case when d.lease_token is not null then 'processing'
	            when p.lane is not null or c.paused_at is not null or s.enabled is false then 'held'
	            when d.seq is not null then 'pending' end as status,
	       coalesce(d.attempts, 0)::int as attempts, c.max_attempts::int, d.last_error,
	       case when d.lease_token is null then nullif(d.due_at, 'infinity') end as next_attempt_at,
	       p.paused_at, p.actor_name as paused_by, p.reason as pause_reason
	  from page l
	  join consumers c on c.id = l.consumer_id
	  left join paused_lane p
	    on p.organization_id = @org_id and p.consumer_id = l.consumer_id and p.destination = l.destination and p.lane = l.lane
	  left join webhook_subscriptions s on s.id = l.destination
	 cross join lateral (select lane_head(@org_id, l.consumer_id, l.destination, l.lane) as seq) h
	  left join delivery d
	    on d.consumer_id = l.consumer_id and d.destination = l.destination and d.organization_id = @org_id and d.lane = l.lane and d.seq = h.seq
	  left join event_log e on e.id = d.event_id and e.organization_id = @org_id
	 order by l.consumer_id, l.destination, l.lane`

// Lanes lists the lanes that have work or are paused.
func (t *OrgTx) Lanes(ctx context.Context, f LaneFilter) ([]Lane, error) {
	// Planned for these values: a filter that is empty vanishes from the plan.
	if _, err := t.tx.Exec(ctx, planAnewSQL); err != nil {
		return nil, wrap("list lanes", err)
	}
	var consumer int16
	if f.Consumer != "" {
		if err := scan(ctx, t.tx, consumerIDSQL, named{"name": f.Consumer}, &consumer); err != nil {
			return nil, wrap("list lanes", err)
		}
	}
	lanes, err := collect[Lane](ctx, t.tx, listLanesSQL, named{
		"org_id": t.org, "consumer_id": consumer, "paused": f.Paused, "limit": pageLimit(f.Limit), "cap": LaneCap + 1,
		"after_consumer": f.After.ConsumerID, "after_destination": f.After.Destination, "after_lane": afterLane(f.After),
	})
	return lanes, wrap("list lanes", err)
}

// afterLane is before all lanes when the list starts at its beginning.
func afterLane(id LaneID) int64 {
	if id == (LaneID{}) {
		return -1 << 63
	}
	return id.Lane
}

const holdLanesSQL = `select hold_lanes()`

// holdLanes makes whoever adds to lanes, or acts on them by hand, wait until the
// transaction ends.
func (t *OrgTx) holdLanes(ctx context.Context) error {
	_, err := t.tx.Exec(ctx, holdLanesSQL)
	return err
}

const reorderOneLaneSQL = `
	select reorder_lanes(array[@consumer_id::smallint], array[@destination::uuid], array[@org_id::uuid], array[@lane::bigint])`

func (t *OrgTx) reorder(ctx context.Context, id LaneID) error {
	_, err := t.tx.Exec(ctx, reorderOneLaneSQL, id.args(t.org))
	return err
}

// A lane that is empty for the moment is one all the same, of a reader that is
// in order.
const laneExistsSQL = `
	select exists (
	        select from delivery
	         where consumer_id = @consumer_id and destination = @destination and organization_id = @org_id and lane = @lane)
	    or exists (
	        select from paused_lane
	         where organization_id = @org_id and consumer_id = @consumer_id and destination = @destination and lane = @lane)
	    or exists (
	        select from consumers c
	          left join webhook_subscriptions s on s.organization_id = @org_id and s.id = @destination and s.deleted_at is null
	         where c.id = @consumer_id and (s.id is not null) = (c.name = @webhooks)
	           and (s.id is not null or @destination = '00000000-0000-0000-0000-000000000000')
	           and case when @lane = 1 then 'strict' else 'key' end = coalesce(s.ordering, c.ordering))`

// laneGone is bus.ErrConflict for a lane that exists, and else bus.ErrNotFound.
func (t *OrgTx) laneGone(ctx context.Context, id LaneID) error {
	args := id.args(t.org)
	args["webhooks"] = bus.WebhookDispatch
	var exists bool
	if err := scan(ctx, t.tx, laneExistsSQL, args, &exists); err != nil {
		return err
	}
	if exists {
		return bus.ErrConflict
	}
	return bus.ErrNotFound
}

const pauseLaneSQL = `
	insert into paused_lane (organization_id, consumer_id, destination, lane, reason, actor_name)
	values (@org_id, @consumer_id, @destination, @lane, @reason, @actor_name)
	on conflict do nothing`

// PauseLane keeps the deliveries of a lane from being claimed until it is resumed.
// What is in hand comes to its end. It returns bus.ErrConflict when the lane is
// paused already and bus.ErrNotFound when there is no such lane.
func (t *OrgTx) PauseLane(ctx context.Context, id LaneID, reason string) error {
	if err := needReason(reason); err != nil {
		return err
	}
	if err := t.laneGone(ctx, id); !errors.Is(err, bus.ErrConflict) {
		return wrap("pause lane", err)
	}
	args := id.args(t.org)
	args["reason"], args["actor_name"] = reason, t.actor.Name
	tag, err := t.tx.Exec(ctx, pauseLaneSQL, args)
	if err == nil && tag.RowsAffected() == 0 {
		err = bus.ErrConflict
	}
	if err == nil {
		err = t.reorder(ctx, id)
	}
	if err != nil {
		return wrap("pause lane", err)
	}
	return t.auditLane(ctx, "lane.paused", id, reason)
}

const resumeLaneSQL = `
	delete from paused_lane
	 where organization_id = @org_id and consumer_id = @consumer_id and destination = @destination and lane = @lane`

// ResumeLane lets a paused lane go on. It returns bus.ErrConflict when the lane is
// not paused and bus.ErrNotFound when there is no such lane.
func (t *OrgTx) ResumeLane(ctx context.Context, id LaneID, reason string) error {
	if err := checkReason(reason); err != nil {
		return err
	}
	tag, err := t.tx.Exec(ctx, resumeLaneSQL, id.args(t.org))
	if err == nil && tag.RowsAffected() == 0 {
		err = t.laneGone(ctx, id)
	}
	if err == nil {
		err = t.reorder(ctx, id)
	}
	if err != nil {
		return wrap("resume lane", err)
	}
	t.due = true
	return t.auditLane(ctx, "lane.resumed", id, reason)
}

const consumerNameSQL = `select name from consumers where id = @id`

// auditLane audits what was done to a lane as a whole.
func (t *OrgTx) auditLane(ctx context.Context, action string, id LaneID, reason string) error {
	var consumer string
	if err := scan(ctx, t.tx, consumerNameSQL, named{"id": id.ConsumerID}, &consumer); err != nil {
		return wrap(action, err)
	}
	return t.audit(ctx, auditEntry{
		action: action, resourceType: "lane",
		metadata: map[string]any{"lane": id.String(), "consumer": consumer, "destination": id.Destination, "reason": reason},
	})
}
