package api

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

func (s *Server) eventRoutes() {
	s.emitRoutes()
	s.jobRoutes()
	scopes := []string{"events:read"}
	register(s, route{
		id: "list-events", method: http.MethodGet, path: "/v1/events", tag: "Events", scopes: scopes,
		summary: "List events, newest first",
	}, listEvents)
	register(s, route{
		id: "show-event", method: http.MethodGet, path: "/v1/events/{id}", tag: "Events", scopes: scopes,
		summary: "Show one event and its deliveries",
	}, showEvent)
}

// Event is an event and what became of it.
type Event struct {
	ID         uuid.UUID  `json:"id" format:"uuid"`
	Seq        *int64     `json:"seq" doc:"Its place in the order that all readers see; null until it has one."`
	EventType  bus.Type   `json:"event_type"`
	EntityKind string     `json:"entity_kind"`
	EntityID   *uuid.UUID `json:"entity_id" format:"uuid" nullable:"true"`
	Status     string     `json:"status" doc:"pending, held, dead, uncertain or done; a fact that nobody reads is done. Uncertain is what may have had its effect and waits for a person."`
	Payload    object     `json:"payload"`
	Metadata   object     `json:"metadata"`
	CreatedAt  instant    `json:"created_at"`
}

func eventOf(e db.EventRow) Event {
	return Event{
		ID: e.ID, Seq: e.Seq, EventType: e.Type, EntityKind: e.EntityKind, EntityID: optionalID(e.EntityID), Status: e.Status,
		Payload: object(e.Payload), Metadata: object(e.Metadata), CreatedAt: instant(e.CreatedAt),
	}
}

// eventQuery narrows the list of events.
type eventQuery struct {
	Page
	EventType  string        `query:"event_type" doc:"Only this type."`
	EntityKind string        `query:"entity_kind" doc:"Only events about things of this kind."`
	EntityID   uuid.NullUUID `query:"entity_id" format:"uuid" doc:"Only events about this thing."`
	Status     string        `query:"status" enum:"pending,done,dead,discarded,uncertain,held,delivered" doc:"Only this status; delivered is done."`
	Since      time.Time     `query:"since" doc:"Only events emitted at or after this time."`
	Until      time.Time     `query:"until" doc:"Only events emitted before this time."`
}

func listEvents(ctx context.Context, t *db.OrgTx, in *eventQuery) (list[Event], error) {
	const name = "evnt"
	after, err := in.after(name)
	if err != nil {
		return list[Event]{}, err
	}
	status := in.Status
	if status == "delivered" {
		status = "done"
	}
	rows, err := t.Events(ctx, db.EventFilter{
		Type: in.EventType, EntityKind: in.EntityKind, EntityID: in.EntityID, Status: status,
		Since: optionalTime(in.Since), Until: optionalTime(in.Until), Before: after.After, Limit: after.Limit,
	})
	return listOf(rows, in.Limit, eventOf, byID(name, func(e db.EventRow) uuid.UUID { return e.ID })), err
}

// delivery is what became of an event for one consumer and destination.
type delivery struct {
	ID            uuid.UUID  `json:"id" format:"uuid"`
	Consumer      string     `json:"consumer"`
	Destination   *uuid.UUID `json:"destination" format:"uuid" nullable:"true" doc:"The webhook subscription; null for a consumer that delivers to nothing outside itself."`
	Status        string     `json:"status" enum:"pending,processing,held,dead,uncertain,done,skipped,discarded"`
	Attempts      int        `json:"attempts"`
	MaxAttempts   int        `json:"max_attempts"`
	LastError     *string    `json:"last_error"`
	NextAttemptAt *instant   `json:"next_attempt_at" nullable:"true"`
	UpdatedAt     instant    `json:"updated_at"`
}

func deliveryOf(d db.DeliveryRow) delivery {
	return delivery{
		ID: d.ID, Consumer: d.Consumer, Destination: destinationID(d.Destination), Status: d.Status, Attempts: d.Attempts,
		MaxAttempts: d.MaxAttempts, LastError: d.LastError, NextAttemptAt: optionalInstant(d.NextAttemptAt), UpdatedAt: instant(d.UpdatedAt),
	}
}

// eventDetail is an event with its deliveries.
type eventDetail struct {
	Event
	Deliveries []delivery `json:"deliveries"`
}

func showEvent(ctx context.Context, t *db.OrgTx, in *Resource) (eventDetail, error) {
	row, err := t.Event(ctx, in.ID)
	if err != nil {
		return eventDetail{}, err
	}
	rows, err := t.EventDeliveries(ctx, in.ID)
	out := eventDetail{Event: eventOf(row), Deliveries: make([]delivery, len(rows))}
	for i, d := range rows {
		out.Deliveries[i] = deliveryOf(d)
	}
	return out, err
}
