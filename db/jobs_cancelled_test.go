package db_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// readLater registers readers of a command that have missed an hour, in each way there is.
func (w world) readLater(command bus.Type) {
	w.Helper()
	w.exec("select register_consumer($1, $2, now() - interval '1 hour')", workerName(), []bus.Type{command})
	w.relay()
	w.backfill(w.past(w.consumer(command)))
	b := w.past("")
	b.Subscription = uuid.NullUUID{UUID: w.subscribe("custom.*"), Valid: true}
	w.backfill(b)
}

func TestAJobThatWasGivenUpIsForNobodyWhoReadsLater(t *testing.T) {
	t.Parallel()
	cancel := func(w world, job db.NewJob) uuid.UUID {
		made := w.enqueue(job)
		if err := w.cancel(made.ID, "the customer has paid"); err != nil {
			w.Fatal(err)
		}
		return made.ID
	}
	for name, give := range map[string]func(w world, command bus.Type) uuid.UUID{
		"before its day, read by nobody": func(w world, command bus.Type) uuid.UUID {
			id := cancel(w, db.NewJob{Command: command, NotBefore: time.Now().Add(day)})
			w.relay()
			return id
		},
		"before its day and just now": func(w world, command bus.Type) uuid.UUID {
			return cancel(w, db.NewJob{Command: command, NotBefore: time.Now().Add(day)})
		},
		"before its relay": func(w world, command bus.Type) uuid.UUID {
			id := cancel(w, db.NewJob{Command: command})
			w.relay()
			return id
		},
		"when it waited for somebody else": func(w world, command bus.Type) uuid.UUID {
			w.consumer(command)
			made := w.enqueue(db.NewJob{Command: command})
			w.relay()
			if err := w.cancel(made.ID, "the customer has paid"); err != nil {
				w.Fatal(err)
			}
			return made.ID
		},
		"for a later one": func(w world, command bus.Type) uuid.UUID {
			first := w.enqueue(db.NewJob{Command: command, NotBefore: time.Now().Add(day), SingletonKey: "k"})
			w.enqueue(db.NewJob{Command: command, NotBefore: time.Now().Add(day), SingletonKey: "k", Policy: db.JobReplace})
			w.relay()
			return first.ID
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := withWebhooks(t)
			command := ownCommand()
			id := give(w, command)
			kept := w.enqueue(db.NewJob{Command: command})
			w.readLater(command)
			w.relay()
			if n := w.count("select count(*) from delivery where event_id = $1", id); n != 0 {
				t.Errorf("it waits for %d readers, want none", n)
			}
			if n := w.count("select count(*) from delivery where event_id = $1 and due_at <= now()", kept.ID); n < 3 {
				t.Errorf("another job waits for %d readers, want all three", n)
			}
			var status string
			err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
				row, err := tx.Event(t.Context(), id)
				status = row.Status
				return err
			})
			if err != nil || status != "discarded" {
				t.Errorf("its status is %q, %v, want discarded", status, err)
			}
		})
	}
}

func TestABackfillAndWhoGivesAJobUpWaitForEachOther(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	command := ownCommand()
	first := w.consumer(command)
	w.enqueue(db.NewJob{Command: command})
	job := w.enqueue(db.NewJob{Command: command})
	w.relay()
	second := w.consumer(command)

	w.heldBy("select cancel_job($1, 'no more')", []any{job.ID}, func(release func()) { // and then not
		made := make(chan error, 1)
		go func() {
			_, err := w.db.RunBackfill(t.Context(), operator(), w.past(second))
			made <- err
		}()
		w.waitsForALock("backfill_deliveries")
		release()
		if err := <-made; err != nil {
			t.Error(err)
		}
	})
	if n := w.count("select count(*) from delivery where event_id = $1", job.ID); n != 2 {
		t.Errorf("what was not given up after all waits for %d readers, want 2", n)
	}

	third := w.consumer(command)
	w.heldBy("select count(*) from backfill_deliveries((select id from consumers where name = $1), '00000000-0000-0000-0000-000000000000', null, now() - interval '1 hour', null, null, 1000, true)",
		[]any{third}, func(release func()) {
			cancelled := make(chan error, 1)
			go func() { cancelled <- w.cancel(job.ID, "no more") }()
			w.waitsForALock("end_job")
			release()
			if err := <-cancelled; err != nil {
				t.Error(err)
			}
		})
	if n := w.backfill(w.past(third)).Made; n != 1 {
		t.Errorf("%d deliveries are made, want that of the other job", n)
	}
	if n := w.count("select count(*) from delivery d join consumers c on c.id = d.consumer_id where d.event_id = $1 and c.name = any ($2)", job.ID, []string{first, second, third}); n != 0 {
		t.Errorf("the job waits for %d readers, want none", n)
	}
}

func TestEndJobIsForTheOrganizationOfTheSession(t *testing.T) {
	t.Parallel()
	w := setup(t)
	job := w.enqueue(db.NewJob{Command: ownCommand(), NotBefore: time.Now().Add(day)})
	for session, want := range map[string]string{"": "42501", uuid.NewString(): "42501"} {
		got := w.refusal("with s as materialized (select set_config('app.organization_id', $1, true) as v) select end_job($2, $3, 'no more') from s where v is not null", session, job.ID, w.org)
		if got[:5] != want {
			t.Errorf("without the organization: %s, want %s", got, want)
		}
	}
	if n := w.count("select count(*) from waiting_job where event_id = $1", job.ID); n != 1 {
		t.Error("the job is gone")
	}
}
