package db

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// MaxPage is the largest number of rows a list returns: the API's largest page
// of 200 and one more, which tells that there is another page.
const MaxPage = 201

// EventFilter narrows a list of events; zero fields do not.
type EventFilter struct {
	Type       string
	EntityKind string
	EntityID   uuid.NullUUID
	Status     string     // a value of EventRow.Status
	Since      *time.Time // emitted at or after
	Until      *time.Time // emitted before
	Before     uuid.NullUUID
	Limit      int
	Bare       bool // leaves payload and metadata out
}

// EventRow is an event and what became of it. Status is pending (relayed to
// nobody yet, or work is left), held, dead, uncertain, discarded (nothing is left,
// and a person or a later job gave a delivery up), or done; a fact that nobody reads is done.
type EventRow struct {
	ID         uuid.UUID
	Type       bus.Type
	EntityKind string
	EntityID   uuid.NullUUID
	Payload    json.RawMessage
	Metadata   json.RawMessage
	CreatedAt  time.Time
	Seq        *int64 // nil until relayed
	Status     string
}

const eventColumnsSQL = `
	select e.id, e.event_type as type, e.entity_kind, e.entity_id, e.payload, e.metadata, e.created_at, p.seq,
	       case when exists (select from dead_delivery x where x.organization_id = e.organization_id and x.event_id = e.id and x.state = 'dead') then 'dead'
	            when exists (select from dead_delivery x where x.organization_id = e.organization_id and x.event_id = e.id and x.state = 'uncertain') then 'uncertain'
	            when p.seq is null then 'pending'
	            else coalesce((select case when bool_and(s.enabled is false or c.paused_at is not null or l.lane is not null) then 'held'
	                                 when count(*) > 0 then 'pending' end
	                             from delivery d
	                             join consumers c on c.id = d.consumer_id
	                             left join paused_lane l
	                               on l.organization_id = d.organization_id and l.consumer_id = d.consumer_id and l.destination = d.destination
	                              and l.lane = d.lane
	                             left join webhook_subscriptions s on s.id = d.destination
	                            where d.seq = p.seq),
	                 case when exists (select from dead_delivery x where x.organization_id = e.organization_id and x.event_id = e.id and x.state = 'discarded')
	                        or exists (select from receipt r
	                                    where r.organization_id = e.organization_id and r.outcome = 'discarded' and r.first_event_id = e.id
	                                      and r.last_event_id = e.id and r.destinations[1] = '00000000-0000-0000-0000-000000000000')
	                        or exists (select from discarded_job j where j.event_id = e.id)
	                      then 'discarded' else 'done' end)
	       end as status
	  from event_log e
	  left join event_position p on p.event_id = e.id`

const listEventsSQL = `
	select id, type, entity_kind, entity_id, case when not @bare then payload end as payload,
	       case when not @bare then metadata end as metadata, created_at, seq, status
	  from (` + eventColumnsSQL + `
	         where e.organization_id = @org_id
	           and (@event_type::text = '' or e.event_type = @event_type)
	           and (@entity_kind::text = '' or e.entity_kind = @entity_kind)
	           and (@entity_id::uuid is null or e.entity_id = @entity_id)
	           and (@since::timestamptz is null or e.id >= uuid_v7_floor(greatest(@since, 'epoch')))
	           and (@until::timestamptz is null or e.id < uuid_v7_floor(greatest(@until, 'epoch')))
	           and (@before::uuid is null or e.id < @before)
	         order by e.id desc) e
	 where @status::text = '' or status = @status
	 limit @limit`

// Events lists events, newest first.
func (t *OrgTx) Events(ctx context.Context, f EventFilter) ([]EventRow, error) {
	rows, err := collect[EventRow](ctx, t.tx, listEventsSQL, named{
		"org_id": t.org, "event_type": f.Type, "entity_kind": f.EntityKind, "entity_id": f.EntityID,
		"since": f.Since, "until": f.Until, "before": f.Before, "status": f.Status, "limit": pageLimit(f.Limit), "bare": f.Bare,
	})
	return rows, wrap("list events", err)
}

const showEventSQL = eventColumnsSQL + `
	 where e.organization_id = @org_id and e.id = @id`

// Event returns one event, or bus.ErrNotFound.
func (t *OrgTx) Event(ctx context.Context, id uuid.UUID) (EventRow, error) {
	row, err := one[EventRow](ctx, t.tx, showEventSQL, named{"org_id": t.org, "id": id})
	return row, wrap("load event", err)
}

// DeliveryRow is what became of an event for one consumer and destination.
// Status is pending, processing, held, dead, uncertain, done, skipped or discarded.
type DeliveryRow struct {
	ID            uuid.UUID `db:"-"`
	Consumer      string
	Destination   uuid.UUID
	URL           *string // of a webhook, also of a deleted one
	Status        string
	Attempts      int
	MaxAttempts   int
	LastError     *string
	NextAttemptAt *time.Time
	UpdatedAt     time.Time
}

// The unfinished, the dead and the receipts together are all deliveries there
// are. A dead one that was replayed is found among the others again.
const eventDeliveriesSQL = `
	select c.name as consumer, x.destination, w.url, x.status, x.attempts::int, c.max_attempts::int, x.last_error, x.next_attempt_at, x.updated_at
	  from (
	    select d.consumer_id, d.destination,
	           case when d.lease_token is not null then 'processing' when s.enabled is false or h.paused_at is not null or l.lane is not null then 'held'
	                else 'pending' end as status,
	           d.attempts, d.last_error, case when d.lease_token is null then nullif(d.due_at, 'infinity') end as next_attempt_at, d.updated_at
	      from event_position p
	      join delivery d on d.seq = p.seq
	      join consumers h on h.id = d.consumer_id
	      left join paused_lane l
	        on l.organization_id = d.organization_id and l.consumer_id = d.consumer_id and l.destination = d.destination and l.lane = d.lane
	      left join webhook_subscriptions s on s.id = d.destination
	     where p.event_id = @id and d.organization_id = @org_id
	    union all
	    select consumer_id, destination, state, attempts, last_error, null, coalesce(resolved_at, died_at)
	      from dead_delivery
	     where organization_id = @org_id and event_id = @id and state in ('dead', 'uncertain', 'discarded')
	    union all
	    select r.consumer_id, u.destination, r.outcome, u.attempts, r.reason, null, r.settled_at
	      from receipt r
	     cross join lateral unnest(r.event_ids, r.destinations, r.attempts) as u (event_id, destination, attempts)
	     where r.organization_id = @org_id and r.first_event_id <= @id and r.last_event_id >= @id and u.event_id = @id
	  ) x
	  join consumers c on c.id = x.consumer_id
	  left join webhook_subscriptions w on w.id = x.destination
	 order by c.name, x.destination`

// EventDeliveries lists the deliveries of one event.
func (t *OrgTx) EventDeliveries(ctx context.Context, id uuid.UUID) ([]DeliveryRow, error) {
	rows, err := collect[DeliveryRow](ctx, t.tx, eventDeliveriesSQL, named{"org_id": t.org, "id": id})
	if err != nil {
		return nil, wrap("list deliveries", err)
	}
	for i := range rows {
		rows[i].ID = bus.DeliveryID(id, rows[i].Consumer, rows[i].Destination)
	}
	return rows, nil
}
