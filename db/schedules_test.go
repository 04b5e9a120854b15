package db_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

var errBroken = errors.New("broken")

// everyMinute is the clock of these tests: a minute after the last instant, or what
// the expression says.
func everyMinute(expression, _ string, after time.Time) (time.Time, error) {
	switch expression {
	case "unreadable":
		return time.Time{}, bus.Invalid("expression", "must be readable")
	case "broken":
		return time.Time{}, errBroken
	case "panics":
		panic("broken")
	case "rarely":
		return after.Add(1000 * time.Hour), nil
	}
	return after.Add(time.Minute), nil
}

func (w world) schedule(s db.NewSchedule) (made db.Schedule, err error) {
	if s.EntityKind == "" {
		s.EntityKind = "thing"
	}
	s.Zone = "UTC"
	if s.Expression == "" {
		s.Expression = "minutely"
	}
	err = w.db.InOrg(w.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) (err error) {
		made, err = tx.CreateSchedule(w.Context(), s, everyMinute)
		return err
	})
	return made, err
}

func (w world) mustSchedule(s db.NewSchedule) db.Schedule {
	w.Helper()
	made, err := w.schedule(s)
	if err != nil {
		w.Fatal(err)
	}
	return made
}

// dueSince makes a schedule due n times before it has been due half a minute ago.
func (w world) dueSince(s db.Schedule, n int) time.Time {
	w.Helper()
	var at time.Time
	if err := dbtest.Row(w.T, w.url, "update schedule set next_at = clock_timestamp() - $2 * interval '1 minute' - interval '30 seconds' where id = $1 returning next_at",
		[]any{s.ID, n}, &at); err != nil {
		w.Fatal(err)
	}
	return at
}

// fireAll fires until nothing is due.
func (w world) fireAll() (all []db.Firing) {
	w.Helper()
	for range 2000 {
		f, err := w.db.FireSchedule(w.Context(), everyMinute)
		if errors.Is(err, bus.ErrNotFound) {
			return all
		}
		if err != nil {
			w.Fatal(err)
		}
		all = append(all, f)
	}
	w.Fatal("there is no end of what is due")
	return nil
}

func (w world) commands(typ bus.Type) int {
	return w.count("select count(*) from event_log where organization_id = $1 and event_type = $2", w.org, typ)
}

func TestScheduleFiresItsCommandAtItsInstants(t *testing.T) {
	t.Parallel()
	w := alone(t)
	command := ownCommand()
	consumer := w.consumer(command)
	s := w.mustSchedule(db.NewSchedule{Name: "report", Command: command, Payload: []byte(`{"n":1}`)})
	if got := w.fireAll(); got != nil {
		t.Fatalf("fired %+v before its time", got)
	}
	wait, err := w.db.UntilNextFire(t.Context())
	if err != nil || wait <= 0 || wait > time.Minute {
		t.Errorf("UntilNextFire() = %s, %v, want at most a minute", wait, err)
	}
	at := w.dueSince(s, 0)
	fired := w.fireAll()
	if len(fired) != 1 || !fired[0].DueAt.Equal(at) || !fired[0].EventID.Valid || fired[0].LeftOut != 0 || fired[0].Err != nil {
		t.Fatalf("fired %+v, want the instant %s", fired, at)
	}
	ids, list := w.claimedIDs(consumer)
	if !cmp.Equal(ids, []uuid.UUID{fired[0].EventID.UUID}) || string(list[0].Event.Payload) != `{"n": 1}` {
		t.Errorf("claimed %v, want the command %v", ids, fired[0].EventID)
	}
	w.inOrg(func(tx *db.OrgTx) error {
		all, err := tx.Schedules(t.Context())
		if len(all) != 1 || all[0].LastFiredAt == nil || !all[0].NextAt.After(at) {
			t.Errorf("schedules = %+v, want one that was fired and is due later", all)
		}
		return err
	})
}

