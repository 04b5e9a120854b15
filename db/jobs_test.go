package db_test

import (
	"encoding/json"
	"errors"
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

const day = 24 * time.Hour

// ownCommand is a command that only this test enqueues.
func ownCommand() bus.Type { return ownType() + "_requested" }

func (w world) tryEnqueue(job db.NewJob) (made db.Job, err error) {
	if job.EntityKind == "" {
		job.EntityKind = "thing"
	}
	err = w.db.InOrg(w.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) (err error) {
		made, err = tx.Enqueue(w.Context(), job)
		return err
	})
	return made, err
}

func (w world) enqueue(job db.NewJob) db.Job {
	w.Helper()
	made, err := w.tryEnqueue(job)
	if err != nil {
		w.Fatal(err)
	}
	return made
}

func (w world) cancel(id uuid.UUID, reason string) error {
	return w.db.InOrg(w.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error { return tx.CancelJob(w.Context(), id, reason) })
}

// pass makes the jobs of the organization wait d less.
func (w world) pass(d time.Duration) {
	w.Helper()
	w.exec("update waiting_job set not_before = not_before - $2::interval where organization_id = $1", w.org, d)
}

// claimedIDs relays, claims and returns the events of what was claimed.
func (w world) claimedIDs(consumer string) (ids []uuid.UUID, claimed []bus.Delivery) {
	w.Helper()
	w.relay()
	claimed = w.claim(consumer, 10)
	for _, d := range claimed {
		ids = append(ids, d.Event.ID)
	}
	return ids, claimed
}

func (w world) eventStatus(id uuid.UUID) (status string) {
	w.Helper()
	w.inOrg(func(tx *db.OrgTx) error {
		row, err := tx.Event(w.Context(), id)
		status = row.Status
		return err
	})
	return status
}

// The delays of the law: an export a week after it was asked for, an erasure after fifteen days.
func TestJobRunsOnItsDayAndNotBefore(t *testing.T) {
	t.Parallel()
	for name, days := range map[string]int{"in a week": 7, "in fifteen days": 15} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			command := ownCommand()
			consumer := w.consumer(command)
			job := w.enqueue(db.NewJob{Command: command, NotBefore: time.Now().Add(time.Duration(days) * day)})
			if ids, _ := w.claimedIDs(consumer); ids != nil {
				t.Fatalf("claimed %v at once, want nothing", ids)
			}
			w.pass(time.Duration(days)*day - time.Minute)
			if ids, _ := w.claimedIDs(consumer); ids != nil {
				t.Fatalf("claimed %v a minute before its time, want nothing", ids)
			}
			if got := w.eventStatus(job.ID); got != "pending" {
				t.Errorf("status before its time = %s, want pending", got)
			}
			// A process that starts now knows what the one before it knew.
			w.db = dbtest.Open(t, w.url, db.Options{})
			w.pass(time.Minute)
			if _, err := w.db.SuspendOrganization(t.Context(), dbtest.Actor(), w.org, "unpaid"); err != nil {
				t.Fatal(err)
			}
			if ids, _ := w.claimedIDs(consumer); ids != nil {
				t.Fatalf("claimed %v of a suspended organization, want nothing", ids)
			}
			if _, err := w.db.ReactivateOrganization(t.Context(), dbtest.Actor(), w.org); err != nil {
				t.Fatal(err)
			}
			if ids, _ := w.claimedIDs(consumer); !cmp.Equal(ids, []uuid.UUID{job.ID}) {
				t.Errorf("claimed %v on its day, want %v", ids, job.ID)
			}
		})
	}
}

func TestJobIsForWhoeverReadsOnItsDay(t *testing.T) {
	t.Parallel()
	w := setup(t)
	command := ownCommand()
	job := w.enqueue(db.NewJob{Command: command, NotBefore: time.Now().Add(day)})
	w.relay()
	consumer := w.consumer(command)
	w.pass(day)
	if ids, _ := w.claimedIDs(consumer); !cmp.Equal(ids, []uuid.UUID{job.ID}) {
		t.Errorf("a consumer that is newer than the job claimed %v, want %v", ids, job.ID)
	}
}

