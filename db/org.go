package db

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// ActorKind says what kind of somebody acts.
type ActorKind string

// The kinds of actors.
const (
	ActorUser   ActorKind = "user"
	ActorToken  ActorKind = "token"
	ActorCLI    ActorKind = "cli"
	ActorSystem ActorKind = "system"
)

// Actor is who acts, for audit rows and event metadata.
type Actor struct {
	Kind      ActorKind
	ID        uuid.NullUUID // of the token or user
	Name      string        // what people know the actor by
	RequestID string        // of the request that asked, if one did
	Platform  bool          // acts by a right over the platform and not by a role in the organization
}

// OrgTx is a transaction on behalf of one organization. It runs under a role
// that sees that organization's rows only, so no statement in it can reach
// another's.
type OrgTx struct {
	tx      pgx.Tx
	box     box
	gauge   *gauge
	org     uuid.UUID
	actor   Actor
	emitted bool
	due     bool
}

const enterOrgSQL = `
	select set_config('app.organization_id', @org_id, true),
	       set_config('role', 'deskcomm_api', true),
	       set_config('statement_timeout', '15s', true)`

// InOrg runs fn in one transaction on behalf of an organization and commits when
// fn returns nil.
func (d *DB) InOrg(ctx context.Context, org uuid.UUID, actor Actor, fn func(t *OrgTx) error) error {
	t := &OrgTx{box: d.box, gauge: &d.gauge, org: org, actor: actor}
	err := d.inTx(ctx, func(tx pgx.Tx) error {
		t.tx = tx
		if _, err := tx.Exec(ctx, enterOrgSQL, named{"org_id": org.String()}); err != nil {
			return wrap("enter organization", err)
		}
		return fn(t)
	})
	if err != nil {
		return translate(err)
	}
	if t.emitted {
		d.emitted()
	}
	if t.due {
		d.due()
	}
	return nil
}

// Org is the organization of the transaction.
func (t *OrgTx) Org() uuid.UUID { return t.org }

const insertAuditSQL = `
	insert into audit_log (organization_id, actor_kind, actor_id, actor_name, action, resource_type, resource_id, request_id, metadata)
	values (@org_id, @actor_kind, @actor_id, @actor_name, @action, @resource_type, @resource_id, nullif(@request_id, ''), @metadata)`

// auditEntry is one act of a person or a program on their behalf.
type auditEntry struct {
	action       string
	resourceType string
	resourceID   uuid.UUID
	metadata     map[string]any
}

// audit records what the actor of t did.
func (t *OrgTx) audit(ctx context.Context, e auditEntry) error {
	return insertAudit(ctx, t.tx, uuid.NullUUID{UUID: t.org, Valid: true}, t.actor, e)
}

// Record audits an act that leaves no other trace: a look at what is hidden, a
// refusal.
func (t *OrgTx) Record(ctx context.Context, action, resourceType string, id uuid.UUID) error {
	return t.audit(ctx, auditEntry{action: action, resourceType: resourceType, resourceID: id})
}

func insertAudit(ctx context.Context, c conn, org uuid.NullUUID, actor Actor, e auditEntry) error {
	if e.metadata == nil {
		e.metadata = map[string]any{}
	}
	if actor.Platform {
		e.metadata["platform"] = true
	}
	metadata, err := json.Marshal(e.metadata)
	if err != nil {
		return wrap("write audit entry", err)
	}
	_, err = c.Exec(ctx, insertAuditSQL, named{
		"org_id": org, "actor_kind": actor.Kind, "actor_id": actor.ID, "actor_name": actor.Name,
		"action": e.action, "resource_type": e.resourceType,
		"resource_id": uuid.NullUUID{UUID: e.resourceID, Valid: e.resourceID != uuid.Nil},
		"request_id":  actor.RequestID, "metadata": json.RawMessage(metadata),
	})
	return wrap("write audit entry", err)
}
