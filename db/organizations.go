package db

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
)

// Organization is a tenant.
type Organization struct {
	ID        uuid.UUID `json:"organization_id"`
	Name      string    `json:"name"`
	Status    string    `json:"status"`
	CreatedAt time.Time `json:"created_at"`
}

const insertOrganizationSQL = `
	insert into organizations (name) values (@name) returning id, name, status, created_at`

// CreateOrganization makes a tenant.
func (d *DB) CreateOrganization(ctx context.Context, actor Actor, name string) (Organization, error) {
	var org Organization
	err := d.inTx(ctx, func(tx pgx.Tx) (err error) {
		org, err = createOrganization(ctx, tx, actor, name)
		return err
	})
	return org, err
}

func createOrganization(ctx context.Context, tx pgx.Tx, actor Actor, name string) (Organization, error) {
	name = strings.TrimSpace(name)
	if name == "" || !utf8.ValidString(name) || utf8.RuneCountInString(name) > 200 || strings.ContainsRune(name, 0) {
		return Organization{}, bus.Invalid("name", "must have 1 to 200 characters")
	}
	org, err := one[Organization](ctx, tx, insertOrganizationSQL, named{"name": name})
	if err != nil {
		return Organization{}, wrap("create organization", err)
	}
	return org, insertAudit(ctx, tx, uuid.NullUUID{UUID: org.ID, Valid: true}, actor,
		auditEntry{action: "organization.created", resourceType: "organization", resourceID: org.ID})
}

const listOrganizationsSQL = `select id, name, status, created_at from organizations order by id`

// Organizations lists all tenants.
func (d *DB) Organizations(ctx context.Context) ([]Organization, error) {
	list, err := collect[Organization](ctx, d.pool, listOrganizationsSQL, named{})
	return list, wrap("list organizations", err)
}

const suspendOrganizationSQL = `
	update organizations set status = 'suspended', suspended_at = clock_timestamp(), suspended_reason = nullif(@reason, '')
	 where id = @id and status = 'active'
	returning id, name, status, created_at`

// SuspendOrganization stops all handling for a tenant: its events are still
// taken and wait. It returns bus.ErrConflict when the tenant is not active.
func (d *DB) SuspendOrganization(ctx context.Context, actor Actor, id uuid.UUID, reason string) (Organization, error) {
	return d.changeOrganization(ctx, actor, suspendOrganizationSQL, named{"id": id, "reason": reason}, "organization.suspended")
}

const reactivateOrganizationSQL = `
	update organizations set status = 'active', suspended_at = null, suspended_reason = null
	 where id = @id and status = 'suspended'
	returning id, name, status, created_at`

// ReactivateOrganization lets a suspended tenant's waiting work run. It returns
// bus.ErrConflict when the tenant is not suspended.
func (d *DB) ReactivateOrganization(ctx context.Context, actor Actor, id uuid.UUID) (Organization, error) {
	org, err := d.changeOrganization(ctx, actor, reactivateOrganizationSQL, named{"id": id}, "organization.reactivated")
	if err == nil {
		d.due()
	}
	return org, err
}

const organizationExistsSQL = `select exists (select from organizations where id = @id)`

// HasOrganization reports whether a tenant exists.
func (d *DB) HasOrganization(ctx context.Context, id uuid.UUID) (bool, error) {
	var exists bool
	err := scan(ctx, d.pool, organizationExistsSQL, named{"id": id}, &exists)
	return exists, wrap("look for organization", err)
}

func (d *DB) changeOrganization(ctx context.Context, actor Actor, sql string, args named, action string) (Organization, error) {
	var org Organization
	err := d.inTx(ctx, func(tx pgx.Tx) (err error) {
		org, err = one[Organization](ctx, tx, sql, args)
		if err != nil {
			return wrap(action, err)
		}
		return insertAudit(ctx, tx, uuid.NullUUID{UUID: org.ID, Valid: true}, actor,
			auditEntry{action: action, resourceType: "organization", resourceID: org.ID, metadata: map[string]any{"reason": args["reason"]}})
	})
	if !errors.Is(err, bus.ErrNotFound) {
		return org, err
	}
	exists, existsErr := d.HasOrganization(ctx, args["id"].(uuid.UUID))
	switch {
	case existsErr != nil:
		return org, existsErr
	case exists:
		return org, fmt.Errorf("%s: %w", action, bus.ErrConflict)
	default:
		return org, err
	}
}
