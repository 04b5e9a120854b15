package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/web/problem"
)

func (s *Server) laneRoutes() {
	const path, tag = "/v1/lanes", "Lanes"
	conflict := []int{http.StatusConflict}
	register(s, route{
		id: "list-lanes", method: http.MethodGet, path: path, tag: tag, scopes: []string{"dlq:read"},
		summary: "List the lanes that have work or are paused",
		about: "What is delivered in order waits in a lane: one for each destination, or for each of its keys. " +
			"One delivery of a lane is handled at a time, and while its head waits for another try nothing behind it is.",
	}, listLanes)
	register(s, route{
		id: "pause-lane", method: http.MethodPost, path: path + "/{id}/pause", tag: tag, scopes: []string{"dlq:replay"},
		summary: "Hold the deliveries of a lane", errors: conflict,
		about: "What is in hand comes to its end. The lane may be empty. 409 when it is paused already.",
	}, pauseLane)
	register(s, route{
		id: "resume-lane", method: http.MethodPost, path: path + "/{id}/resume", tag: tag, scopes: []string{"dlq:replay"},
		summary: "Let a paused lane go on", errors: conflict,
		about: "Its head is due when it would have been. 409 when the lane is not paused.",
	}, resumeLane)
	const refuses = " 409 when nothing waits in the lane, and when its head is in hand or is not delivery_id."
	register(s, route{
		id: "retry-head", method: http.MethodPost, path: path + "/{id}/retry", tag: tag, scopes: []string{"dlq:replay"},
		summary: "Make the head of a lane due at once", errors: conflict,
		about: "That spends no attempt." + refuses + " 409 when the lane is paused, too.",
	}, retryHead)
	register(s, route{
		id: "skip-head", method: http.MethodPost, path: path + "/{id}/skip", tag: tag, scopes: []string{"dlq:discard"},
		summary: "End the head of a lane as skipped", errors: conflict,
		about: "The lane goes on." + refuses,
	}, skipHead)
	register(s, route{
		id: "park-head", method: http.MethodPost, path: path + "/{id}/park", tag: tag, scopes: []string{"dlq:discard"},
		summary: "Put the head of a lane with the dead letters", errors: conflict,
		about: "It can be replayed or discarded from there; the lane goes on. One whose effect may have happened is uncertain there." + refuses,
	}, parkHead)
}

// lane is a lane that has work or is paused.
type lane struct {
	ID          string      `json:"id" doc:"Names the lane for as long as there are events for it; opaque."`
	Consumer    string      `json:"consumer"`
	Destination *uuid.UUID  `json:"destination" format:"uuid" nullable:"true"`
	Order       string      `json:"order" enum:"key,strict"`
	OrderKey    *string     `json:"order_key" doc:"What its events have in common: their order_key, or else their entity. null when the order is strict or nothing waits."`
	Waiting     int         `json:"waiting" doc:"How many deliveries wait, the head included; 1000 at most."`
	WaitingMore bool        `json:"waiting_more" doc:"Whether there are more than are counted."`
	Head        *head       `json:"head,omitempty" doc:"What is in hand or else the next; left out when nothing waits."`
	Paused      *lanePaused `json:"paused,omitempty" doc:"Left out when the lane is not paused."`
}

// head is the delivery that a lane waits for.
type head struct {
	DeliveryID    uuid.UUID `json:"delivery_id" format:"uuid"`
	EventID       uuid.UUID `json:"event_id" format:"uuid"`
	EventType     string    `json:"event_type"`
	Status        string    `json:"status" enum:"pending,processing,held"`
	Attempts      int       `json:"attempts"`
	MaxAttempts   int       `json:"max_attempts"`
	LastError     *string   `json:"last_error"`
	NextAttemptAt *instant  `json:"next_attempt_at" nullable:"true" doc:"null when it is in hand or its lane is paused."`
}

// lanePaused is who has paused a lane, and why.
type lanePaused struct {
	At     instant `json:"at"`
	By     string  `json:"by"`
	Reason string  `json:"reason"`
}

func laneOf(l db.Lane) lane {
	out := lane{
		ID: l.String(), Consumer: l.Consumer, Destination: destinationID(l.Destination), Order: string(l.Ordering), OrderKey: l.OrderKey,
		Waiting: min(l.Waiting, db.LaneCap), WaitingMore: l.Waiting > db.LaneCap,
	}
	if id := l.HeadID(); id.Valid {
		out.Head = &head{
			DeliveryID: id.UUID, EventID: l.EventID.UUID, EventType: *l.EventType, Status: *l.Status, Attempts: l.Attempts,
			MaxAttempts: l.MaxAttempts, LastError: l.LastError, NextAttemptAt: optionalInstant(l.NextAttemptAt),
		}
	}
	if l.PausedAt != nil {
		out.Paused = &lanePaused{At: instant(*l.PausedAt), By: *l.PausedBy, Reason: *l.PauseReason}
	}
	return out
}

// laneQuery narrows the list of lanes.
type laneQuery struct {
	Page
	Consumer string `query:"consumer" doc:"Only lanes of this consumer."`
	Paused   string `query:"paused" enum:"true,false" doc:"Only lanes that are paused, or that are not."`
}