func TestJobOfThePastIsDueAtOnceAndKnowsItsTime(t *testing.T) {
	t.Parallel()
	w := setup(t)
	command := ownCommand()
	consumer := w.consumer(command)
	past := w.enqueue(db.NewJob{Command: command, NotBefore: time.Now().Add(-day)})
	none := w.enqueue(db.NewJob{Command: command})
	if ids, _ := w.claimedIDs(consumer); !cmp.Equal(ids, []uuid.UUID{past.ID, none.ID}) {
		t.Errorf("claimed %v, want both jobs", ids)
	}
	at := time.Now().Add(30 * day).Truncate(time.Microsecond)
	later := w.enqueue(db.NewJob{Command: command, NotBefore: at})
	if !later.NotBefore.Equal(at) || later.Kept {
		t.Errorf("enqueued %+v, want one not before %s", later, at)
	}
	w.inOrg(func(tx *db.OrgTx) error {
		row, err := tx.Event(t.Context(), later.ID)
		var metadata struct {
			NotBefore time.Time `json:"not_before"`
		}
		if err := json.Unmarshal(row.Metadata, &metadata); err != nil || !metadata.NotBefore.Equal(at) {
			t.Errorf("metadata = %s, %v, want not_before %s", row.Metadata, err, at)
		}
		return err
	})
}

func TestEnqueueRefusesWhatBreaksARule(t *testing.T) {
	t.Parallel()
	w := setup(t)
	command := ownCommand()
	for name, tt := range map[string]struct {
		job  db.NewJob
		want string
	}{
		"fact":            {db.NewJob{Command: "lead.won"}, "command"},
		"no type":         {db.NewJob{Command: "x_requested"}, "command"},
		"far future":      {db.NewJob{Command: command, NotBefore: time.Now().Add(401 * day)}, "not_before"},
		"unknown policy":  {db.NewJob{Command: command, SingletonKey: "k", Policy: "drop"}, "policy"},
		"policy of none":  {db.NewJob{Command: command, Policy: db.JobReplace}, "policy"},
		"long key":        {db.NewJob{Command: command, SingletonKey: strings.Repeat("ü", 256)}, "singleton_key"},
		"payload":         {db.NewJob{Command: command, Payload: []byte(`[]`)}, "payload"},
		"kind":            {db.NewJob{Command: command, EntityKind: "X Y"}, "entity_kind"},
		"idempotency key": {db.NewJob{Command: command, Metadata: map[string]json.RawMessage{"idempotency_key": []byte("1")}}, "metadata.idempotency_key"},
	} {
		_, err := w.tryEnqueue(tt.job)
		field, ok := errors.AsType[*bus.FieldError](err)
		if !ok || field.Field != tt.want {
			t.Errorf("%s: Enqueue() = %v, want a fault of %s", name, err, tt.want)
		}
	}
	w.enqueue(db.NewJob{Command: command, SingletonKey: strings.Repeat("ü", 255), NotBefore: time.Now().Add(399 * day)})
	if n := w.count("select count(*) from event_log where organization_id = $1", w.org); n != 1 {
		t.Errorf("%d events exist, want the one that keeps the rules", n)
	}
}

func TestEnqueueIsForTheOrganizationOfTheSession(t *testing.T) {
	t.Parallel()
	w := setup(t)
	other := dbtest.Org(t, w.db)
	stranger := world{T: t, db: w.db, url: w.url, org: other}
	stranger.enqueue(db.NewJob{Command: "custom.a_requested", SingletonKey: "k", NotBefore: time.Now().Add(day)})
	for sql, want := range map[string]string{
		"select enqueue('custom.a_requested', 'x', null, p_organization_id => $2)":                         "organization_id",
		"select enqueue('custom.a_requested', 'x', null, p_singleton_key => 'k', p_organization_id => $2)": "organization_id",
		"select end_job('00000000-0000-0000-0000-000000000000', $2, 'no')":                                 "organization_id",
	} {
		conn := dbtest.Conn(t, w.url)
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "select set_config('app.organization_id', $1, true), set_config('role', 'deskcomm_api', true)", w.org.String()); err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(t.Context(), strings.ReplaceAll(sql, "$2", "'"+other.String()+"'"))
		if got := columnOf(err); got != want {
			t.Errorf("%s = %v, want a fault of %s", sql, err, want)
		}
	}
}

