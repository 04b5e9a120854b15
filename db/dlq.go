package db

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// DeadDelivery is a delivery that died or whose effect may have happened, with a
// copy of its event. It waits for a person while State is dead or uncertain;
// replayed, confirmed and discarded are what one decided.
type DeadDelivery struct {
	ID             uuid.UUID
	OrgID          uuid.UUID
	Organization   string
	Consumer       string
	Destination    uuid.UUID
	DestinationURL *string // of a webhook, also of a deleted one
	EventID        uuid.UUID
	Type           bus.Type
	EntityKind     string
	EntityID       uuid.NullUUID
	Payload        json.RawMessage
	Attempts       int
	MaxAttempts    int
	LastError      string
	EventCreatedAt time.Time
	State          string
	Reason         *string
	DiedAt         time.Time
	ResolvedAt     *time.Time
}

// DeadFilter narrows a list of dead deliveries; zero fields do not. A page
// starts after the row of BeforeAt and BeforeID.
type DeadFilter struct {
	Type       string
	EntityKind string
	Consumer   string
	State      string     // dead or uncertain; both when empty
	Since      *time.Time // died at or after
	Until      *time.Time // died before
	BeforeAt   *time.Time
	BeforeID   uuid.NullUUID
	AfterAt    *time.Time // only what died after the row of AfterAt and AfterID
	AfterID    uuid.NullUUID
	Limit      int
	Bare       bool // leaves the payloads out
}

const consumerIDSQL = `select coalesce((select id from consumers where name = @name), -1)`

// args are the filter's, with the id of the consumer: the planner must see which it
// is to know whether it is rare. One that does not exist matches nothing.
func (f DeadFilter) args(ctx context.Context, c conn) (named, error) {
	var consumer int16
	if f.Consumer != "" {
		if err := scan(ctx, c, consumerIDSQL, named{"name": f.Consumer}, &consumer); err != nil {
			return nil, err
		}
	}
	return named{
		"event_type": f.Type, "entity_kind": f.EntityKind, "consumer_id": consumer, "state": f.State, "since": f.Since, "until": f.Until,
		"before_at": f.BeforeAt, "before_id": f.BeforeID, "after_at": f.AfterAt, "after_id": f.AfterID,
	}, nil
}

// list runs a statement that lists, with args beside those of the filter.
func (f DeadFilter) list(ctx context.Context, c conn, sql string, more named) ([]DeadDelivery, error) {
	args, err := f.plan(ctx, c, more)
	if err != nil {
		return nil, err
	}
	args["limit"], args["bare"] = pageLimit(f.Limit), f.Bare
	return collect[DeadDelivery](ctx, c, sql, args)
}

// count runs a statement that counts up to CountCap and one, on whatever page the
// list is.
func (f DeadFilter) count(ctx context.Context, c conn, sql string, more named) (n int, err error) {
	f.BeforeAt, f.BeforeID = nil, uuid.NullUUID{}
	args, err := f.plan(ctx, c, more)
	if err != nil {
		return 0, err
	}
	args["limit"] = CountCap + 1
	return n, scan(ctx, c, sql, args, &n)
}

const planAnewSQL = `select set_config('plan_cache_mode', 'force_custom_plan', true)`

// plan makes the transaction plan for these values: what is empty vanishes from the
// plan, and each filter has its index.
func (f DeadFilter) plan(ctx context.Context, c conn, more named) (named, error) {
	if _, err := c.Exec(ctx, planAnewSQL); err != nil {
		return nil, err
	}
	args, err := f.args(ctx, c)
	maps.Copy(args, more)
	return args, err
}

const deadColumnsSQL = `
	select x.delivery_id as id, x.organization_id as org_id, o.name as organization, c.name as consumer, x.destination,
	       s.url as destination_url, x.event_id, x.event_type as type, x.entity_kind, x.entity_id,
	       case when not @bare then x.payload end as payload, x.attempts::int,
	       c.max_attempts::int, x.last_error, x.event_created_at, x.state, x.reason, x.died_at, x.resolved_at
	  from dead_delivery x
	  join consumers c on c.id = x.consumer_id
	  join organizations o on o.id = x.organization_id
	  left join webhook_subscriptions s on s.id = x.destination`

const filterDeadSQL = `
	select x.delivery_id
	  from dead_delivery x
	 where x.state in ('dead', 'uncertain')
	   and (@state::text = '' or x.state = @state)
	   and (@event_type::text = '' or x.event_type = @event_type)
	   and (@entity_kind::text = '' or x.entity_kind = @entity_kind)
	   and (@consumer_id::smallint = 0 or x.consumer_id = @consumer_id)
	   and (@since::timestamptz is null or x.died_at >= @since)
	   and (@until::timestamptz is null or x.died_at < @until)
	   and (@before_at::timestamptz is null or (x.died_at, x.delivery_id) < (@before_at, @before_id::uuid))
	   and (@after_at::timestamptz is null or (x.died_at, x.delivery_id) > (@after_at, @after_id::uuid))`

