package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
)

const (
	// lateness is how late an instant is fired at most before it counts as missed.
	lateness = 5 * time.Minute
	// walkedInstants bounds how many missed instants are counted: more than two
	// months of minutes.
	walkedInstants = 100_000
)

// Firing is what became of a schedule that was due.
type Firing struct {
	ScheduleID uuid.UUID
	OrgID      uuid.UUID
	Name       string
	DueAt      time.Time
	EventID    uuid.NullUUID // of the command, unless the instant was left out or fired before
	LeftOut    int           // instants that were not fired, by the policy
	Err        error         // why it could not be fired; it is tried again later
	Repeated   bool          // it could not be fired the last time either
}

// dueSchedule is a schedule that this transaction holds.
type dueSchedule struct {
	ID         uuid.UUID
	OrgID      uuid.UUID
	Name       string
	Command    bus.Type
	EntityKind string
	Payload    json.RawMessage
	Expression string
	Zone       string
	Missed     Missed
	MissedMax  int
	NextAt     time.Time
	Failures   int
	Now        time.Time
}

// Whoever else fires takes another one.
const dueScheduleSQL = `
	select s.id, s.organization_id as org_id, s.name, s.command, s.entity_kind, s.payload, s.expression, s.zone, s.missed,
	       s.missed_max::int, s.next_at, s.failures, clock_timestamp() as now
	  from schedule s
	 where s.enabled
	   and not s.suspended
	   and s.next_at <= now()
	   and (s.retry_at is null or s.retry_at <= now())
	 order by s.next_at
	 limit 1
	   for update of s skip locked`

// FireSchedule fires one instant of the schedule that has been due longest, in one
// transaction: that it was fired, its command, and when it is due next. It returns
// bus.ErrNotFound when none is due. A schedule that cannot be fired is in Firing.Err
// and tried again later and later, an hour at most; it stops no other.
func (d *DB) FireSchedule(ctx context.Context, next NextFunc) (f Firing, err error) {
	var s dueSchedule
	err = d.inTx(ctx, func(tx pgx.Tx) (err error) {
		s = dueSchedule{}
		if s, err = one[dueSchedule](ctx, tx, dueScheduleSQL, named{}); err != nil {
			return err
		}
		f = Firing{ScheduleID: s.ID, OrgID: s.OrgID, Name: s.Name}
		return s.fire(ctx, tx, next, &f)
	})
	err = translate(err)
	switch {
	case err == nil && f.EventID.Valid:
		d.emitted()
		return f, nil
	case err == nil, s.ID == uuid.Nil, errors.Is(err, bus.ErrUnavailable), ctx.Err() != nil:
		return f, err
	default:
		f.Err, f.Repeated, f.EventID = err, s.Failures > 0, uuid.NullUUID{}
		return f, d.postponeSchedule(ctx, s, err)
	}
}

const insertFireSQL = `
	insert into schedule_fire (schedule_id, due_at, organization_id, left_out) values (@id, @due_at, @org_id, @left_out)
	on conflict do nothing`

const fillFireSQL = `update schedule_fire set event_id = @event_id where schedule_id = @id and due_at = @due_at`

const advanceScheduleSQL = `
	update schedule
	   set next_at = @next_at, failures = 0, last_error = null, retry_at = null,
	       last_fired_at = case when @fired then clock_timestamp() else last_fired_at end
	 where id = @id`

// fire does what is planned for s and writes it into f.
func (s dueSchedule) fire(ctx context.Context, tx pgx.Tx, next NextFunc, f *Firing) error {
	p, err := s.plan(next)
	if err != nil {
		return err
	}
	f.DueAt, f.LeftOut = p.at, p.leftOut
	tag, err := tx.Exec(ctx, insertFireSQL, named{"id": s.ID, "due_at": p.at, "org_id": s.OrgID, "left_out": p.leftOut})
	if err != nil {
		return wrap("fire schedule", err)
	}
	fires := p.fires && tag.RowsAffected() == 1
	if fires {
		job, err := enqueue(ctx, tx, s.OrgID, Actor{Kind: ActorSystem, Name: "schedule"}, s.job(p.at))
		if err != nil {
			return err
		}
		f.EventID = uuid.NullUUID{UUID: job.ID, Valid: true}
		if _, err := tx.Exec(ctx, fillFireSQL, named{"id": s.ID, "due_at": p.at, "event_id": job.ID}); err != nil {
			return wrap("fire schedule", err)
		}
	}
	_, err = tx.Exec(ctx, advanceScheduleSQL, named{"id": s.ID, "next_at": p.next, "fired": fires})
	return wrap("advance schedule", err)
}