// What an outage of an hour leaves, by policy: the instants that are fired, and how many are not.
func TestMissedInstantsFollowThePolicy(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		schedule    db.NewSchedule
		late        int // minutes since the first due instant
		fired, left int
		first       int // minutes from the first due instant to the first fired
	}{
		"once":            {db.NewSchedule{Missed: db.MissedOnce}, 60, 1, 60, 60},
		"once is default": {db.NewSchedule{}, 60, 1, 60, 60},
		"all":             {db.NewSchedule{Missed: db.MissedAll}, 60, 61, 0, 0},
		"all, bounded":    {db.NewSchedule{Missed: db.MissedAll, MissedMax: 10}, 60, 10, 51, 51},
		"all, one":        {db.NewSchedule{Missed: db.MissedAll, MissedMax: 1}, 60, 1, 60, 60},
		"skip, just due":  {db.NewSchedule{Missed: db.MissedSkip}, 60, 1, 60, 60},
		"skip, too late":  {db.NewSchedule{Missed: db.MissedSkip, Expression: "rarely"}, 59, 0, 1, 0},
		"once, late":      {db.NewSchedule{Missed: db.MissedOnce, Expression: "rarely"}, 59, 1, 0, 0},
		"on time, skip":   {db.NewSchedule{Missed: db.MissedSkip}, 0, 1, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := alone(t)
			command := ownCommand()
			tt.schedule.Name, tt.schedule.Command = "s", command
			s := w.mustSchedule(tt.schedule)
			at := w.dueSince(s, tt.late)
			fired, left := 0, 0
			var first time.Time
			for _, f := range w.fireAll() {
				left += f.LeftOut
				if f.EventID.Valid {
					if fired++; fired == 1 {
						first = f.DueAt
					}
				}
			}
			if fired != tt.fired || left != tt.left || w.commands(command) != tt.fired {
				t.Errorf("fired %d, left out %d, want %d and %d", fired, left, tt.fired, tt.left)
			}
			if want := at.Add(time.Duration(tt.first) * time.Minute); fired > 0 && !first.Equal(want) {
				t.Errorf("the first that was fired is %s, want %s", first, want)
			}
		})
	}
}

