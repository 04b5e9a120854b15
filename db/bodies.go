package db

import (
	"context"

	"github.com/google/uuid"
)

const frozenBodySQL = `select body from frozen_body where organization_id = @org_id and delivery_id = @delivery_id`

// FrozenBody returns what earlier attempts of a delivery sent, or bus.ErrNotFound.
func (d *DB) FrozenBody(ctx context.Context, org, delivery uuid.UUID) ([]byte, error) {
	var body []byte
	err := scan(ctx, d.pool, frozenBodySQL, named{"delivery_id": delivery, "org_id": org}, &body)
	return body, wrap("load frozen body", err)
}

const freezeBodySQL = `
	with frozen as (
	    insert into frozen_body (delivery_id, organization_id, destination, body)
	    select @delivery_id, @org_id, @destination, @body
	     where exists (select from webhook_subscriptions where organization_id = @org_id and id = @destination and deleted_at is null)
	    on conflict (delivery_id) do nothing
	    returning body
	)
	select body from frozen
	union all
	select body from frozen_body where organization_id = @org_id and delivery_id = @delivery_id
	limit 1`

// FreezeBody keeps body as what the delivery sends at every attempt and returns
// it, or returns what an earlier attempt kept. It returns bus.ErrNotFound when the
// subscription that the delivery goes to is deleted.
func (d *DB) FreezeBody(ctx context.Context, org, delivery, destination uuid.UUID, body []byte) ([]byte, error) {
	var kept []byte
	err := scan(ctx, d.pool, freezeBodySQL, named{"delivery_id": delivery, "org_id": org, "destination": destination, "body": body}, &kept)
	return kept, wrap("freeze body", err)
}
