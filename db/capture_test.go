package db_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// rounds is how often a proof is repeated that chance could make succeed once.
const rounds = 3

// begin opens a transaction on a connection of its own.
func (w world) begin() pgx.Tx {
	w.Helper()
	tx, err := dbtest.Conn(w.T, w.url).Begin(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return tx
}

const emitSQL = `select emit_event($1, 'contact', null, '{"n": 1}', '{}', $2)`

// emitIn emits in somebody's transaction.
func (w world) emitIn(tx pgx.Tx, typ bus.Type) uuid.UUID {
	w.Helper()
	var id uuid.UUID
	if err := tx.QueryRow(w.Context(), emitSQL, typ, w.org).Scan(&id); err != nil {
		w.Fatal(err)
	}
	return id
}

// rows counts what one sees of everything that may come of an event.
func (w world) rows(c interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
},
) map[string]int {
	w.Helper()
	counts := make(map[string]int)
	for _, table := range []string{"contacts", "event_log", "outbox", "event_position", "delivery", "receipt"} {
		var n int
		if err := c.QueryRow(w.Context(), "select count(*) from "+table).Scan(&n); err != nil {
			w.Fatal(err)
		}
		if n > 0 {
			counts[table] = n
		}
	}
	return counts
}

// A fact that no handler reads is finished from the moment it has its place, a
// command is not: neither is a reason to leave it out, and neither is changed.
func TestFactWithoutReadersAndCommandWithOneAreBothCaptured(t *testing.T) {
	t.Parallel()
	w := alone(t)
	sender := w.consumer("message.send_requested")
	fact, command := w.emit("contact.updated"), w.emit("message.send_requested")
	before := []string{w.logRow(fact), w.logRow(command)}
	if n := w.count("select count(*) from outbox where event_id in ($1, $2)", fact, command); n != 2 {
		t.Errorf("%d of the two are in the outbox, want both", n)
	}
	w.relay()
	if n := w.count("select count(*) from event_position where event_id in ($1, $2)", fact, command); n != 2 {
		t.Errorf("%d of the two have a place, want both", n)
	}
	if got := w.status(fact); got != "done 0 0 - f" {
		t.Errorf("the fact is %q, want it done and read by nobody", got)
	}
	if got := w.status(command); got != "pending 0 0 - t" {
		t.Errorf("the command is %q, want it pending", got)
	}
	claimed := w.claim(sender, 10)
	if len(claimed) != 1 || claimed[0].Event.ID != command {
		t.Fatalf("claimed %d deliveries, want the command's", len(claimed))
	}
	w.settle(claimed[0], bus.VerdictDone, "")
	if got := w.status(command); got != "done 1 1 - f" {
		t.Errorf("after the delivery the command is %q, want it done", got)
	}
	if diff := cmp.Diff(before, []string{w.logRow(fact), w.logRow(command)}); diff != "" {
		t.Errorf("the log has changed (-before +after):\n%s", diff)
	}
}

