package api

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

func (s *Server) dlqRoutes() {
	const tag = "Dead letters"
	conflict := []int{http.StatusConflict}
	register(s, route{
		id: "list-dead-deliveries", method: http.MethodGet, path: "/v1/dlq", tag: tag, scopes: []string{"dlq:read"},
		summary: "List dead and uncertain deliveries, the latest first",
		about:   "What is uncertain may have had its effect when its process died; it is not tried again by itself.",
	}, listDead)
	register(s, route{
		id: "replay-delivery", method: http.MethodPost, path: "/v1/dlq/{id}/replay", tag: tag, scopes: []string{"dlq:replay"},
		summary: "Give a dead or uncertain delivery a fresh budget of attempts", errors: conflict,
		about: "The event's deliveries to others are not touched. The effect of an uncertain one may happen twice. 409 when the delivery is neither or its destination is gone.",
	}, replayDead)
	register(s, route{
		id: "confirm-delivery", method: http.MethodPost, path: "/v1/dlq/{id}/confirm", tag: tag, scopes: []string{"dlq:replay"},
		summary: "End an uncertain delivery whose effect has happened", errors: conflict,
		about: "It is done then. 409 when the delivery is not uncertain.",
	}, confirmUncertain)
	register(s, route{
		id: "discard-delivery", method: http.MethodPost, path: "/v1/dlq/{id}/discard", tag: tag, scopes: []string{"dlq:discard"},
		summary: "End a dead or uncertain delivery for good", errors: conflict,
	}, discardDead)
}

// deadDelivery is a delivery that waits for a person.
type deadDelivery struct {
	ID             uuid.UUID  `json:"id" format:"uuid" doc:"The id of the delivery."`
	Consumer       string     `json:"consumer"`
	Destination    *uuid.UUID `json:"destination" format:"uuid" nullable:"true"`
	Status         string     `json:"status" enum:"dead,uncertain"`
	EventID        uuid.UUID  `json:"event_id" format:"uuid"`
	EventType      bus.Type   `json:"event_type"`
	EntityKind     string     `json:"entity_kind"`
	EntityID       *uuid.UUID `json:"entity_id" format:"uuid" nullable:"true"`
	Payload        object     `json:"payload"`
	Attempts       int        `json:"attempts"`
	MaxAttempts    int        `json:"max_attempts"`
	LastError      string     `json:"last_error"`
	Reason         *string    `json:"reason" doc:"Why a person has taken it out of its lane; null when it has died by itself."`
	EventCreatedAt instant    `json:"event_created_at"`
	DiedAt         instant    `json:"died_at"`
}

func deadOf(d db.DeadDelivery) deadDelivery {
	return deadDelivery{
		ID: d.ID, Consumer: d.Consumer, Destination: destinationID(d.Destination), Status: d.State, EventID: d.EventID,
		EventType: d.Type, EntityKind: d.EntityKind, EntityID: optionalID(d.EntityID), Payload: object(d.Payload),
		Attempts: d.Attempts, MaxAttempts: d.MaxAttempts, LastError: d.LastError, Reason: d.Reason,
		EventCreatedAt: instant(d.EventCreatedAt), DiedAt: instant(d.DiedAt),
	}
}

// deadQuery narrows the list of dead deliveries.
type deadQuery struct {
	Page
	EventType  string    `query:"event_type" doc:"Only events of this type."`
	EntityKind string    `query:"entity_kind" doc:"Only events about things of this kind."`
	Consumer   string    `query:"consumer" doc:"Only deliveries to this consumer."`
	Status     string    `query:"status" enum:"dead,uncertain" doc:"Only this status."`
	Since      time.Time `query:"since" doc:"Only what died at or after this time."`
	Until      time.Time `query:"until" doc:"Only what died before this time."`
}

func listDead(ctx context.Context, t *db.OrgTx, in *deadQuery) (list[deadDelivery], error) {
	const name = "dead"
	at, err := in.read(name)
	if err != nil {
		return list[deadDelivery]{}, err
	}
	filter := db.DeadFilter{
		Type: in.EventType, EntityKind: in.EntityKind, Consumer: in.Consumer, State: in.Status,
		Since: optionalTime(in.Since), Until: optionalTime(in.Until), Limit: in.Limit + 1,
	}
	if at != nil {
		filter.BeforeAt, filter.BeforeID = &at.at, uuid.NullUUID{UUID: at.id, Valid: true}
	}
	rows, err := t.DeadDeliveries(ctx, filter)
	return listOf(rows, in.Limit, deadOf, func(d db.DeadDelivery) cursor {
		return cursor{list: name, id: d.ID, at: d.DiedAt}
	}), err
}

// decision is what a person decided about a dead or uncertain delivery.
type decision struct {
	ID     uuid.UUID `json:"id" format:"uuid"`
	Status string    `json:"status" enum:"pending,done,discarded"`
}

// replayInput asks for a replay; the body may be left out.
type replayInput struct {
	Resource
	Body *struct {
		_      struct{} `additionalProperties:"false"`
		Reason string   `json:"reason,omitempty" doc:"Why, for the audit log; at most 500 characters."`
	} `nameHint:"Replay"`
}

func replayDead(ctx context.Context, t *db.OrgTx, in *replayInput) (decision, error) {
	reason := ""
	if in.Body != nil {
		reason = in.Body.Reason
	}
	return decision{ID: in.ID, Status: "pending"}, t.Replay(ctx, in.ID, reason)
}

// confirmInput says that an effect has happened; the body may be left out.
type confirmInput struct {
	Resource
	Body *struct {
		_      struct{} `additionalProperties:"false"`
		Reason string   `json:"reason,omitempty" doc:"How that is known, for the audit log; at most 500 characters."`
	} `nameHint:"Confirm"`
}

func confirmUncertain(ctx context.Context, t *db.OrgTx, in *confirmInput) (decision, error) {
	reason := ""
	if in.Body != nil {
		reason = in.Body.Reason
	}
	return decision{ID: in.ID, Status: "done"}, t.ConfirmDone(ctx, in.ID, reason)
}

// discardInput asks for a discard.
type discardInput struct {
	Resource
	Body struct {
		_      struct{} `additionalProperties:"false"`
		Reason string   `json:"reason" doc:"Why, for the audit log; 1 to 500 characters."`
	} `nameHint:"Discard"`
}

func discardDead(ctx context.Context, t *db.OrgTx, in *discardInput) (decision, error) {
	return decision{ID: in.ID, Status: "discarded"}, t.Discard(ctx, in.ID, in.Body.Reason)
}
