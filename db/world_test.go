package db_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// world is one test's organization on the shared clone.
type world struct {
	*testing.T
	db  *db.DB
	url string
	org uuid.UUID
}

func setup(t *testing.T) world {
	t.Helper()
	d := dbtest.DB(t)
	return world{T: t, db: d, url: dbtest.URL(t), org: dbtest.Org(t, d)}
}

// consumer registers a reader that nobody else's test reads as.
func (w world) consumer(types ...bus.Type) string {
	w.Helper()
	name := "t" + strings.ReplaceAll(uuid.NewString(), "-", "")[:20] + "-worker"
	c := bus.Consumer{Name: name, Types: types, Effect: bus.EffectAtLeastOnce, Retry: bus.Ladder([]time.Duration{time.Hour, time.Hour})}
	if err := w.db.RegisterConsumers(w.Context(), []bus.Consumer{c}); err != nil {
		w.Fatal(err)
	}
	return name
}

// ownType is an event type that only this test emits.
func ownType() bus.Type {
	return bus.Type("custom.t" + strings.ReplaceAll(uuid.NewString(), "-", ""))
}

func (w world) emit(typ bus.Type) uuid.UUID {
	w.Helper()
	var ev db.Emitted
	err := w.db.InOrg(w.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) (err error) {
		ev, err = tx.Emit(w.Context(), db.NewEvent{Type: typ, EntityKind: "thing", Payload: json.RawMessage(`{"n":1}`)})
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return ev.ID
}

// relay moves everything that is in the outbox.
func (w world) relay() {
	w.Helper()
	for {
		n, err := w.db.Relay(w.Context())
		if err != nil {
			w.Error(err) // and not Fatal: relays run beside the test too
		}
		if n == 0 || err != nil {
			return
		}
	}
}

func (w world) claim(consumer string, limit int) []bus.Delivery {
	w.Helper()
	claimed, err := w.db.Claim(w.Context(), bus.Claim{Wants: []bus.Want{{Consumer: consumer, Limit: limit}}, Suspect: true})
	if err != nil {
		w.Fatal(err)
	}
	return claimed
}

func (w world) settle(d bus.Delivery, verdict bus.Verdict, text string) []bus.Lease {
	w.Helper()
	lost, err := w.db.Settle(w.Context(), []bus.Settlement{{Delivery: &d, Verdict: verdict, Error: text}})
	if err != nil {
		w.Fatal(err)
	}
	return lost
}

// later makes the organization's deliveries as old as if d had passed.
func (w world) later(d time.Duration) {
	w.Helper()
	w.exec("update delivery set due_at = due_at - $2::interval where organization_id = $1", w.org, d)
}

func (w world) exec(sql string, args ...any) {
	w.Helper()
	if _, err := dbtest.Exec(w.T, w.url, sql, args...); err != nil {
		w.Fatal(err)
	}
}

func (w world) count(sql string, args ...any) int {
	w.Helper()
	var n int
	if err := dbtest.Row(w.T, w.url, sql, args, &n); err != nil {
		w.Fatal(err)
	}
	return n
}

// states maps each consumer of an event to what became of its delivery.
func (w world) states(event uuid.UUID) map[string]string {
	w.Helper()
	states := make(map[string]string)
	err := w.db.InOrg(w.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
		rows, err := tx.EventDeliveries(w.Context(), event)
		for _, r := range rows {
			states[r.Consumer] = fmt.Sprintf("%s %d/%d", r.Status, r.Attempts, r.MaxAttempts)
		}
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return states
}

// logRow is the event's row in the log as it lies there, with the place and the
// transaction of its version: an update that changes nothing would show too.
func (w world) logRow(event uuid.UUID) string {
	w.Helper()
	var row string
	err := dbtest.Row(w.T, w.url, "select concat_ws(' ', e.tableoid::regclass, e.ctid, e.xmin, e.xmax, e::text) from event_log e where e.id = $1", []any{event}, &row)
	if err != nil {
		w.Fatal(err)
	}
	return row
}

// waiting counts the sessions of the database that wait for a lock behind the one
// of pid, or in the queue for it, in a statement that contains text.
func (w world) waiting(pid uint32, text string) int {
	w.Helper()
	return w.count(`
		with recursive behind as (
		    select $1::int as pid
		    union
		    select a.pid from pg_stat_activity a join behind b on b.pid = any (pg_blocking_pids(a.pid)) where a.datname = current_database()
		)
		select count(*)
		  from behind
		  join pg_stat_activity a using (pid)
		 where a.pid <> $1 and a.wait_event_type = 'Lock' and position($2 in a.query) > 0`, int(pid), text)
}
