package db_test

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

func TestCancelledHeadOfALaneLetsTheNextOneRun(t *testing.T) {
	t.Parallel()
	w := setup(t)
	command := ownCommand()
	consumer := w.consumer(command)
	w.exec("update consumers set ordering = 'key' where name = $1", consumer)
	key := map[string]json.RawMessage{"order_key": []byte(`"` + uuid.NewString() + `"`)}
	head := w.enqueue(db.NewJob{Command: command, Metadata: key})
	next := w.enqueue(db.NewJob{Command: command, Metadata: key})
	w.relay()
	if err := w.cancel(head.ID, "no more"); err != nil {
		t.Fatal(err)
	}
	if ids, _ := w.claimedIDs(consumer); !cmp.Equal(ids, []uuid.UUID{next.ID}) {
		t.Errorf("claimed %v, want the next of the lane %v", ids, next.ID)
	}
}

// Who settles the head of a lane holds it, and then makes the next one current. A
// cancellation that holds the next one and asks for the head would wait for ever.
func TestCancellationHoldsAJobOnlyAfterTheHeadOfItsLane(t *testing.T) {
	t.Parallel()
	w := freshWorld(t)
	command := ownCommand()
	w.ordered(bus.OrderingStrict, command)
	w.enqueue(db.NewJob{Command: command})
	next := w.enqueue(db.NewJob{Command: command})
	w.relay()
	settling, err := dbtest.Conn(t, w.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer settling.Rollback(context.Background()) //nolint:errcheck // it is over
	var pid uint32
	if err := settling.QueryRow(t.Context(), "delete from delivery where due_at < 'infinity' returning pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	cancelled := make(chan error, 1)
	go func() { cancelled <- w.cancel(next.ID, "no more") }()
	dbtest.Eventually(t, "the cancellation waits for the head", func() bool {
		return w.count("select count(*) from pg_stat_activity where $1::int = any (pg_blocking_pids(pid))", int(pid)) == 1
	})
	if _, err := settling.Exec(t.Context(), "select from delivery where event_id = $1 for update nowait", next.ID); err != nil {
		t.Errorf("the next of the lane is locked already: %v", err)
	}
	if err := settling.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-cancelled; err != nil {
		t.Errorf("the cancellation = %v, want success", err)
	}
	w.lanesAreSound()
}

// The relay that finds nothing to relay wakes nobody.
func TestWhatStoodBehindADiscardedJobIsClaimedAtOnce(t *testing.T) {
	t.Parallel()
	for name, discard := range map[string]func(w world, command bus.Type, head db.Job) error{
		"cancelled": func(w world, _ bus.Type, head db.Job) error { return w.cancel(head.ID, "no more") },
		"replaced": func(w world, command bus.Type, _ db.Job) error {
			_, err := w.tryEnqueue(db.NewJob{Command: command, SingletonKey: "k", Policy: db.JobReplace})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var due atomic.Int32
			url := dbtest.Fresh(t)
			d := dbtest.Open(t, url, db.Options{Due: func() { due.Add(1) }})
			w := world{T: t, db: d, url: url, org: dbtest.Org(t, d)}
			command := ownCommand()
			w.ordered(bus.OrderingStrict, command)
			head := w.enqueue(db.NewJob{Command: command, SingletonKey: "k"})
			w.enqueue(db.NewJob{Command: command})
			w.relay()
			before := due.Load()
			if err := discard(w, command, head); err != nil {
				t.Fatal(err)
			}
			if got := due.Load() - before; got != 1 {
				t.Errorf("told %d times that something is due, want once", got)
			}
		})
	}
}
