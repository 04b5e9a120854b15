package db

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// JobPolicy says what becomes of a job while another of its command and
// singleton key is unfinished.
type JobPolicy string

// The policies of singletons. A replaced job that is in hand already runs on, and
// the later one stands beside it.
const (
	JobKeep    JobPolicy = "keep"    // the other one is the answer; nothing is emitted
	JobReplace JobPolicy = "replace" // the other one is discarded, unless it is in hand
	JobRefuse  JobPolicy = "refuse"  // bus.ErrConflict
)

// NewJob is what a caller gives of a job.
type NewJob struct {
	Command      bus.Type
	EntityKind   string
	EntityID     uuid.NullUUID
	Payload      json.RawMessage            // a JSON object; nil means {}
	Metadata     map[string]json.RawMessage // as of a NewEvent
	NotBefore    time.Time                  // zero and the past mean now; 400 days ahead at most
	Wait         time.Duration              // instead of NotBefore, from now on by the database's clock
	SingletonKey string                     // none when empty
	Policy       JobPolicy                  // JobKeep when empty
}

// Job is a command that was enqueued. Its ID is that of its event.
type Job struct {
	ID        uuid.UUID
	CreatedAt time.Time
	NotBefore time.Time
	Kept      bool // it is one that was unfinished already, or had the idempotency key
}

const enqueueJobSQL = `
	select id, created_at, not_before, kept
	  from enqueue(@command, @entity_kind, @entity_id, @payload::jsonb, @metadata::jsonb,
	               coalesce(@not_before, clock_timestamp() + nullif(@wait, interval '0')), nullif(@singleton_key, ''), @policy, @org_id)`

// Enqueue emits a command within t, whose consumer gets it when its time has come
// by the database's clock. Bad input is a *bus.FieldError.
func (t *OrgTx) Enqueue(ctx context.Context, job NewJob) (Job, error) {
	made, err := enqueue(ctx, t.tx, t.org, t.actor, job)
	t.emitted = t.emitted || err == nil
	t.due = t.due || err == nil && job.Policy == JobReplace // one that stood behind what is discarded
	return made, err
}

// enqueue emits a command within any transaction; who calls it nudges the relay
// after the commit.
func enqueue(ctx context.Context, c conn, org uuid.UUID, actor Actor, job NewJob) (Job, error) {
	metadata, err := eventMetadata(actor, job.Metadata)
	if err != nil {
		return Job{}, err
	}
	if job.Policy == "" {
		job.Policy = JobKeep
	}
	var notBefore *time.Time
	if !job.NotBefore.IsZero() {
		notBefore = &job.NotBefore
	}
	made, err := one[Job](ctx, c, enqueueJobSQL, named{
		"command": job.Command, "entity_kind": job.EntityKind, "entity_id": job.EntityID,
		"payload": string(orEmptyObject(job.Payload)), "metadata": metadata, "not_before": notBefore, "wait": job.Wait,
		"singleton_key": job.SingletonKey, "policy": job.Policy, "org_id": org,
	})
	return made, wrap("enqueue "+string(job.Command), err)
}

const endJobSQL = `select end_job(@id, @org_id, @reason)`

// CancelJob gives a job up that waits for its time, its turn or its next attempt.
// It returns bus.ErrConflict when it is in hand or has ended, and bus.ErrNotFound
// when there is no such job.
func (t *OrgTx) CancelJob(ctx context.Context, id uuid.UUID, reason string) error {
	const action = "job.cancelled"
	if !utf8.ValidString(reason) || strings.ContainsRune(reason, 0) {
		return bus.Invalid("reason", "must be text")
	}
	if n := utf8.RuneCountInString(reason); n > 500 || strings.TrimSpace(reason) == "" {
		return bus.Invalid("reason", "must have 1 to 500 characters")
	}
	var state string
	if err := scan(ctx, t.tx, endJobSQL, named{"id": id, "org_id": t.org, "reason": reason}, &state); err != nil {
		return wrap("cancel job", err)
	}
	switch state {
	case "discarded":
		t.emitted, t.due = true, true // itself, or what stood behind it
		return t.audit(ctx, auditEntry{action: action, resourceType: "event", resourceID: id, metadata: map[string]any{"reason": reason}})
	case "missing":
		return fmt.Errorf("cancel job: %w", bus.ErrNotFound)
	default:
		return fmt.Errorf("cancel job: it is %s: %w", state, bus.ErrConflict)
	}
}