// Three that fire at once, of which some die before they commit: each instant is fired, and once.
func TestEachInstantIsFiredOnceByThreeAtOnce(t *testing.T) {
	t.Parallel()
	w := alone(t)
	command := ownCommand()
	s := w.mustSchedule(db.NewSchedule{Name: "all", Command: command, Missed: db.MissedAll, MissedMax: 1000})
	first := w.dueSince(s, 99)
	var all sync.WaitGroup
	for n := range 3 {
		all.Go(func() {
			for i := 0; ; i++ {
				ctx, cancel := context.WithCancel(t.Context())
				next := everyMinute
				if (i+n)%4 == 0 { // dies within its transaction
					next = func(expression, zone string, after time.Time) (time.Time, error) {
						cancel()
						return everyMinute(expression, zone, after)
					}
				}
				_, err := w.db.FireSchedule(ctx, next)
				died := ctx.Err() != nil
				cancel()
				if errors.Is(err, bus.ErrNotFound) && w.count("select count(*) from schedule where next_at <= now()") == 0 {
					return
				}
				if err != nil && !died && !errors.Is(err, bus.ErrNotFound) {
					t.Errorf("FireSchedule() = %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	var want []string
	for i := range 100 {
		want = append(want, first.Add(time.Duration(i)*time.Minute).UTC().Format(time.RFC3339))
	}
	got := strings.Split(w.text("select string_agg(metadata ->> 'due_at', ',' order by metadata ->> 'due_at') from event_log where event_type = $1", command), ",")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("instants that were fired (-want +got):\n%s", diff)
	}
	if n := w.count("select count(*) from schedule_fire where event_id is null"); n != 0 {
		t.Errorf("%d instants have no event, want none", n)
	}
}

// Whatever moves a schedule back, an instant that was fired is not fired again.
func TestInstantThatWasFiredIsNotFiredAgain(t *testing.T) {
	t.Parallel()
	w := alone(t)
	command := ownCommand()
	s := w.mustSchedule(db.NewSchedule{Name: "s", Command: command})
	at := w.dueSince(s, 0)
	w.fireAll()
	w.exec("delete from event_dedup")
	w.exec("update schedule set next_at = $2 where id = $1", s.ID, at)
	w.fireAll()
	if n := w.commands(command); n != 1 {
		t.Errorf("%d commands of one instant, want 1", n)
	}
}

func TestChangedScheduleHasANewRevisionAndIsDueLater(t *testing.T) {
	t.Parallel()
	w := alone(t)
	command := ownCommand()
	s := w.mustSchedule(db.NewSchedule{Name: "s", Command: command})
	w.dueSince(s, 3)
	var changed db.Schedule
	w.inOrg(func(tx *db.OrgTx) (err error) {
		changed, err = tx.ChangeSchedule(t.Context(), "s", "rarely", "UTC", everyMinute)
		return err
	})
	if changed.Revision != 2 || changed.Expression != "rarely" || time.Until(changed.NextAt) < 999*time.Hour {
		t.Errorf("changed = %+v, want revision 2 and its next instant by the new expression", changed)
	}
	if got := w.fireAll(); got != nil {
		t.Errorf("fired %+v after the change, want nothing", got)
	}
}

func TestPausedScheduleMissesNothing(t *testing.T) {
	t.Parallel()
	w := alone(t)
	command := ownCommand()
	s := w.mustSchedule(db.NewSchedule{Name: "s", Command: command, Missed: db.MissedAll})
	w.inOrg(func(tx *db.OrgTx) error { _, err := tx.PauseSchedule(t.Context(), "s"); return err })
	w.dueSince(s, 10)
	if got := w.fireAll(); got != nil {
		t.Errorf("fired %+v while paused", got)
	}
	w.inOrg(func(tx *db.OrgTx) error {
		resumed, err := tx.ResumeSchedule(t.Context(), "s", everyMinute)
		if !resumed.Enabled || time.Until(resumed.NextAt) < -time.Second {
			t.Errorf("resumed = %+v, want its next instant to come", resumed)
		}
		return err
	})
	w.inOrg(func(tx *db.OrgTx) error { return tx.DeleteSchedule(t.Context(), "s") })
	if got := w.fireAll(); got != nil || w.commands(command) != 0 {
		t.Errorf("fired %+v after it was deleted", got)
	}
	for _, action := range []string{"schedule.created", "schedule.paused", "schedule.resumed", "schedule.deleted"} {
		if n := w.count("select count(*) from audit_log where action = $1 and resource_id = $2", action, s.ID); n != 1 {
			t.Errorf("%d audit rows of %s, want 1", n, action)
		}
	}
}

func TestScheduleOfASuspendedOrganizationWaits(t *testing.T) {
	t.Parallel()
	w := alone(t)
	command := ownCommand()
	s := w.mustSchedule(db.NewSchedule{Name: "s", Command: command})
	if _, err := w.db.SuspendOrganization(t.Context(), dbtest.Actor(), w.org, "unpaid"); err != nil {
		t.Fatal(err)
	}
	w.dueSince(s, 5)
	if got := w.fireAll(); got != nil {
		t.Errorf("fired %+v for a suspended organization", got)
	}
	if _, err := w.db.ReactivateOrganization(t.Context(), dbtest.Actor(), w.org); err != nil {
		t.Fatal(err)
	}
	if got := w.fireAll(); len(got) == 0 || got[0].LeftOut < 5 {
		t.Errorf("fired %+v, want one for all that was missed", got)
	}
}

func TestScheduleThatCannotBeFiredStopsNoOtherAndIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, trouble := range []string{"unreadable", "broken", "panics", "refused"} {
		t.Run(trouble, func(t *testing.T) {
			t.Parallel()
			w := alone(t)
			command := ownCommand()
			bad, good := w.mustSchedule(db.NewSchedule{Name: "bad", Command: command}), w.mustSchedule(db.NewSchedule{Name: "good", Command: command})
			if trouble == "refused" {
				w.exec("update schedule set command = 'lead.won' where id = $1", bad.ID)
			} else {
				w.exec("update schedule set expression = $2 where id = $1", bad.ID, trouble)
			}
			w.dueSince(bad, 10)
			w.dueSince(good, 0)
			for round, again := range []bool{false, true} {
				var trouble, fine []db.Firing
				for _, f := range w.fireAll() {
					if f.Err != nil {
						trouble = append(trouble, f)
					} else {
						fine = append(fine, f)
					}
				}
				if len(trouble) != 1 || trouble[0].Name != "bad" || trouble[0].Repeated != again || trouble[0].EventID.Valid {
					t.Errorf("round %d: in trouble = %+v, want the bad one", round, trouble)
				}
				if round == 0 && (len(fine) == 0 || fine[0].Name != "good") {
					t.Errorf("fired %+v, want the good one", fine)
				}
				wait := w.count("select extract(epoch from retry_at - clock_timestamp())::int from schedule where id = $1", bad.ID)
				if want := 60 << round; wait < want-30 || wait > want {
					t.Errorf("round %d: it is tried again in %d s, want %d", round, wait, want)
				}
				w.exec("update schedule set retry_at = now() where id = $1", bad.ID)
			}
			w.exec("update schedule set expression = 'minutely', command = $2 where id = $1", bad.ID, command)
			if got := w.fireAll(); !slices.ContainsFunc(got, func(f db.Firing) bool { return f.Name == "bad" && f.EventID.Valid && f.LeftOut >= 10 }) {
				t.Errorf("fired %+v, want the repaired one for all that it has missed", got)
			}
			if n := w.count("select count(*) from schedule where id = $1 and failures = 0 and last_error is null and retry_at is null", bad.ID); n != 1 {
				t.Error("the repaired schedule still looks broken")
			}
		})
	}
}

func TestScheduleThatBreaksARuleIsRefusedWhenItIsMade(t *testing.T) {
	t.Parallel()
	w := setup(t)
	command := ownCommand()
	for name, tt := range map[string]struct {
		schedule db.NewSchedule
		want     string
	}{
		"no name":      {db.NewSchedule{Name: " ", Command: command}, "name"},
		"long name":    {db.NewSchedule{Name: strings.Repeat("x", 101), Command: command}, "name"},
		"control":      {db.NewSchedule{Name: "a\x00", Command: command}, "name"},
		"fact":         {db.NewSchedule{Name: "s", Command: "lead.won"}, "command"},
		"kind":         {db.NewSchedule{Name: "s", Command: command, EntityKind: "X Y"}, "entity_kind"},
		"payload":      {db.NewSchedule{Name: "s", Command: command, Payload: []byte("[]")}, "payload"},
		"expression":   {db.NewSchedule{Name: "s", Command: command, Expression: "unreadable"}, "expression"},
		"missed":       {db.NewSchedule{Name: "s", Command: command, Missed: "never"}, "missed"},
		"missed bound": {db.NewSchedule{Name: "s", Command: command, MissedMax: 1001}, "missed_max"},
	} {
		_, err := w.schedule(tt.schedule)
		if field, ok := errors.AsType[*bus.FieldError](err); !ok || field.Field != tt.want {
			t.Errorf("%s: CreateSchedule() = %v, want a fault of %s", name, err, tt.want)
		}
	}
	w.mustSchedule(db.NewSchedule{Name: "s", Command: command})
	if _, err := w.schedule(db.NewSchedule{Name: "s", Command: command}); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("a name that is taken = %v, want a conflict", err)
	}
	other := world{T: t, db: w.db, url: w.url, org: dbtest.Org(t, w.db)}
	other.inOrg(func(tx *db.OrgTx) error {
		if all, err := tx.Schedules(t.Context()); err != nil || len(all) != 0 {
			t.Errorf("another organization sees %v, %v", all, err)
		}
		for what, err := range map[string]error{
			"pause": second(tx.PauseSchedule(t.Context(), "s")), "delete": tx.DeleteSchedule(t.Context(), "s"),
			"change": second(tx.ChangeSchedule(t.Context(), "s", "x", "UTC", everyMinute)),
		} {
			if !errors.Is(err, bus.ErrNotFound) {
				t.Errorf("%s by another organization = %v, want not found", what, err)
			}
		}
		return nil
	})
	if n := w.count("select count(*) from event_log where organization_id = $1", w.org); n != 0 {
		t.Errorf("%d events are left of what was only tried", n)
	}
}

func second[T any](_ T, err error) error { return err }
