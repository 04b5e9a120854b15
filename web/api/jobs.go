package api

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

func (s *Server) jobRoutes() {
	const tag = "Jobs"
	scopes := []string{"events:write", "events:emit_any"}
	registerCreate(s, route{
		id: "enqueue-job", path: "/v1/jobs", tag: tag, scopes: scopes, yields: true,
		summary: "Enqueue a job: a command for now or for a day to come",
		about: "A job is an event, whose consumer gets it when its time has come; `GET /v1/events/{id}` shows it. With a `singleton_key` only one job " +
			"of the command and the key is unfinished: while one is, `keep` answers it with 200, `replace` discards it unless it is in hand, " +
			"and `refuse` is 409. `events:write` is enough for commands of your own, `custom.<name>_requested`; commands of the catalogue need `events:emit_any`. " +
			"The answer tells the `pressure` it met; while that is `high` nothing is enqueued and the answer is 429 with `Retry-After`, " +
			"which uses up no `Idempotency-Key`.",
	}, mayEnqueue, enqueueJob)
	register(s, route{
		id: "cancel-job", method: http.MethodPost, path: "/v1/jobs/{id}/cancel", tag: tag, scopes: scopes,
		summary: "Give up a job that waits", errors: []int{http.StatusConflict},
		about: "409 when it is in hand or has ended.",
	}, cancelJob)
}

// newJob is a job to be enqueued.
type newJob struct {
	_ struct{} `additionalProperties:"false"`

	Command      bus.Type     `json:"command" doc:"A command of the catalogue, or custom.<name>_requested in lower snake case." example:"custom.export_requested"`
	EntityKind   string       `json:"entity_kind" pattern:"^[a-z][a-z0-9_]{0,62}$" patternDescription:"a lower snake case name of at most 63 characters" doc:"What the job is about." example:"order"`
	EntityID     *uuid.UUID   `json:"entity_id,omitempty" format:"uuid" doc:"Which one it is about."`
	Payload      object       `json:"payload,omitempty" doc:"What its consumer needs to know."`
	Metadata     object       `json:"metadata,omitempty" doc:"As of an event."`
	NotBefore    *time.Time   `json:"not_before,omitempty" doc:"When it may run, at most 400 days ahead; at once if it is past or left out."`
	SingletonKey string       `json:"singleton_key,omitempty" maxLength:"255" doc:"Only one job of the command and the key is unfinished at a time."`
	Policy       db.JobPolicy `json:"policy,omitempty" enum:"keep,replace,refuse" doc:"What to do while one is; keep if left out."`
}

// job is a job that was enqueued.
type job struct {
	ID        uuid.UUID   `json:"id" format:"uuid" doc:"The id of its event."`
	CreatedAt instant     `json:"created_at"`
	NotBefore instant     `json:"not_before"`
	Kept      bool        `json:"kept" doc:"Whether it is one that was there before."`
	Pressure  db.Pressure `json:"pressure" enum:"normal,elevated,high" doc:"How far handling is behind, as with an event."`
}

func (j job) existed() bool { return j.Kept }

func mayEnqueue(ctx context.Context, j *newJob) error {
	return checkType(callerOf(ctx), "command", j.Command)
}

func enqueueJob(ctx context.Context, t *db.OrgTx, j *newJob) (job, error) {
	e := emission{EventType: j.Command, EntityKind: j.EntityKind, EntityID: j.EntityID, Payload: j.Payload, Metadata: j.Metadata}
	ev, err := e.event("")
	if err != nil {
		return job{}, err
	}
	wanted := db.NewJob{
		Command: ev.Type, EntityKind: ev.EntityKind, EntityID: ev.EntityID, Payload: ev.Payload, Metadata: ev.Metadata,
		SingletonKey: j.SingletonKey, Policy: j.Policy,
	}
	if j.NotBefore != nil {
		wanted.NotBefore = *j.NotBefore
	}
	made, err := t.Enqueue(ctx, wanted)
	return job{ID: made.ID, CreatedAt: instant(made.CreatedAt), NotBefore: instant(made.NotBefore), Kept: made.Kept, Pressure: t.Pressure()}, err
}

// cancelInput asks for a job to be given up.
type cancelInput struct {
	Resource
	Body struct {
		_      struct{} `additionalProperties:"false"`
		Reason string   `json:"reason" doc:"Why, for the audit log; 1 to 500 characters."`
	} `nameHint:"Cancel"`
}

// cancelled is a job that was given up.
type cancelled struct {
	ID     uuid.UUID `json:"id" format:"uuid"`
	Status string    `json:"status" enum:"discarded"`
}

func cancelJob(ctx context.Context, t *db.OrgTx, in *cancelInput) (cancelled, error) {
	ev, err := t.Event(ctx, in.ID)
	if err != nil {
		return cancelled{}, err
	}
	if !bus.IsCustom(ev.Type) && !callerOf(ctx).Has("events:emit_any") {
		return cancelled{}, missingScope("events:emit_any")
	}
	return cancelled{ID: in.ID, Status: "discarded"}, t.CancelJob(ctx, in.ID, in.Body.Reason)
}