// job is the command of an instant, which is one event however often it is fired.
func (s dueSchedule) job(at time.Time) NewJob {
	due := at.UTC().Format(time.RFC3339)
	text := func(v string) json.RawMessage {
		raw, _ := json.Marshal(v) // a string always is
		return raw
	}
	return NewJob{Command: s.Command, EntityKind: s.EntityKind, Payload: s.Payload, Metadata: map[string]json.RawMessage{
		"schedule": text(s.Name), "due_at": text(due), "idempotency_key": text("schedule:" + s.ID.String() + ":" + due),
	}}
}

// firePlan is one instant of a schedule and what becomes of it.
type firePlan struct {
	at      time.Time
	fires   bool
	leftOut int // this one included if it does not fire
	next    time.Time
}

// plan decides which of the instants that are due by now is the next to be fired.
func (s dueSchedule) plan(next NextFunc) (p firePlan, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	latest := []time.Time{s.NextAt}
	n := 1
	following, err := next(s.Expression, s.Zone, s.NextAt)
	for ; err == nil && !following.After(s.Now) && n < walkedInstants; n++ {
		if latest = append(latest, following); len(latest) > s.MissedMax {
			latest = latest[1:]
		}
		following, err = next(s.Expression, s.Zone, following)
	}
	if err == nil && !following.After(s.Now) {
		following, err = next(s.Expression, s.Zone, s.Now)
	}
	if err != nil {
		return firePlan{}, err
	}
	last := latest[len(latest)-1]
	switch {
	case s.Missed == MissedAll && len(latest) > 1:
		return firePlan{at: latest[0], fires: true, leftOut: n - len(latest), next: latest[1]}, nil
	case s.Missed == MissedSkip && s.Now.Sub(last) > lateness:
		return firePlan{at: last, leftOut: n, next: following}, nil
	default:
		return firePlan{at: last, fires: true, leftOut: n - 1, next: following}, nil
	}
}

// Somebody else may have tried it meanwhile, or a person changed it.
const postponeScheduleSQL = `
	update schedule
	   set failures = failures + 1, last_error = @error,
	       retry_at = clock_timestamp() + least(interval '1 minute' * (2 ^ least(failures, 10)), interval '1 hour')
	 where id = @id and failures = @failures and next_at = @next_at`

// postponeSchedule keeps a schedule that cannot be fired from being tried each second.
func (d *DB) postponeSchedule(ctx context.Context, s dueSchedule, cause error) error {
	text := "the database refused it"
	if field, ok := errors.AsType[*bus.FieldError](cause); ok {
		text = field.Error()
	}
	_, err := d.pool.Exec(ctx, postponeScheduleSQL, named{"id": s.ID, "failures": s.Failures, "next_at": s.NextAt, "error": text})
	return wrap("postpone schedule", err)
}

// One that is put off or suspended comes with the poll.
const untilFireSQL = `
	select coalesce(min(extract(epoch from s.next_at - clock_timestamp())), 3600)::float8
	  from (select s.next_at
	          from schedule s
	         where s.enabled
	           and not s.suspended
	           and (s.retry_at is null or s.retry_at <= now())
	         order by s.next_at
	         limit 1) s`

// UntilNextFire returns how long it is until a schedule is due by the database's
// clock: nothing or less when one is, an hour at most.
func (d *DB) UntilNextFire(ctx context.Context) (time.Duration, error) {
	var seconds float64
	err := scan(ctx, d.pool, untilFireSQL, named{}, &seconds)
	return time.Duration(min(seconds, 3600) * float64(time.Second)), wrap("look for the next schedule", err)
}