func TestSingletonIsOneHoweverManyAskAtOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	command := ownCommand()
	for _, policy := range []db.JobPolicy{db.JobKeep, db.JobRefuse, db.JobReplace} {
		var all sync.WaitGroup
		made := make([]db.Job, 20)
		errs := make([]error, 20)
		for i := range 20 {
			all.Go(func() {
				made[i], errs[i] = w.tryEnqueue(db.NewJob{Command: command, SingletonKey: string(policy), Policy: policy, NotBefore: time.Now().Add(day)})
			})
		}
		all.Wait()
		anew, ids := 0, make(map[uuid.UUID]bool)
		for i, err := range errs {
			switch {
			case err != nil && (policy != db.JobRefuse || !errors.Is(err, bus.ErrConflict)):
				t.Errorf("%s: Enqueue() = %v", policy, err)
			case err == nil:
				ids[made[i].ID] = true
				if !made[i].Kept {
					anew++
				}
			}
		}
		waiting := w.count("select count(*) from waiting_job where organization_id = $1 and event_type = $2", w.org, command)
		events := w.count("select count(*) from event_log where organization_id = $1 and event_type = $2 and metadata ->> 'singleton_key' = $3", w.org, command, string(policy))
		wantNew := 1
		if policy == db.JobReplace {
			wantNew = 20
		}
		if waiting != 1 || anew != wantNew || len(ids) != wantNew || events != wantNew {
			t.Errorf("%s: %d wait, %d are new of %d ids and %d events, want 1 waiting and %d new", policy, waiting, anew, len(ids), events, wantNew)
		}
		w.exec("delete from waiting_job where organization_id = $1", w.org)
	}
}

// What a key does for the next caller while its job is at each place of its life.
func TestSingletonHoldsItsKeyUntilItHasEnded(t *testing.T) {
	t.Parallel()
	type place struct {
		name  string
		reach func(w world, consumer string, job db.Job)
		ended bool
		hand  bool
	}
	claimed := func(w world, consumer string) bus.Delivery {
		_, list := w.claimedIDs(consumer)
		if len(list) != 1 {
			w.Fatalf("claimed %d, want the job", len(list))
		}
		return list[0]
	}
	for _, p := range []place{
		{name: "waiting for its time", reach: func(world, string, db.Job) {}},
		{name: "in the outbox", reach: func(w world, _ string, job db.Job) {
			w.exec(`with j as (delete from waiting_job where event_id = $1 returning *)
				insert into outbox (event_id, organization_id, event_type, created_at) select event_id, organization_id, event_type, created_at from j`, job.ID)
		}},
		{name: "due", reach: func(w world, _ string, _ db.Job) { w.pass(day); w.relay() }},
		{name: "in hand", hand: true, reach: func(w world, consumer string, _ db.Job) { w.pass(day); claimed(w, consumer) }},
		{name: "between attempts", reach: func(w world, consumer string, _ db.Job) {
			w.pass(day)
			w.settle(claimed(w, consumer), bus.VerdictRetry, "no luck")
		}},
		{name: "perhaps done", hand: true, reach: func(w world, _ string, job db.Job) {
			w.pass(day)
			w.relay()
			w.exec("update delivery set effect_at = now(), suspect = true, due_at = now() + interval '1 hour' where event_id = $1", job.ID)
		}},
		{name: "done", ended: true, reach: func(w world, consumer string, _ db.Job) {
			w.pass(day)
			w.settle(claimed(w, consumer), bus.VerdictDone, "")
		}},
		{name: "dead", ended: true, reach: func(w world, consumer string, _ db.Job) {
			w.pass(day)
			w.settle(claimed(w, consumer), bus.VerdictDead, "never")
		}},
		{name: "cancelled", ended: true, reach: func(w world, _ string, job db.Job) {
			if err := w.cancel(job.ID, "no more"); err != nil {
				w.Fatal(err)
			}
		}},
	} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			command := ownCommand()
			consumer := w.consumer(command)
			first := w.enqueue(db.NewJob{Command: command, SingletonKey: "k", NotBefore: time.Now().Add(day)})
			p.reach(w, consumer, first)

			kept := w.enqueue(db.NewJob{Command: command, SingletonKey: "k", NotBefore: time.Now().Add(day)})
			if p.ended {
				if kept.Kept || kept.ID == first.ID {
					t.Fatalf("keep = %+v after the first has ended, want a new job", kept)
				}
				return
			}
			if !kept.Kept || kept.ID != first.ID {
				t.Errorf("keep = %+v, want the first job %s", kept, first.ID)
			}
			if _, err := w.tryEnqueue(db.NewJob{Command: command, SingletonKey: "k", Policy: db.JobRefuse}); !errors.Is(err, bus.ErrConflict) {
				t.Errorf("refuse = %v, want a conflict", err)
			}
			other := w.enqueue(db.NewJob{Command: command, SingletonKey: "other", NotBefore: time.Now().Add(300 * day)})
			if other.Kept {
				t.Error("another key was kept too")
			}
			second := w.enqueue(db.NewJob{Command: command, SingletonKey: "k", Policy: db.JobReplace, Payload: []byte(`{"n":2}`)})
			w.relay()
			if p.hand {
				if got := w.states(first.ID)[consumer]; strings.HasPrefix(got, "discarded") || got == "" {
					t.Errorf("the job in hand is %q, want it to run on", got)
				}
			} else {
				if got := w.states(first.ID)[consumer]; !strings.HasPrefix(got, "discarded") {
					t.Errorf("the replaced job is %q, want discarded", got)
				}
				if got := w.eventStatus(first.ID); got != "discarded" {
					t.Errorf("the replaced job's status = %s, want discarded", got)
				}
				if n := w.count("select count(*) from receipt where organization_id = $1 and reason = 'replaced by a later job' and event_ids = array[$2::uuid]", w.org, first.ID); n != 1 {
					t.Errorf("%d receipts say that it was replaced, want 1", n)
				}
			}
			ids, list := w.claimedIDs(consumer)
			if !cmp.Equal(ids, []uuid.UUID{second.ID}) || string(list[0].Event.Payload) != `{"n": 2}` {
				t.Fatalf("claimed %v, want the newest %v", ids, second.ID)
			}
			// The key is the newest one's by now.
			if again := w.enqueue(db.NewJob{Command: command, SingletonKey: "k"}); again.ID != second.ID {
				t.Errorf("keep = %+v, want the newest job %s", again, second.ID)
			}
		})
	}
}

