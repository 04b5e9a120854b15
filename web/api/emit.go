package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/web/problem"
)

func (s *Server) emitRoutes() {
	const tag = "Events"
	scopes := []string{"events:write", "events:emit_any"}
	const about = "`events:write` is enough for types of your own, `custom.<name>`; types of the catalogue need `events:emit_any`. " +
		"A metadata key `idempotency_key` that was used before gives the event that was emitted then. " +
		"A metadata key `order_key`, a text of 1 to 255 characters, names what the event stays in order with for those who read by key; " +
		"without it that is the entity, and an event without either is in no order. " +
		"The answer tells the `pressure` it met; while that is `high` nothing is emitted and the answer is 429 with `Retry-After`, " +
		"which uses up no `Idempotency-Key`."
	registerAnswer[emission, emitted](s, route{
		id: "emit-event", path: "/v1/events", tag: tag, scopes: scopes, yields: true,
		summary: "Emit an event", about: about,
	}, mayEmit, s.emitEvent)
	registerCreate(s, route{
		id: "emit-events", path: "/v1/events/batch", tag: tag, scopes: scopes, maxBody: maxBatch, yields: true,
		summary: "Emit up to 1000 events, all or none", about: about,
	}, mayEmitAll, emitEvents)
}

// emission is an event to be emitted.
type emission struct {
	_ struct{} `additionalProperties:"false"`

	EventType  bus.Type   `json:"event_type" doc:"A type of the catalogue, or custom.<name> in lower snake case." example:"custom.order_shipped"`
	EntityKind string     `json:"entity_kind" pattern:"^[a-z][a-z0-9_]{0,62}$" patternDescription:"a lower snake case name of at most 63 characters" doc:"What the event is about." example:"order"`
	EntityID   *uuid.UUID `json:"entity_id,omitempty" format:"uuid" doc:"Which one it is about."`
	Payload    object     `json:"payload,omitempty" doc:"What happened. Numbers keep their value and their digits; the text around them does not keep its form."`
	Metadata   object     `json:"metadata,omitempty" doc:"What else is to be known of the event; request_id and who emitted it are added."`
}

// emitted is an event that was emitted.
type emitted struct {
	ID         uuid.UUID   `json:"id" format:"uuid"`
	CreatedAt  instant     `json:"created_at"`
	EventType  bus.Type    `json:"event_type"`
	EntityKind string      `json:"entity_kind"`
	EntityID   *uuid.UUID  `json:"entity_id" format:"uuid" nullable:"true"`
	Pressure   db.Pressure `json:"pressure" enum:"normal,elevated,high" doc:"How far handling is behind: slow down at elevated; at high emissions are refused."`
}

// emitEvent emits an event in a commit that it shares with other requests.
func (s *Server) emitEvent(ctx context.Context, r route, in *creation[emission]) (answer db.Answer, again bool, err error) {
	ev, err := in.Body.event("")
	if err != nil { // what its key stands for is looked at first
		return s.once(ctx, r, in.Key, in.Body, func(*db.OrgTx) (any, error) { return nil, err })
	}
	c := callerOf(ctx)
	actor := c.Actor(problem.RequestID(ctx))
	if in.Key == "" {
		out, err := s.db.EmitGrouped(ctx, c.OrgID, actor, ev)
		if err != nil {
			return answer, false, err
		}
		answer, err = answerEmitted(out)
		return answer, false, err
	}
	hash, err := hashOf(in.Body)
	if err != nil {
		return answer, false, err
	}
	return s.db.EmitOnce(ctx, c.OrgID, actor, ev, db.Once{Endpoint: r.place(ctx), Key: in.Key, Hash: hash, Answer: answerEmitted})
}

func answerEmitted(out db.Emitted) (db.Answer, error) {
	return newAnswer(emitted{
		ID: out.ID, CreatedAt: instant(out.CreatedAt), EventType: out.Type,
		EntityKind: out.EntityKind, EntityID: optionalID(out.EntityID), Pressure: out.Pressure,
	})
}

// emissions are events to be emitted together.
type emissions struct {
	_ struct{} `additionalProperties:"false"`

	Events []emission `json:"events" minItems:"1" maxItems:"1000" doc:"Emitted in this order."`
}

