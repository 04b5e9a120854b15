package db

import (
	"context"

	"github.com/google/uuid"
)

// Sending is a webhook delivery that is about to be sent.
type Sending struct {
	OrgID       uuid.UUID
	DeliveryID  uuid.UUID
	Destination uuid.UUID
	// Body is what the first attempt sends; nil asks only for what is frozen.
	Body []byte
}

// Sendable is what a [Sending] sends, and where to.
type Sendable struct {
	Deleted bool   // the subscription is gone, and nothing else is set
	Target  Target // as it was when the body was frozen or looked up
	Body    []byte // nil when none is frozen and none was given
	Err     error  // of this one: its secret cannot be read
}

// The order of the ids lets two who freeze the same wait for each other, and not
// stop each other for good. What an earlier attempt has frozen is not read here:
// the insert finds it by its key, whatever the planner believes of the table.
const freezeBodiesSQL = `
	with sending as materialized (
	    select u.delivery_id, u.organization_id, u.destination, u.body, s.url, s.secret_encrypted
	      from unnest(@delivery_ids::uuid[], @org_ids::uuid[], @destinations::uuid[], @bodies::bytea[])
	        as u (delivery_id, organization_id, destination, body)
	      join webhook_subscriptions s on s.organization_id = u.organization_id and s.id = u.destination and s.deleted_at is null
	), frozen as (
	    insert into frozen_body (delivery_id, organization_id, destination, body)
	    select delivery_id, organization_id, destination, body from sending where body is not null order by delivery_id
	    on conflict (delivery_id) do nothing
	    returning delivery_id
	)
	select delivery_id, url, secret_encrypted, delivery_id in (select delivery_id from frozen) as frozen -- hashed, where a join may loop
	  from sending`

const frozenBodiesSQL = `
	select b.delivery_id, b.body
	  from unnest(@delivery_ids::uuid[], @org_ids::uuid[]) as u (delivery_id, organization_id)
	  join frozen_body b using (delivery_id, organization_id)`

// FreezeBodies keeps the bodies of deliveries as what each of their attempts
// sends, in one statement for all of them. Where an earlier attempt has kept
// another, that one is returned. What belongs to a deleted subscription is not kept.
func (d *DB) FreezeBodies(ctx context.Context, sendings []Sending) ([]Sendable, error) {
	type row struct {
		DeliveryID      uuid.UUID
		URL             string
		SecretEncrypted []byte
		Frozen          bool
	}
	rows, err := collect[row](ctx, d.pool, freezeBodiesSQL, sendingColumns(sendings))
	if err != nil {
		return nil, wrap("freeze bodies", err)
	}
	found := make(map[uuid.UUID]row, len(rows))
	for _, r := range rows {
		found[r.DeliveryID] = r
	}
	out := make([]Sendable, len(sendings))
	targets := d.targets()
	var earlier []int
	for i, s := range sendings {
		r, ok := found[s.DeliveryID]
		if !ok {
			out[i].Deleted = true
			continue
		}
		out[i].Target, out[i].Err = targets(s.Destination, r.URL, r.SecretEncrypted)
		if r.Frozen {
			out[i].Body = s.Body
		} else {
			earlier = append(earlier, i)
		}
	}
	return out, d.readFrozen(ctx, sendings, out, earlier)
}

// readFrozen adds what earlier attempts have frozen. It asks in a statement of its
// own, which sees what was frozen by somebody else a moment ago.
func (d *DB) readFrozen(ctx context.Context, sendings []Sending, out []Sendable, earlier []int) error {
	if len(earlier) == 0 {
		return nil
	}
	ids, orgs := make([]uuid.UUID, len(earlier)), make([]uuid.UUID, len(earlier))
	for n, i := range earlier {
		ids[n], orgs[n] = sendings[i].DeliveryID, sendings[i].OrgID
	}
	type row struct {
		DeliveryID uuid.UUID
		Body       []byte
	}
	rows, err := collect[row](ctx, d.pool, frozenBodiesSQL, named{"delivery_ids": ids, "org_ids": orgs})
	if err != nil {
		return wrap("load frozen bodies", err)
	}
	bodies := make(map[uuid.UUID][]byte, len(rows))
	for _, r := range rows {
		bodies[r.DeliveryID] = r.Body
	}
	for _, i := range earlier {
		out[i].Body = bodies[sendings[i].DeliveryID]
	}
	return nil
}

func sendingColumns(sendings []Sending) named {
	n := len(sendings)
	ids, orgs, destinations := make([]uuid.UUID, n), make([]uuid.UUID, n), make([]uuid.UUID, n)
	bodies := make([][]byte, n)
	for i, s := range sendings {
		ids[i], orgs[i], destinations[i], bodies[i] = s.DeliveryID, s.OrgID, s.Destination, s.Body
	}
	return named{"delivery_ids": ids, "org_ids": orgs, "destinations": destinations, "bodies": bodies}
}
