package db

import (
	"context"

	"github.com/google/uuid"
)

const frozenBodySQL = `select body from frozen_body where organization_id = @org_id and delivery_id = @delivery_id`

// FrozenBody returns what earlier attempts of a delivery sent, or bus.ErrNotFound.
func (d *DB) FrozenBody(ctx context.Context, org, delivery uuid.UUID) ([]byte, error) {
	var body []byte
	err := d.pool.QueryRow(ctx, frozenBodySQL, named{"delivery_id": delivery, "org_id": org}).Scan(&body)
	return body, wrap("load frozen body", err)
}

const freezeBodySQL = `
	with frozen as (
	    insert into frozen_body (delivery_id, organization_id, body)
	    values (@delivery_id, @org_id, @body)
	    on conflict (delivery_id) do nothing
	    returning body
	)
	select body from frozen
	union all
	select body from frozen_body where organization_id = @org_id and delivery_id = @delivery_id
	limit 1`

// FreezeBody keeps body as what the delivery sends at every attempt and returns
// it, or returns what an earlier attempt kept.
func (d *DB) FreezeBody(ctx context.Context, org, delivery uuid.UUID, body []byte) ([]byte, error) {
	var kept []byte
	err := d.pool.QueryRow(ctx, freezeBodySQL, named{"delivery_id": delivery, "org_id": org, "body": body}).Scan(&kept)
	return kept, wrap("freeze body", err)
}