const pageOfDeadSQL = filterDeadSQL + `
	   and x.organization_id = @org_id
	 order by x.died_at desc, x.delivery_id desc
	 limit @limit`

const listDeadSQL = `with page as (` + pageOfDeadSQL + `)` + deadColumnsSQL + `
	  join page on page.delivery_id = x.delivery_id
	 where x.organization_id = @org_id
	 order by x.died_at desc, x.delivery_id desc`

// DeadDeliveries lists what is dead or uncertain, the latest first.
func (t *OrgTx) DeadDeliveries(ctx context.Context, f DeadFilter) ([]DeadDelivery, error) {
	rows, err := f.list(ctx, t.tx, listDeadSQL, named{"org_id": t.org})
	return rows, wrap("list dead deliveries", err)
}

// CountCap is how far lists are counted: counting all of a large one would cost
// more than the page that shows the number.
const CountCap = 10000

const countDeadSQL = `select count(*) from (` + pageOfDeadSQL + `) x`

// CountDead counts what is dead or uncertain, up to CountCap; CountCap and one means more.
func (t *OrgTx) CountDead(ctx context.Context, f DeadFilter) (int, error) {
	n, err := f.count(ctx, t.tx, countDeadSQL, named{"org_id": t.org})
	return n, wrap("count dead deliveries", err)
}

const showDeadSQL = deadColumnsSQL + `
	 where x.organization_id = @org_id and x.delivery_id = any(@ids)
	 order by x.died_at desc, x.delivery_id desc`

// DeadDelivery returns a delivery that has ever died, whatever became of it since,
// or bus.ErrNotFound.
func (t *OrgTx) DeadDelivery(ctx context.Context, id uuid.UUID) (DeadDelivery, error) {
	row, err := one[DeadDelivery](ctx, t.tx, showDeadSQL, named{"org_id": t.org, "ids": []uuid.UUID{id}, "bare": false})
	return row, wrap("load dead delivery", err)
}

// DeadByID returns those of the deliveries that have ever died, without their
// payloads, the latest death first.
func (t *OrgTx) DeadByID(ctx context.Context, ids ...uuid.UUID) ([]DeadDelivery, error) {
	rows, err := collect[DeadDelivery](ctx, t.tx, showDeadSQL, named{"org_id": t.org, "ids": ids, "bare": true})
	return rows, wrap("load dead deliveries", err)
}

// deadNamesSQL hops from one value to the next by the index, so that its cost is
// that of the values and not of the rows.
const deadNamesSQL = `
	with recursive types as (
	    select min(event_type) as v from dead_delivery where organization_id = @org_id and state in ('dead', 'uncertain')
	    union all
	    select (select min(event_type) from dead_delivery where organization_id = @org_id and state in ('dead', 'uncertain') and event_type > types.v)
	      from types where types.v is not null
	), kinds as (
	    select min(entity_kind) as v from dead_delivery where organization_id = @org_id and state in ('dead', 'uncertain')
	    union all
	    select (select min(entity_kind) from dead_delivery where organization_id = @org_id and state in ('dead', 'uncertain') and entity_kind > kinds.v)
	      from kinds where kinds.v is not null
	)
	select array(select v from types where v is not null limit 500) as types,
	       array(select v from kinds where v is not null limit 500) as kinds,
	       array(select name from consumers order by name) as consumers`

// DeadNames are the values that the filters of dead deliveries can have.
type DeadNames struct {
	Types     []string
	Kinds     []string
	Consumers []string
}

// DeadNames returns what there is to filter dead deliveries by.
func (t *OrgTx) DeadNames(ctx context.Context) (DeadNames, error) {
	names, err := one[DeadNames](ctx, t.tx, deadNamesSQL, named{"org_id": t.org})
	return names, wrap("list names of dead deliveries", err)
}

// resolved is what a decision leaves to be audited.
type resolved struct {
	State     string // before it
	EventID   uuid.UUID
	Consumer  string
	LastError string
	Attempts  int
}

const replayDeadSQL = `
	with was as (
	    select delivery_id, state from dead_delivery
	     where organization_id = @org_id and delivery_id = @id and state in ('dead', 'uncertain')
	       for update
	), again as (
	    update dead_delivery d
	       set state = 'replayed', resolved_at = clock_timestamp(), reason = nullif(@reason, '')
	      from was
	     where d.organization_id = @org_id and d.delivery_id = was.delivery_id
	       and (destination = '00000000-0000-0000-0000-000000000000' or consumer_id <> (select id from consumers where name = @webhooks)
	            or exists (select from webhook_subscriptions s where s.id = destination and s.deleted_at is null))
	    returning d.*, was.state as old_state
	), pending as (
	    insert into delivery (consumer_id, destination, organization_id, lane, seq, event_id, due_at, earlier_attempts, last_error, interactive)
	    select consumer_id, destination, organization_id, lane, seq, event_id, case when lane = 0 then clock_timestamp() else 'infinity' end,
	           attempts + earlier_attempts, last_error, is_interactive(event_type)
	      from again
	)
	select a.old_state as state, a.event_id, c.name as consumer, a.last_error, a.attempts::int from again a join consumers c on c.id = a.consumer_id`

