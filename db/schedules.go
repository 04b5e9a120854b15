package db

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
)

// NextFunc returns the first instant after another at which an expression is due
// by the clocks of a zone, or a *bus.FieldError.
type NextFunc func(expression, zone string, after time.Time) (time.Time, error)

// Missed says what becomes of the instants of a schedule at which nobody could
// fire it.
type Missed string

// The policies for missed instants. One is missed when it could not be fired
// within five minutes.
const (
	MissedSkip Missed = "skip" // they are left out
	MissedOnce Missed = "once" // the latest is fired for all of them
	MissedAll  Missed = "all"  // each is fired, the latest MissedMax of them
)

// NewSchedule is what a caller gives of a schedule.
type NewSchedule struct {
	Name       string // unique in the organization
	Command    bus.Type
	EntityKind string
	Payload    json.RawMessage // a JSON object; nil means {}
	Expression string
	Zone       string
	Missed     Missed // MissedOnce when empty
	MissedMax  int    // 100 when zero
}

// Schedule is a command that is enqueued by the clock.
type Schedule struct {
	ID          uuid.UUID
	Name        string
	Command     bus.Type
	EntityKind  string
	Payload     json.RawMessage
	Expression  string
	Zone        string
	Missed      Missed
	MissedMax   int
	Enabled     bool
	Revision    int
	NextAt      time.Time
	LastFiredAt *time.Time
	LastError   *string // why it cannot be fired at the moment
	CreatedAt   time.Time
	UpdatedAt   time.Time
}

const scheduleColumnsSQL = `
	select id, name, command, entity_kind, payload, expression, zone, missed, missed_max::int, enabled, revision, next_at,
	       last_fired_at, last_error, created_at, updated_at
	  from schedule`

const showScheduleSQL = scheduleColumnsSQL + ` where organization_id = @org_id and name = @name`

const insertScheduleSQL = `
	insert into schedule (organization_id, name, command, entity_kind, payload, expression, zone, missed, missed_max, next_at)
	values (@org_id, @name, @command, @entity_kind, @payload::jsonb, @expression, @zone, @missed, @missed_max, @next_at)`

// CreateSchedule makes a schedule whose first instant is the next one by the
// database's clock. Bad input, also what enqueuing would refuse, is a
// *bus.FieldError; a name that is taken is bus.ErrConflict.
func (t *OrgTx) CreateSchedule(ctx context.Context, s NewSchedule, next NextFunc) (Schedule, error) {
	if s.Missed == "" {
		s.Missed = MissedOnce
	}
	if s.MissedMax == 0 {
		s.MissedMax = 100
	}
	switch n := utf8.RuneCountInString(s.Name); {
	case n > 100 || strings.TrimSpace(s.Name) == "" || strings.ContainsFunc(s.Name, func(r rune) bool { return r < ' ' || r == utf8.RuneError }):
		return Schedule{}, bus.Invalid("name", "must have 1 to 100 characters, without control characters")
	case s.Missed != MissedSkip && s.Missed != MissedOnce && s.Missed != MissedAll:
		return Schedule{}, bus.Invalid("missed", "must be skip, once or all")
	case s.MissedMax < 1 || s.MissedMax > 1000:
		return Schedule{}, bus.Invalid("missed_max", "must be between 1 and 1000")
	}
	at, err := t.nextInstant(ctx, s.Expression, s.Zone, next)
	if err != nil {
		return Schedule{}, err
	}
	if err := t.rehearse(ctx, s); err != nil {
		return Schedule{}, err
	}
	_, err = t.tx.Exec(ctx, insertScheduleSQL, named{
		"org_id": t.org, "name": s.Name, "command": s.Command, "entity_kind": s.EntityKind, "payload": string(orEmptyObject(s.Payload)),
		"expression": s.Expression, "zone": s.Zone, "missed": s.Missed, "missed_max": s.MissedMax, "next_at": at,
	})
	if err != nil {
		return Schedule{}, wrap("create schedule", err)
	}
	made, err := t.schedule(ctx, s.Name)
	if err != nil {
		return Schedule{}, err
	}
	return made, t.auditSchedule(ctx, "schedule.created", made)
}

const clockSQL = `select clock_timestamp()`

// nextInstant is the next one from now on.
func (t *OrgTx) nextInstant(ctx context.Context, expression, zone string, next NextFunc) (time.Time, error) {
	var now time.Time
	if err := scan(ctx, t.tx, clockSQL, named{}, &now); err != nil {
		return now, wrap("read the clock", err)
	}
	return next(expression, zone, now)
}

func (t *OrgTx) schedule(ctx context.Context, name string) (Schedule, error) {
	s, err := one[Schedule](ctx, t.tx, showScheduleSQL, named{"org_id": t.org, "name": name})
	return s, wrap("load schedule", err)
}

