package db

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// Subscription is a webhook of an organization.
type Subscription struct {
	ID                  uuid.UUID
	URL                 string
	EventTypes          []string
	HasSecret           bool
	Enabled             bool
	Ordering            bus.Ordering
	ConsecutiveFailures int
	LastStatus          *int
	LastError           *string
	LastDeliveredAt     *time.Time
	CreatedAt           time.Time
}

// NewSubscription describes a subscription to make. The URL must have passed the
// URL policy.
type NewSubscription struct {
	URL        string
	EventTypes []string
	Secret     string       // "" signs nothing
	Ordering   bus.Ordering // "" is bus.OrderingNone
}

func (n NewSubscription) check() error {
	if len(n.EventTypes) == 0 || len(n.EventTypes) > 100 {
		return bus.Invalid("event_types", "must name 1 to 100 event types")
	}
	for i, p := range n.EventTypes {
		if err := bus.CheckPattern(fmt.Sprintf("event_types.%d", i), p); err != nil {
			return err
		}
	}
	if !slices.Contains([]bus.Ordering{"", bus.OrderingNone, bus.OrderingKey, bus.OrderingStrict}, n.Ordering) {
		return bus.Invalid("ordering", "must be none, key or strict")
	}
	if n.Secret == "" {
		return nil
	}
	_, err := bus.WebhookKey("secret", n.Secret)
	return err
}

// maxSubscriptions bounds what one event of an organization is multiplied by: a
// batch of the relay has to fit into one transaction.
const maxSubscriptions = 100

const countSubscriptionsSQL = `select count(*) from webhook_subscriptions where organization_id = @org_id and deleted_at is null`

const insertSubscriptionSQL = `
	insert into webhook_subscriptions (id, organization_id, url, event_types, ordering, secret_encrypted)
	values (@id, @org_id, @url, @event_types, @ordering, @secret_encrypted)
	returning id, url, event_types, secret_encrypted is not null as has_secret, enabled, ordering, consecutive_failures, last_status::int,
	          last_error, last_delivered_at, created_at`

// CreateSubscription makes a subscription, which receives what is emitted from
// now on.
func (t *OrgTx) CreateSubscription(ctx context.Context, n NewSubscription) (Subscription, error) {
	if err := n.check(); err != nil {
		return Subscription{}, err
	}
	var have int
	if err := scan(ctx, t.tx, countSubscriptionsSQL, named{"org_id": t.org}, &have); err != nil {
		return Subscription{}, wrap("count subscriptions", err)
	}
	if have >= maxSubscriptions {
		return Subscription{}, bus.Invalid("url", fmt.Sprintf("an organization has at most %d subscriptions", maxSubscriptions))
	}
	id := uuid.New()
	var sealed []byte
	if n.Secret != "" {
		var err error
		if sealed, err = t.box.seal([]byte(n.Secret), secretPlace("webhook_subscriptions", id)); err != nil {
			return Subscription{}, err
		}
	}
	sub, err := one[Subscription](ctx, t.tx, insertSubscriptionSQL, named{
		"id": id, "org_id": t.org, "url": n.URL, "event_types": n.EventTypes, "secret_encrypted": sealed,
		"ordering": cmp.Or(n.Ordering, bus.OrderingNone),
	})
	if err != nil {
		return Subscription{}, wrap("create subscription", err)
	}
	return sub, t.audit(ctx, auditEntry{
		action: "webhook_subscription.created", resourceType: "webhook_subscription", resourceID: id,
		metadata: map[string]any{"event_types": n.EventTypes, "ordering": sub.Ordering},
	})
}

// secretPlace names where a secret is stored, which binds its ciphertext there.
func secretPlace(table string, id uuid.UUID) string { return table + ":" + id.String() }

const subscriptionColumnsSQL = `
	select id, url, event_types, secret_encrypted is not null as has_secret, enabled, ordering, consecutive_failures, last_status::int,
	       last_error, last_delivered_at, created_at
	  from webhook_subscriptions
	 where organization_id = @org_id and deleted_at is null`

const listSubscriptionsSQL = subscriptionColumnsSQL + `
	   and (@after::uuid is null or (created_at, id) > (select created_at, id from webhook_subscriptions where id = @after))
	 order by created_at, id
	 limit @limit`

// Subscriptions lists the organization's subscriptions, the oldest first.
func (t *OrgTx) Subscriptions(ctx context.Context, p Page) ([]Subscription, error) {
	list, err := collect[Subscription](ctx, t.tx, listSubscriptionsSQL, named{"org_id": t.org, "after": p.After, "limit": p.limit()})
	return list, wrap("list subscriptions", err)
}

const showSubscriptionSQL = subscriptionColumnsSQL + ` and id = @id`

// Subscription returns one subscription, or bus.ErrNotFound.
func (t *OrgTx) Subscription(ctx context.Context, id uuid.UUID) (Subscription, error) {
	sub, err := one[Subscription](ctx, t.tx, showSubscriptionSQL, named{"org_id": t.org, "id": id})
	return sub, wrap("load subscription", err)
}

// Whoever resumes a lane of the subscription right now is waited for.
const forgetPausedSQL = `
	delete from paused_lane
	 where organization_id = @org_id and consumer_id = (select id from consumers where name = @consumer) and destination = @id`

const subscriptionLanesSQL = `
	select distinct d.lane
	  from delivery d
	 where d.consumer_id = (select id from consumers where name = @consumer) and d.destination = @id and d.organization_id = @org_id and d.lane <> 0
	 order by d.lane`

const holdCurrentSQL = `
	select advance_lanes(array_agg(c.id), array_agg(@id::uuid), array_agg(@org_id::uuid), array_agg(l.lane))
	  from consumers c
	 cross join unnest(@lanes::bigint[]) l (lane)
	 where c.name = @consumer`