// emittedAll are events that were emitted together.
type emittedAll struct {
	IDs      []uuid.UUID `json:"ids" doc:"The ids of the events, in the order of the request."`
	Pressure db.Pressure `json:"pressure" enum:"normal,elevated,high" doc:"How far handling is behind, as with one event."`
}

func emitEvents(ctx context.Context, t *db.OrgTx, e *emissions) (emittedAll, error) {
	events := make([]db.NewEvent, len(e.Events))
	for i := range e.Events {
		ev, err := e.Events[i].event(fmt.Sprintf("events.%d.", i))
		if err != nil {
			return emittedAll{}, err
		}
		events[i] = ev
	}
	ids, err := t.EmitAll(ctx, events)
	if field, ok := errors.AsType[*bus.FieldError](err); ok && !strings.HasPrefix(field.Field, "events.") {
		err = bus.Invalid("events", field.Rule) // JSON that the database cannot hold: it does not say which one
	}
	return emittedAll{IDs: ids, Pressure: t.Pressure()}, err
}

// Seconds that a refused emission is asked to wait: the level is measured each two
// seconds, and who was refused together should not come back together.
const (
	yieldMin    = 5
	yieldJitter = 10
)

// yield refuses an emission while the pressure on its organization is high. It
// stands before anything that leaves a trace.
func (s *Server) yield(ctx huma.Context, next func(huma.Context)) {
	if s.db.Pressure(ctx.Context(), callerOf(ctx.Context()).OrgID) == db.PressureHigh {
		s.refuse(ctx, problem.Pressure(yieldMin+rand.IntN(yieldJitter+1))) //nolint:gosec // spreads clients, hides nothing
		return
	}
	next(ctx)
}

// event is what the log takes of e; prefix is where e stands in the body.
func (e *emission) event(prefix string) (db.NewEvent, error) {
	if len(e.Payload) > maxBody {
		return db.NewEvent{}, bus.Invalid(prefix+"payload", "must have at most 1 MiB")
	}
	ev := db.NewEvent{Type: e.EventType, EntityKind: e.EntityKind, Payload: json.RawMessage(e.Payload)}
	if e.EntityID != nil {
		ev.EntityID = uuid.NullUUID{UUID: *e.EntityID, Valid: true}
	}
	if e.Metadata == nil {
		return ev, nil
	}
	if err := json.Unmarshal(e.Metadata, &ev.Metadata); err != nil {
		return ev, bus.Invalid(prefix+"metadata", "must be a JSON object")
	}
	for _, name := range []string{"idempotency_key", "order_key"} {
		given, ok := ev.Metadata[name]
		if !ok {
			continue
		}
		var key string
		if err := json.Unmarshal(given, &key); err != nil || key == "" || utf8.RuneCountInString(key) > 255 {
			return ev, bus.Invalid(prefix+"metadata."+name, "must be a text of 1 to 255 characters")
		}
	}
	return ev, nil
}

func mayEmit(ctx context.Context, e *emission) error {
	return checkType(callerOf(ctx), "event_type", e.EventType)
}

// mayEmitAll reports every type that does not exist.
func mayEmitAll(ctx context.Context, e *emissions) error {
	var faults []problem.Fault
	for i := range e.Events {
		err := checkType(callerOf(ctx), fmt.Sprintf("events.%d.event_type", i), e.Events[i].EventType)
		if p, known := problem.From(err); err != nil && known && p.Code == problem.CodeInvalid {
			faults = append(faults, p.Errors...)
		} else if err != nil {
			return err
		}
	}
	if faults != nil {
		return problem.Invalid(faults...)
	}
	return nil
}

// checkType refuses a type that does not exist or that the token may not emit:
// facts of the catalogue cannot be forged by whoever may emit their own.
func checkType(c caller, field string, t bus.Type) error {
	if err := bus.CheckType(field, t); err != nil {
		return err
	}
	switch {
	case c.Has("events:emit_any"):
		return nil
	case !bus.IsCustom(t):
		return missingScope("events:emit_any")
	default: // the route asks for one of the two
		return nil
	}
}
