package db

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// DeadDelivery is a delivery that waits for a person, with a copy of its event.
type DeadDelivery struct {
	ID             uuid.UUID
	Consumer       string
	Destination    uuid.UUID
	EventID        uuid.UUID
	Type           bus.Type
	EntityKind     string
	EntityID       uuid.NullUUID
	Payload        json.RawMessage
	Attempts       int
	MaxAttempts    int
	LastError      string
	EventCreatedAt time.Time
	DiedAt         time.Time
}

// DeadFilter narrows a list of dead deliveries; zero fields do not. A page
// starts after the row of BeforeAt and BeforeID.
type DeadFilter struct {
	Type       string
	EntityKind string
	Consumer   string
	Since      *time.Time // died at or after
	Until      *time.Time // died before
	BeforeAt   *time.Time
	BeforeID   uuid.NullUUID
	Limit      int
}

const listDeadSQL = `
	select x.delivery_id as id, c.name as consumer, x.destination, x.event_id, x.event_type as type, x.entity_kind, x.entity_id, x.payload,
	       x.attempts::int, c.max_attempts::int, x.last_error, x.event_created_at, x.died_at
	  from dead_delivery x
	  join consumers c on c.id = x.consumer_id
	 where x.organization_id = @org_id
	   and x.state = 'dead'
	   and (@event_type::text = '' or x.event_type = @event_type)
	   and (@entity_kind::text = '' or x.entity_kind = @entity_kind)
	   and (@consumer::text = '' or c.name = @consumer)
	   and (@since::timestamptz is null or x.died_at >= @since)
	   and (@until::timestamptz is null or x.died_at < @until)
	   and (@before_at::timestamptz is null or (x.died_at, x.delivery_id) < (@before_at, @before_id::uuid))
	 order by x.died_at desc, x.delivery_id desc
	 limit @limit`

// DeadDeliveries lists what is dead, the latest death first.
func (t *OrgTx) DeadDeliveries(ctx context.Context, f DeadFilter) ([]DeadDelivery, error) {
	rows, err := collect[DeadDelivery](ctx, t.tx, listDeadSQL, named{
		"org_id": t.org, "event_type": f.Type, "entity_kind": f.EntityKind, "consumer": f.Consumer,
		"since": f.Since, "until": f.Until, "before_at": f.BeforeAt, "before_id": f.BeforeID, "limit": pageLimit(f.Limit),
	})
	return rows, wrap("list dead deliveries", err)
}

// resolved is what replaying or discarding leaves to be audited.
type resolved struct {
	EventID   uuid.UUID
	Consumer  string
	LastError string
	Attempts  int
}

const replayDeadSQL = `
	with again as (
	    update dead_delivery
	       set state = 'replayed', resolved_at = clock_timestamp(), reason = nullif(@reason, '')
	     where organization_id = @org_id and delivery_id = @id and state = 'dead'
	       and (destination = '00000000-0000-0000-0000-000000000000' or consumer_id <> (select id from consumers where name = @webhooks)
	            or exists (select from webhook_subscriptions s where s.id = destination and s.deleted_at is null))
	    returning *
	), pending as (
	    insert into delivery (consumer_id, destination, organization_id, lane, seq, event_id, due_at, earlier_attempts, last_error)
	    select consumer_id, destination, organization_id, lane, seq, event_id, clock_timestamp(), attempts + earlier_attempts, last_error
	      from again
	)
	select a.event_id, c.name as consumer, a.last_error, a.attempts::int from again a join consumers c on c.id = a.consumer_id`

// Replay makes a dead delivery due again with a fresh budget of attempts, under
// the same id. Deliveries of the event to others are not touched. It returns
// bus.ErrConflict when the delivery is not dead any more or its subscription is
// deleted, and bus.ErrNotFound when it never was.
func (t *OrgTx) Replay(ctx context.Context, id uuid.UUID, reason string) error {
	args := named{"org_id": t.org, "id": id, "reason": reason, "webhooks": bus.WebhookDispatch}
	if err := t.resolve(ctx, replayDeadSQL, "delivery.replayed", id, args); err != nil {
		return err
	}
	t.due = true
	return nil
}

const discardDeadSQL = `
	with gone as (
	    update dead_delivery
	       set state = 'discarded', resolved_at = clock_timestamp(), reason = @reason
	     where organization_id = @org_id and delivery_id = @id and state = 'dead'
	    returning *
	), thawed as (
	    delete from frozen_body b using gone g where b.delivery_id = g.delivery_id
	)
	select g.event_id, c.name as consumer, g.last_error, g.attempts::int from gone g join consumers c on c.id = g.consumer_id`

// Discard ends a dead delivery for good; the row stays with the reason.
func (t *OrgTx) Discard(ctx context.Context, id uuid.UUID, reason string) error {
	if reason == "" {
		return bus.Invalid("reason", "is required")
	}
	return t.resolve(ctx, discardDeadSQL, "delivery.discarded", id, named{"org_id": t.org, "id": id, "reason": reason})
}

const deadExistsSQL = `select exists (select from dead_delivery where organization_id = @org_id and delivery_id = @id)`

// resolve runs one person's decision and audits it in the same transaction.
func (t *OrgTx) resolve(ctx context.Context, sql, action string, id uuid.UUID, args named) error {
	reason := fmt.Sprint(args["reason"])
	if utf8.RuneCountInString(reason) > 500 {
		return bus.Invalid("reason", "must have at most 500 characters")
	}
	done, err := one[resolved](ctx, t.tx, sql, args)
	if err != nil && translate(err) != bus.ErrNotFound { //nolint:errorlint // translate returns the sentinel bare
		return wrap(action, err)
	}
	if err != nil {
		var was bool
		if err := t.tx.QueryRow(ctx, deadExistsSQL, named{"org_id": t.org, "id": id}).Scan(&was); err != nil {
			return wrap(action, err)
		}
		if was {
			return fmt.Errorf("%s: the delivery is not dead, or its destination is gone: %w", action, bus.ErrConflict)
		}
		return fmt.Errorf("%s: %w", action, bus.ErrNotFound)
	}
	return t.audit(ctx, auditEntry{
		action: action, resourceType: "delivery", resourceID: id,
		metadata: map[string]any{
			"event_id": done.EventID, "consumer": done.Consumer, "old_error": done.LastError,
			"attempts": done.Attempts, "reason": reason,
		},
	})
}
