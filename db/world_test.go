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
