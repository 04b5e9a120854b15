package db

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// NewEvent is what a caller gives of an event; the database adds the rest.
type NewEvent struct {
	Type       bus.Type
	EntityKind string
	EntityID   uuid.NullUUID
	Payload    json.RawMessage            // a JSON object; nil means {}
	Metadata   map[string]json.RawMessage // added to what the transaction knows: actor, request, source
}

// Emitted is what the log made of a NewEvent. An event with an idempotency key
// that was used before is the earlier one.
type Emitted struct {
	ID         uuid.UUID
	Type       bus.Type
	EntityKind string
	EntityID   uuid.NullUUID
	CreatedAt  time.Time
	Pressure   Pressure `db:"-"` // as it was last measured
}

const emitEventSQL = `select emit_event(@event_type, @entity_kind, @entity_id, @payload::jsonb, @metadata::jsonb, @org_id)`

const emittedEventSQL = `
	select id, event_type as type, entity_kind, entity_id, created_at
	  from event_log
	 where organization_id = @org_id and id = @id`

// Emit appends an event within t. Bad input is a *bus.FieldError.
func (t *OrgTx) Emit(ctx context.Context, ev NewEvent) (Emitted, error) {
	id, err := emit(ctx, t.tx, t.org, t.actor, ev)
	if err != nil {
		return Emitted{}, err
	}
	t.emitted = true
	e, err := one[Emitted](ctx, t.tx, emittedEventSQL, named{"org_id": t.org, "id": id})
	e.Pressure = t.Pressure()
	return e, wrap("read emitted event", err)
}

// Emit appends an event in a transaction of its own: one round trip.
func (d *DB) Emit(ctx context.Context, org uuid.UUID, actor Actor, ev NewEvent) (uuid.UUID, error) {
	id, err := emit(ctx, d.pool, org, actor, ev)
	if err == nil {
		d.emitted()
	}
	return id, err
}

// emit appends an event within any transaction; who calls it nudges the relay
// after the commit.
func emit(ctx context.Context, c conn, org uuid.UUID, actor Actor, ev NewEvent) (uuid.UUID, error) {
	metadata, err := eventMetadata(actor, ev.Metadata)
	if err != nil {
		return uuid.Nil, err
	}
	var id uuid.UUID
	err = c.QueryRow(ctx, emitEventSQL, named{
		"event_type": ev.Type, "entity_kind": ev.EntityKind, "entity_id": ev.EntityID,
		"payload": string(orEmptyObject(ev.Payload)), "metadata": metadata, "org_id": org,
	}).Scan(&id)
	return id, wrap("emit "+string(ev.Type), err)
}

const emitEventsSQL = `
	select emit_events(@event_types, @entity_kinds, @entity_ids, @payloads::text[]::jsonb[], @metadatas::text[]::jsonb[], @org_ids)`

// EmitAll appends events in their order, all or none.
func (t *OrgTx) EmitAll(ctx context.Context, events []NewEvent) ([]uuid.UUID, error) {
	n := len(events)
	types, kinds := make([]string, n), make([]string, n)
	entities := make([]uuid.NullUUID, n)
	payloads, metadatas := make([]string, n), make([]string, n)
	for i, ev := range events {
		metadata, err := eventMetadata(t.actor, ev.Metadata)
		if err != nil {
			return nil, err
		}
		types[i], kinds[i], entities[i] = string(ev.Type), ev.EntityKind, ev.EntityID
		payloads[i], metadatas[i] = string(orEmptyObject(ev.Payload)), metadata
	}
	var ids []uuid.UUID
	err := scan(ctx, t.tx, emitEventsSQL, named{
		"org_ids": []uuid.UUID{t.org}, "event_types": types, "entity_kinds": kinds, "entity_ids": entities,
		"payloads": payloads, "metadatas": metadatas,
	}, &ids)
	if err != nil {
		return nil, wrap("emit events", err)
	}
	t.emitted = true
	return ids, nil
}

// eventMetadata joins what a caller says with what the transaction knows; the
// latter wins.
func eventMetadata(actor Actor, given map[string]json.RawMessage) (string, error) {
	all := maps.Clone(given)
	if all == nil {
		all = make(map[string]json.RawMessage, 4)
	}
	known := map[string]string{"actor_kind": string(actor.Kind), "request_id": actor.RequestID}
	if actor.ID.Valid {
		known["actor_id"] = actor.ID.UUID.String()
	}
	for k, v := range known {
		if v != "" {
			all[k], _ = json.Marshal(v)
		}
	}
	text, err := json.Marshal(all)
	if err != nil {
		return "", bus.Invalid("metadata", "must be a JSON object")
	}
	return string(text), nil
}

func orEmptyObject(raw json.RawMessage) json.RawMessage {
	if len(raw) == 0 {
		return json.RawMessage("{}")
	}
	return raw
}