func TestWebhookThatHangsDoesNotHoldAKey(t *testing.T) {
	t.Parallel()
	w := setup(t)
	command := ownCommand()
	consumer := w.consumer(command)
	first := w.enqueue(db.NewJob{Command: command, SingletonKey: "k"})
	w.relay()
	w.exec(`insert into delivery (consumer_id, destination, organization_id, seq, event_id, due_at)
		select (select id from consumers where name = $1), uuid_v7(), $2, seq, event_id, now() from event_position where event_id = $3`,
		consumer, w.org, first.ID)
	_, list := w.claimedIDs(consumer)
	for _, d := range list {
		if d.Destination == uuid.Nil {
			w.settle(d, bus.VerdictDone, "")
		}
	}
	if next := w.enqueue(db.NewJob{Command: command, SingletonKey: "k"}); next.Kept {
		t.Error("the key is held by what a webhook has not received")
	}
}

func TestJobOfOneIdempotencyKeyIsOne(t *testing.T) {
	t.Parallel()
	w := setup(t)
	command := ownCommand()
	job := db.NewJob{Command: command, NotBefore: time.Now().Add(day), Metadata: map[string]json.RawMessage{"idempotency_key": []byte(`"once"`)}}
	first := w.enqueue(job)
	second := w.enqueue(job)
	if first.Kept || !second.Kept || first.ID != second.ID || !second.NotBefore.Equal(first.NotBefore) {
		t.Errorf("enqueued %+v and %+v, want the first twice", first, second)
	}
	// A key that was used for a job that was kept stays that job's, also when it has ended.
	w.consumer(command)
	held := w.enqueue(db.NewJob{Command: command, SingletonKey: "k"})
	again := db.NewJob{Command: command, SingletonKey: "k", Metadata: map[string]json.RawMessage{"idempotency_key": []byte(`"twice"`)}}
	w.enqueue(again)
	if err := w.cancel(held.ID, "enough"); err != nil {
		t.Fatal(err)
	}
	if got := w.enqueue(again); got.ID != held.ID {
		t.Errorf("the repeated request = %+v, want its first answer %s", got, held.ID)
	}
}