// A delivery that is being sent right now loses its row, so its verdict is refused.
const dropDeliveriesSQL = `
	with found as materialized (
	    select d.consumer_id, d.seq
	      from consumers c
	     cross join (values (true), (false)) k (interactive)
	     cross join lateral (
	        select d.consumer_id, d.seq from delivery d
	         where d.consumer_id = c.id and d.interactive = k.interactive and d.organization_id = @org_id and d.destination = @id
	           and d.lease_token is null and not d.suspect
	        union all
	        select d.consumer_id, d.seq from delivery d
	         where d.consumer_id = c.id and d.interactive = k.interactive and d.organization_id = @org_id and d.destination = @id
	           and d.lease_token is null and d.suspect
	        union all
	        select d.consumer_id, d.seq from delivery d
	         where d.consumer_id = c.id and d.interactive = k.interactive and d.organization_id = @org_id and d.destination = @id
	           and d.lease_token is not null
	     ) d
	     where c.name = @consumer
	), waiting as materialized (
	    select d.consumer_id, d.destination, d.organization_id, d.lane, d.seq
	      from found f
	      join delivery d on d.seq = f.seq and d.consumer_id = f.consumer_id and d.destination = @id
	     where d.lane = any (@lanes::bigint[])
	     order by d.consumer_id, d.destination, d.organization_id, d.lane, d.seq
	       for update of d
	), dropped as (
	    delete from delivery d
	     using waiting w
	     where d.consumer_id = w.consumer_id and d.destination = w.destination and d.organization_id = w.organization_id
	       and d.lane = w.lane and d.seq = w.seq
	    returning d.*
	), receipts as (
	    insert into receipt (organization_id, consumer_id, outcome, reason, first_event_id, last_event_id, event_ids, destinations, attempts)
	    select organization_id, consumer_id, 'discarded', 'the subscription was deleted',
	           (array_agg(event_id order by event_id))[1], (array_agg(event_id order by event_id desc))[1],
	           array_agg(event_id order by event_id), array_agg(destination order by event_id), array_agg(attempts order by event_id)
	      from dropped
	     group by organization_id, consumer_id
	)
	select count(*)::int from dropped`

// dropDeliveries settles what waits for a subscription, lane by lane as when
// several deliveries are settled. What comes into a lane that it has not found, or
// had emptied, is left: it is current there, is claimed and then skipped.
func (t *OrgTx) dropDeliveries(ctx context.Context, id uuid.UUID) (dropped int, err error) {
	rows, _ := t.tx.Query(ctx, subscriptionLanesSQL, named{"org_id": t.org, "id": id, "consumer": bus.WebhookDispatch})
	lanes, err := collectColumn[int64](rows)
	if err != nil {
		return 0, err
	}
	zero, _ := slices.BinarySearch(lanes, 0)
	for _, part := range [][]int64{lanes[:zero], {0}, lanes[zero:]} {
		args := named{"org_id": t.org, "id": id, "consumer": bus.WebhookDispatch, "lanes": part}
		// The current ones come first: whoever ends one of them right now, and makes the
		// next one current, would wait for what is deleted here.
		if _, err := t.tx.Exec(ctx, holdCurrentSQL, args); err != nil {
			return 0, err
		}
		var n int
		if err := scan(ctx, t.tx, dropDeliveriesSQL, args, &n); err != nil {
			return 0, err
		}
		dropped += n
	}
	return dropped, nil
}

const endSubscriptionSQL = `
	with gone as (
	    update webhook_subscriptions
	       set deleted_at = clock_timestamp(), enabled = true, secret_encrypted = null
	     where organization_id = @org_id and id = @id and deleted_at is null
	    returning id
	), thawed as (
	    delete from frozen_body b using gone g where b.organization_id = @org_id and b.destination = g.id
	)
	select id from gone`

// DeleteSubscription ends a subscription. Deliveries that wait for it are
// discarded and say so; its dead ones stay listed.
//
// Its row is locked last, after deliveries, as when they are settled: no delivery is
// waited for from there on, not even one that is replayed meanwhile.
func (t *OrgTx) DeleteSubscription(ctx context.Context, id uuid.UUID) error {
	tag, err := t.tx.Exec(ctx, forgetPausedSQL, named{"org_id": t.org, "id": id, "consumer": bus.WebhookDispatch})
	if err == nil && tag.RowsAffected() > 0 {
		err = t.holdLanes(ctx) // what is added to a paused lane does not wait for its deliveries
	}
	var dropped int
	if err == nil {
		dropped, err = t.dropDeliveries(ctx, id)
	}
	if err == nil {
		err = scan(ctx, t.tx, endSubscriptionSQL, named{"org_id": t.org, "id": id}, &id)
	}
	if err != nil {
		return wrap("delete subscription", err)
	}
	return t.audit(ctx, auditEntry{
		action: "webhook_subscription.deleted", resourceType: "webhook_subscription", resourceID: id,
		metadata: map[string]any{"discarded_deliveries": dropped},
	})
}

// Target is where a webhook delivery goes.
type Target struct {
	URL    string
	Secret string // "" when the subscription has none
}

// targets returns a function that opens the secret of each destination once.
func (d *DB) targets() func(destination uuid.UUID, url string, sealed []byte) (Target, error) {
	type opened struct {
		Target
		err error
	}
	known := make(map[uuid.UUID]opened)
	return func(destination uuid.UUID, url string, sealed []byte) (Target, error) {
		o, ok := known[destination]
		if !ok {
			o.URL = url
			if sealed != nil {
				secret, err := d.box.open(sealed, secretPlace("webhook_subscriptions", destination))
				o.Secret, o.err = string(secret), err
			}
			known[destination] = o
		}
		return o.Target, o.err
	}
}