// rehearse enqueues what the schedule will enqueue and takes it back: whatever
// would be refused each time is refused now.
func (t *OrgTx) rehearse(ctx context.Context, s NewSchedule) error {
	errDone := errors.New("done")
	err := pgx.BeginFunc(ctx, t.tx, func(tx pgx.Tx) error {
		_, err := enqueue(ctx, tx, t.org, t.actor, NewJob{Command: s.Command, EntityKind: s.EntityKind, Payload: s.Payload})
		if err == nil {
			err = errDone
		}
		return err
	})
	if errors.Is(err, errDone) {
		return nil
	}
	return err
}

const listSchedulesSQL = scheduleColumnsSQL + ` where organization_id = @org_id order by name limit 1000`

// Schedules lists the schedules of the organization by name.
func (t *OrgTx) Schedules(ctx context.Context) ([]Schedule, error) {
	list, err := collect[Schedule](ctx, t.tx, listSchedulesSQL, named{"org_id": t.org})
	return list, wrap("list schedules", err)
}

const lockScheduleSQL = scheduleColumnsSQL + ` where organization_id = @org_id and name = @name for update`

const changeScheduleSQL = `
	update schedule
	   set expression = @expression, zone = @zone, next_at = @next_at, revision = revision + 1, failures = 0, last_error = null, retry_at = null
	 where organization_id = @org_id and name = @name`

// ChangeSchedule gives a schedule another expression and zone, whose next instant
// from now on is its next one. An instant that was fired already is not fired again.
func (t *OrgTx) ChangeSchedule(ctx context.Context, name, expression, zone string, next NextFunc) (Schedule, error) {
	return t.alterSchedule(ctx, "schedule.changed", changeScheduleSQL, name, func(Schedule) (named, error) {
		at, err := t.nextInstant(ctx, expression, zone, next)
		return named{"expression": expression, "zone": zone, "next_at": at}, err
	})
}

const pauseScheduleSQL = `
	update schedule set enabled = false where organization_id = @org_id and name = @name`

// PauseSchedule stops a schedule. Its instants until it is resumed are not missed:
// they do not exist.
func (t *OrgTx) PauseSchedule(ctx context.Context, name string) (Schedule, error) {
	return t.alterSchedule(ctx, "schedule.paused", pauseScheduleSQL, name, func(Schedule) (named, error) { return named{}, nil })
}

const resumeScheduleSQL = `
	update schedule set enabled = true, next_at = @next_at, failures = 0, last_error = null, retry_at = null
	 where organization_id = @org_id and name = @name`

// ResumeSchedule lets a paused schedule fire from its next instant on, and one
// that could not be fired try again at once.
func (t *OrgTx) ResumeSchedule(ctx context.Context, name string, next NextFunc) (Schedule, error) {
	return t.alterSchedule(ctx, "schedule.resumed", resumeScheduleSQL, name, func(s Schedule) (named, error) {
		if s.Enabled {
			return named{"next_at": s.NextAt}, nil
		}
		at, err := t.nextInstant(ctx, s.Expression, s.Zone, next)
		return named{"next_at": at}, err
	})
}

const deleteScheduleSQL = `
	delete from schedule where organization_id = @org_id and name = @name`

// DeleteSchedule ends a schedule. What it has enqueued stays.
func (t *OrgTx) DeleteSchedule(ctx context.Context, name string) error {
	was, err := t.lockSchedule(ctx, name)
	if err != nil {
		return err
	}
	if _, err := t.tx.Exec(ctx, deleteScheduleSQL, named{"org_id": t.org, "name": name}); err != nil {
		return wrap("delete schedule", err)
	}
	return t.auditSchedule(ctx, "schedule.deleted", was)
}

// lockSchedule keeps a schedule from being fired until the transaction ends.
func (t *OrgTx) lockSchedule(ctx context.Context, name string) (Schedule, error) {
	s, err := one[Schedule](ctx, t.tx, lockScheduleSQL, named{"org_id": t.org, "name": name})
	return s, wrap("load schedule", err)
}

// alterSchedule runs a statement on a schedule, with what args makes of it, and
// audits it.
func (t *OrgTx) alterSchedule(ctx context.Context, action, sql, name string, args func(Schedule) (named, error)) (Schedule, error) {
	was, err := t.lockSchedule(ctx, name)
	if err != nil {
		return Schedule{}, err
	}
	all, err := args(was)
	if err != nil {
		return Schedule{}, err
	}
	all["org_id"], all["name"] = t.org, name
	if _, err := t.tx.Exec(ctx, sql, all); err != nil {
		return Schedule{}, wrap(action, err)
	}
	is, err := t.schedule(ctx, name)
	if err != nil {
		return Schedule{}, err
	}
	return is, t.auditSchedule(ctx, action, is)
}

func (t *OrgTx) auditSchedule(ctx context.Context, action string, s Schedule) error {
	return t.audit(ctx, auditEntry{action: action, resourceType: "schedule", resourceID: s.ID, metadata: map[string]any{
		"name": s.Name, "command": s.Command, "expression": s.Expression, "zone": s.Zone, "revision": s.Revision,
	}})
}