func listLanes(ctx context.Context, t *db.OrgTx, in *laneQuery) (list[lane], error) {
	filter := db.LaneFilter{Consumer: in.Consumer, Limit: in.Limit + 1}
	if in.Paused != "" {
		filter.Paused = new(in.Paused == "true")
	}
	if in.Cursor != "" {
		after, ok := db.ParseLaneID(in.Cursor)
		if !ok {
			return list[lane]{}, problem.Invalid(problem.InParameter("cursor", "must be a next_cursor of this list"))
		}
		filter.After = after
	}
	rows, err := t.Lanes(ctx, filter)
	return listOf(rows, in.Limit, laneOf, func(l db.Lane) db.LaneID { return l.LaneID }), err
}

// LaneResource is the input of an operation on a lane.
type LaneResource struct {
	ID string `path:"id" doc:"The id of the lane."`
}

func (r LaneResource) lane() (db.LaneID, error) {
	id, ok := db.ParseLaneID(r.ID)
	if !ok {
		return db.LaneID{}, bus.ErrNotFound
	}
	return id, nil
}

// laneState is what became of a lane.
type laneState struct {
	ID     string `json:"id"`
	Status string `json:"status" enum:"paused,open"`
}

// pauseInput asks for a pause.
type pauseInput struct {
	LaneResource
	Body struct {
		_      struct{} `additionalProperties:"false"`
		Reason string   `json:"reason" doc:"Why, for others to see; 1 to 500 characters."`
	} `nameHint:"PauseLane"`
}

func pauseLane(ctx context.Context, t *db.OrgTx, in *pauseInput) (laneState, error) {
	id, err := in.lane()
	if err == nil {
		err = t.PauseLane(ctx, id, in.Body.Reason)
	}
	return laneState{ID: in.ID, Status: "paused"}, err
}

// resumeInput asks for the end of a pause; the body may be left out.
type resumeInput struct {
	LaneResource
	Body *struct {
		_      struct{} `additionalProperties:"false"`
		Reason string   `json:"reason,omitempty" doc:"Why, for the audit log; at most 500 characters."`
	} `nameHint:"ResumeLane"`
}

func resumeLane(ctx context.Context, t *db.OrgTx, in *resumeInput) (laneState, error) {
	reason := ""
	if in.Body != nil {
		reason = in.Body.Reason
	}
	id, err := in.lane()
	if err == nil {
		err = t.ResumeLane(ctx, id, reason)
	}
	return laneState{ID: in.ID, Status: "open"}, err
}

// headState is what became of the head of a lane.
type headState struct {
	ID         string    `json:"id" doc:"The id of the lane."`
	DeliveryID uuid.UUID `json:"delivery_id" format:"uuid"`
	Status     string    `json:"status" enum:"pending,skipped,parked"`
}

// retryInput asks for another try now; the body may be left out.
type retryInput struct {
	LaneResource
	Body *struct {
		_          struct{}   `additionalProperties:"false"`
		DeliveryID *uuid.UUID `json:"delivery_id,omitempty" format:"uuid" doc:"The head that is meant."`
		Reason     string     `json:"reason,omitempty" doc:"Why, for the audit log; at most 500 characters."`
	} `nameHint:"RetryHead"`
}

func retryHead(ctx context.Context, t *db.OrgTx, in *retryInput) (headState, error) {
	body := headBody{}
	if in.Body != nil {
		body.DeliveryID, body.Reason = in.Body.DeliveryID, in.Body.Reason
	}
	return actOnHead(ctx, in.LaneResource, body, "pending", t.RetryHead)
}

// headBody says which head is meant, and why.
type headBody struct {
	_          struct{}   `additionalProperties:"false"`
	DeliveryID *uuid.UUID `json:"delivery_id,omitempty" format:"uuid" doc:"The head that is meant. Without it the head is whatever it is by now."`
	Reason     string     `json:"reason" doc:"Why, for the audit log; 1 to 500 characters."`
}

// headInput asks for the end of a head in its lane.
type headInput struct {
	LaneResource
	Body headBody `nameHint:"Head"`
}

func skipHead(ctx context.Context, t *db.OrgTx, in *headInput) (headState, error) {
	return actOnHead(ctx, in.LaneResource, in.Body, "skipped", t.SkipHead)
}

func parkHead(ctx context.Context, t *db.OrgTx, in *headInput) (headState, error) {
	return actOnHead(ctx, in.LaneResource, in.Body, "parked", t.ParkHead)
}

func actOnHead(ctx context.Context, r LaneResource, body headBody, status string, act func(context.Context, db.HeadAct) (uuid.UUID, error)) (headState, error) {
	id, err := r.lane()
	if err != nil {
		return headState{}, err
	}
	a := db.HeadAct{Lane: id, Reason: body.Reason}
	if body.DeliveryID != nil {
		a.Delivery = uuid.NullUUID{UUID: *body.DeliveryID, Valid: true}
	}
	delivery, err := act(ctx, a)
	return headState{ID: r.ID, DeliveryID: delivery, Status: status}, err
}