// Everything that comes of an event in the transaction that emits it, up to the
// receipt of a worker that has read it, is gone with that transaction.
func TestInvariant1RollbackTakesEventsDeliveriesAndReceiptsWithIt(t *testing.T) {
	t.Parallel()
	w := alone(t)
	w.exec("select register_consumer('crm-worker', '{contact.created}')")
	none := map[string]int{}
	for round := range rounds {
		tx := w.begin()
		if got := w.rows(tx); !cmp.Equal(got, none) {
			t.Fatalf("round %d begins with %v", round, got)
		}
		for _, sql := range []string{
			"insert into contacts (organization_id, name) values ($1, 'Ana')",
			"select emit_event('contact.created', 'contact', null, '{}', '{}', $1) from generate_series(1, 2)",
			"select relay_events(10) where $1::uuid is not null",
			"update delivery set due_at = now() where organization_id = $1", // a transaction stands still at its beginning, before they were due
			"select ack_event(id, 'crm-worker', lease_token) from claim_events('crm-worker', null, 1) where $1::uuid is not null",
			"select emit_event('contact.created', 'contact', null, '{}', '{}', $1)",
		} {
			if _, err := tx.Exec(t.Context(), sql, w.org); err != nil {
				t.Fatal(err)
			}
		}
		want := map[string]int{"contacts": 1, "event_log": 3, "outbox": 1, "event_position": 2, "delivery": 1, "receipt": 1}
		if diff := cmp.Diff(want, w.rows(tx)); diff != "" {
			t.Errorf("round %d: the transaction sees (-want +got):\n%s", round, diff)
		}
		outside := dbtest.Conn(t, w.url)
		if got := w.rows(outside); !cmp.Equal(got, none) {
			t.Errorf("round %d: others see %v before the commit, want nothing", round, got)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.relay()
		if got := w.rows(outside); !cmp.Equal(got, none) {
			t.Errorf("round %d: %v are left after the rollback, want nothing", round, got)
		}
	}
	event := w.emit("contact.created")
	w.relay()
	if n := w.count("select seq from event_position where event_id = $1", event); n != 1 {
		t.Errorf("the first event that stayed has place %d, want 1: places of what was rolled back are not used up", n)
	}
}

// One who emits first and commits last is behind the other for every reader. A
// reader that went on from an instant would miss it.
func TestLateCommitIsFoundBehindTheReaderThatHasGoneOn(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for round := range rounds {
		typ := ownType()
		consumer := w.consumer(typ)
		slow, quick := w.begin(), w.begin()
		early, late := w.emitIn(slow, typ), w.emitIn(quick, typ)
		if bytes.Compare(early[:], late[:]) >= 0 {
			t.Fatalf("round %d: ids %s then %s, want them to grow", round, early, late)
		}
		if err := quick.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.relay()
		first := w.claim(consumer, 10)
		if len(first) != 1 || first[0].Event.ID != late {
			t.Fatalf("round %d: claimed %d deliveries, want the one that is committed", round, len(first))
		}
		w.settle(first[0], bus.VerdictDone, "")
		if err := slow.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.relay()
		if n := w.count("select count(*) from event_log where organization_id = $1 and event_type = $2 and created_at > $3", w.org, typ, first[0].Event.CreatedAt); n != 0 {
			t.Errorf("round %d: %d events are younger than the one that was read, want the late commit to be older", round, n)
		}
		if n := w.count("select count(*) from event_position where event_id = $1 and seq > $2", early, first[0].Seq); n != 1 {
			t.Errorf("round %d: the late commit is not behind place %d", round, first[0].Seq)
		}
		second := w.claim(consumer, 10)
		if len(second) != 1 || second[0].Event.ID != early {
			t.Fatalf("round %d: claimed %d deliveries, want the late commit's", round, len(second))
		}
		w.settle(second[0], bus.VerdictDone, "")
	}
}

// The outbox is part of the emission: who cannot write it waits and is not told
// that all is well.
func TestEmissionWaitsForTheOutboxAndGoesOn(t *testing.T) {
	t.Parallel()
	w := alone(t)
	for round := range rounds {
		typ := ownType()
		blocker := w.begin()
		if _, err := blocker.Exec(t.Context(), "lock table outbox in access exclusive mode"); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			ended <- w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
				if err := tx.Record(t.Context(), string(typ), "thing", w.org); err != nil {
					return err
				}
				_, err := tx.Emit(t.Context(), db.NewEvent{Type: typ, EntityKind: "thing"})
				return err
			})
		}()
		dbtest.Eventually(t, "the emission waits for the one that holds the outbox", func() bool {
			return w.waiting(blocker.Conn().PgConn().PID(), "emit_event") == 1
		})
		select {
		case err := <-ended:
			t.Fatalf("round %d: the emission has ended with %v while the outbox was held", round, err)
		default:
		}
		seen := func() int {
			return w.count("select (select count(*) from audit_log where action = $1) + (select count(*) from event_log where event_type = $1)", typ)
		}
		if n := seen(); n != 0 {
			t.Errorf("round %d: others see %d rows of a transaction that waits", round, n)
		}
		if err := blocker.Rollback(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err != nil {
			t.Fatalf("round %d: after the release the emission = %v", round, err)
		}
		if n, captured := seen(), w.count("select count(*) from outbox where event_type = $1", typ); n != 2 || captured != 1 {
			t.Errorf("round %d: %d rows and %d in the outbox, want the change with its event, and it captured", round, n, captured)
		}
	}
}