func TestOnlyAJobThatWaitsIsCancelled(t *testing.T) {
	t.Parallel()
	w := setup(t)
	command := ownCommand()
	consumer := w.consumer(command)
	waiting := w.enqueue(db.NewJob{Command: command, NotBefore: time.Now().Add(day)})
	outbox := w.enqueue(db.NewJob{Command: command})
	for _, id := range []uuid.UUID{waiting.ID, outbox.ID} {
		if err := w.cancel(id, "the customer has paid"); err != nil {
			t.Fatal(err)
		}
		if err := w.cancel(id, "again"); !errors.Is(err, bus.ErrConflict) {
			t.Errorf("CancelJob() again = %v, want a conflict", err)
		}
	}
	if ids, _ := w.claimedIDs(consumer); ids != nil {
		t.Fatalf("claimed %v, want nothing of what was cancelled", ids)
	}
	for _, id := range []uuid.UUID{waiting.ID, outbox.ID} {
		if got, want := w.states(id)[consumer], "discarded 0/3"; got != want {
			t.Errorf("the cancelled job is %q, want %q", got, want)
		}
		if n := w.count("select count(*) from audit_log where resource_id = $1 and action = 'job.cancelled' and metadata ->> 'reason' = 'the customer has paid'", id); n != 1 {
			t.Errorf("%d audit rows, want 1", n)
		}
	}
	due := w.enqueue(db.NewJob{Command: command})
	_, list := w.claimedIDs(consumer)
	if err := w.cancel(due.ID, "too late"); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("CancelJob() of one in hand = %v, want a conflict", err)
	}
	w.settle(list[0], bus.VerdictDone, "")
	if got, want := w.states(due.ID)[consumer], "done 1/3"; got != want {
		t.Errorf("the job that was in hand is %q, want %q", got, want)
	}
	for name, id := range map[string]uuid.UUID{"no event": uuid.New(), "a fact": w.emit(ownType())} {
		if err := w.cancel(id, "x"); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("CancelJob() of %s = %v, want not found", name, err)
		}
	}
	stranger := world{T: t, db: w.db, url: w.url, org: dbtest.Org(t, w.db)}
	mine := w.enqueue(db.NewJob{Command: command, NotBefore: time.Now().Add(day)})
	if err := stranger.cancel(mine.ID, "x"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("CancelJob() by another organization = %v, want not found", err)
	}
	for _, reason := range []string{"", " ", strings.Repeat("x", 501), "\xff", "a\x00"} {
		if _, ok := errors.AsType[*bus.FieldError](w.cancel(mine.ID, reason)); !ok {
			t.Errorf("a reason of %d bytes is taken, want a refusal", len(reason))
		}
	}
}

func TestWorkerOfSQLEnqueuesAndCancels(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var id uuid.UUID
	const enqueueSQL = "select id from enqueue($1, 'thing', null, p_not_before => now() + interval '7 days', p_organization_id => $2)"
	if err := dbtest.Row(t, w.url, enqueueSQL, []any{ownCommand(), w.org}, &id); err != nil {
		t.Fatal(err)
	}
	w.exec("select cancel_job($1, 'not needed')", id)
	if n := w.count("select count(*) from audit_log where resource_id = $1 and action = 'job.cancelled'", id); n != 1 {
		t.Errorf("%d audit rows, want 1", n)
	}
	for sql, want := range map[string]string{
		"select cancel_job($1, 'again')":         "55000",
		"select cancel_job($1, '')":              "22023",
		"select cancel_job(uuid_v7(), $1::text)": "P0002",
	} {
		if got := w.refusal(sql, id); !strings.Contains(got, want) {
			t.Errorf("%s = %s, want %s", sql, got, want)
		}
	}
}

func TestPruningKeepsTheKeysOfUnfinishedJobs(t *testing.T) {
	t.Parallel()
	w := alone(t)
	command := ownCommand()
	w.exec(`insert into job_singleton select $1, $2, 'ended' || n, null, now() - interval '1 second' from generate_series(1, 2500) n`, w.org, command)
	w.enqueue(db.NewJob{Command: command, SingletonKey: "waits", NotBefore: time.Now().Add(day)})
	w.enqueue(db.NewJob{Command: command, SingletonKey: "fresh"})
	w.exec("update job_singleton set check_after = now() - interval '1 second' where singleton_key = 'waits'")
	if err := w.db.PruneExpired(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := w.count("select count(*) from job_singleton where singleton_key in ('waits', 'fresh') and check_after > now()"); n != 2 {
		t.Errorf("%d keys of unfinished jobs are kept, want 2", n)
	}
	if n := w.count("select count(*) from job_singleton"); n != 2 {
		t.Errorf("%d keys are left, want 2", n)
	}
}