const reorderLaneSQL = `
	select reorder_lanes(array[consumer_id], array[destination], array[organization_id], array[lane])
	  from dead_delivery
	 where organization_id = @org_id and delivery_id = @id`

// Replay makes a dead or uncertain delivery due again with a fresh budget of
// attempts, under the same id and as the next of its lane; the effect of an uncertain one may happen twice.
// Deliveries of the event to others are not touched. It returns bus.ErrConflict
// when the delivery does not wait for a person any more or its subscription is
// deleted, and bus.ErrNotFound when it never did.
func (t *OrgTx) Replay(ctx context.Context, id uuid.UUID, reason string) error {
	args := named{"org_id": t.org, "id": id, "reason": reason, "webhooks": bus.WebhookDispatch}
	if err := t.resolve(ctx, replayDeadSQL, "delivery.replayed", id, args); err != nil {
		return err
	}
	if _, err := t.tx.Exec(ctx, reorderLaneSQL, named{"org_id": t.org, "id": id}); err != nil {
		return wrap("put a delivery back into its lane", err)
	}
	t.due = true
	return nil
}

const discardDeadSQL = `
	with was as (
	    select delivery_id, state from dead_delivery
	     where organization_id = @org_id and delivery_id = @id and state in ('dead', 'uncertain')
	       for update
	), gone as (
	    update dead_delivery d
	       set state = 'discarded', resolved_at = clock_timestamp(), reason = @reason
	      from was
	     where d.organization_id = @org_id and d.delivery_id = was.delivery_id
	    returning d.*, was.state as old_state
	), thawed as (
	    delete from frozen_body b using gone g where b.delivery_id = g.delivery_id
	)
	select g.old_state as state, g.event_id, c.name as consumer, g.last_error, g.attempts::int from gone g join consumers c on c.id = g.consumer_id`

// Discard ends a dead or uncertain delivery for good; the row stays with the reason.
func (t *OrgTx) Discard(ctx context.Context, id uuid.UUID, reason string) error {
	if err := needReason(reason); err != nil {
		return err
	}
	return t.resolve(ctx, discardDeadSQL, "delivery.discarded", id, named{"org_id": t.org, "id": id, "reason": reason})
}

const confirmUncertainSQL = `
	with done as (
	    update dead_delivery
	       set state = 'confirmed', resolved_at = clock_timestamp(), reason = nullif(@reason, '')
	     where organization_id = @org_id and delivery_id = @id and state = 'uncertain'
	    returning *
	), receipts as (
	    insert into receipt (organization_id, consumer_id, outcome, first_event_id, last_event_id, event_ids, destinations, attempts)
	    select organization_id, consumer_id, 'done', event_id, event_id, array[event_id], array[destination], array[attempts] from done
	), thawed as (
	    delete from frozen_body b using done d where b.delivery_id = d.delivery_id
	)
	select 'uncertain' as state, d.event_id, c.name as consumer, d.last_error, d.attempts::int from done d join consumers c on c.id = d.consumer_id`

// ConfirmDone ends an uncertain delivery whose effect has happened: it is done. It
// returns bus.ErrConflict when the delivery is not uncertain.
func (t *OrgTx) ConfirmDone(ctx context.Context, id uuid.UUID, reason string) error {
	return t.resolve(ctx, confirmUncertainSQL, "delivery.confirmed", id, named{"org_id": t.org, "id": id, "reason": reason})
}

const deadExistsSQL = `select exists (select from dead_delivery where organization_id = @org_id and delivery_id = @id)`

// checkReason checks what a person gives as a reason for what they do.
func checkReason(reason string) error {
	if !utf8.ValidString(reason) || strings.ContainsRune(reason, 0) {
		return bus.Invalid("reason", "must be text")
	}
	if utf8.RuneCountInString(reason) > 500 {
		return bus.Invalid("reason", "must have at most 500 characters")
	}
	return nil
}

// needReason is the same of a reason that is required.
func needReason(reason string) error {
	if strings.TrimSpace(reason) == "" {
		return bus.Invalid("reason", "is required")
	}
	return checkReason(reason)
}

// resolve runs one person's decision and audits it in the same transaction.
func (t *OrgTx) resolve(ctx context.Context, sql, action string, id uuid.UUID, args named) error {
	reason := fmt.Sprint(args["reason"])
	if err := checkReason(reason); err != nil {
		return err
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
			return fmt.Errorf("%s: the delivery is not in that state, or its destination is gone: %w", action, bus.ErrConflict)
		}
		return fmt.Errorf("%s: %w", action, bus.ErrNotFound)
	}
	return t.audit(ctx, auditEntry{
		action: action, resourceType: "delivery", resourceID: id,
		metadata: map[string]any{
			"event_id": done.EventID, "consumer": done.Consumer, "old_status": done.State, "old_error": done.LastError,
			"attempts": done.Attempts, "reason": reason,
		},
	})
}
