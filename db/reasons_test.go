package db_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// read is the state of the event's one delivery and the reason that it shows.
func (w world) read(event uuid.UUID) (state, reason string) {
	w.Helper()
	w.inOrg(func(tx *db.OrgTx) error {
		rows, err := tx.EventDeliveries(w.Context(), event)
		if err == nil && len(rows) != 1 {
			w.Fatalf("%d deliveries are shown, want the one", len(rows))
		}
		if err == nil {
			state = rows[0].Status
			if rows[0].LastError != nil {
				reason = *rows[0].LastError
			}
		}
		return err
	})
	return state, reason
}

func TestInvariant14WhateverBecomesOfADeliveryItStaysAndShowsItsReason(t *testing.T) {
	t.Parallel()
	settled := func(v bus.Verdict) func(w world, consumer string, d bus.Delivery) {
		return func(w world, _ string, d bus.Delivery) { w.settle(d, v, "the reason") }
	}
	for name, tt := range map[string]struct {
		happen func(w world, consumer string, d bus.Delivery)
		state  string
		reason string
	}{
		"skipped":   {settled(bus.VerdictSkip), "skipped", "the reason"},
		"postponed": {settled(bus.VerdictPostpone), "pending", "the reason"},
		"failed":    {settled(bus.VerdictRetry), "pending", "the reason"},
		"refused":   {settled(bus.VerdictDead), "dead", "the reason"},
		"uncertain": {settled(bus.VerdictUncertain), "uncertain", "the reason"},
		"failed at the last attempt": {func(w world, consumer string, d bus.Delivery) {
			w.exec("update consumers set max_attempts = 1 where name = $1", consumer)
			w.settle(d, bus.VerdictRetry, "the reason")
		}, "dead", "the reason"},
		"crashed alone at the last attempt": {func(w world, consumer string, _ bus.Delivery) {
			w.exec("update consumers set max_attempts = 1 where name = $1", consumer)
			w.exec("update delivery set suspect = true where organization_id = $1", w.org)
			w.later(time.Hour)
			w.claim(consumer, 1)
		}, "dead", bus.ErrCrashed.Error()},
		"discarded by a person": {func(w world, _ string, d bus.Delivery) {
			w.settle(d, bus.VerdictDead, "broken")
			w.inOrg(func(tx *db.OrgTx) error { return tx.Discard(w.Context(), d.ID, "the reason") })
			if n := w.count("select count(*) from dead_delivery where delivery_id = $1 and reason = 'the reason'", d.ID); n != 1 {
				w.Error("why a person discarded it is not kept")
			}
		}, "discarded", "broken"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			typ := ownType()
			consumer := w.consumer(typ)
			event := w.emit(typ)
			w.relay()
			tt.happen(w, consumer, w.claim(consumer, 1)[0])
			if state, reason := w.read(event); state != tt.state || reason != tt.reason {
				t.Errorf("shown as %q because of %q, want %q because of %q", state, reason, tt.state, tt.reason)
			}
		})
	}
}

func TestInvariant14WhatADeletedSubscriptionWouldHaveGotIsDiscardedWithTheReason(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	sub := w.subscribe("custom.*")
	event := w.emit(ownType())
	w.relay()
	w.inOrg(func(tx *db.OrgTx) error { return tx.DeleteSubscription(t.Context(), sub) })
	if state, reason := w.read(event); state != "discarded" || reason == "" {
		t.Errorf("shown as %q because of %q, want discarded and a reason", state, reason)
	}
}

// Nobody sees or decides anything by the id of another organization's.
func TestInvariant11AnotherOrganizationsIDsLeadNowhere(t *testing.T) {
	t.Parallel()
	mine := setup(t)
	theirs := mine
	theirs.org = dbtest.Org(t, mine.db)
	_, event, uncertain := theirs.uncertain()
	typ := ownType()
	consumer := theirs.consumer(typ)
	theirs.emit(typ)
	theirs.relay()
	dead := theirs.claim(consumer, 1)[0]
	theirs.settle(dead, bus.VerdictDead, "broken")
	before := theirs.bus()
	for name, try := range map[string]func(tx *db.OrgTx) error{
		"an event":        func(tx *db.OrgTx) error { _, err := tx.Event(t.Context(), event); return err },
		"a dead delivery": func(tx *db.OrgTx) error { _, err := tx.DeadDelivery(t.Context(), dead.ID); return err },
		"a replay":        func(tx *db.OrgTx) error { return tx.Replay(t.Context(), dead.ID, "") },
		"a discard":       func(tx *db.OrgTx) error { return tx.Discard(t.Context(), dead.ID, "x") },
		"a confirmation":  func(tx *db.OrgTx) error { return tx.ConfirmDone(t.Context(), uncertain.ID, "") },
	} {
		if err := mine.db.InOrg(t.Context(), mine.org, dbtest.Actor(), try); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("%s of another organization = %v, want %v", name, err, bus.ErrNotFound)
		}
	}
	mine.inOrg(func(tx *db.OrgTx) error {
		rows, err := tx.EventDeliveries(t.Context(), event)
		events, err2 := tx.Events(t.Context(), db.EventFilter{Limit: 10})
		all, err3 := tx.DeadDeliveries(t.Context(), db.DeadFilter{Limit: 10})
		some, err4 := tx.DeadByID(t.Context(), dead.ID, uncertain.ID)
		if n := len(rows) + len(events) + len(all) + len(some); n != 0 {
			t.Errorf("%d deliveries, %d events and %d dead of another organization are listed, want none", len(rows), len(events), len(all)+len(some))
		}
		return errors.Join(err, err2, err3, err4)
	})
	if diff := cmp.Diff(before, theirs.bus()); diff != "" {
		t.Errorf("their rows have changed (-before +after):\n%s", diff)
	}
	if n := mine.count("select count(*) from audit_log where organization_id = $1 and action like 'delivery.%'", mine.org); n != 0 {
		t.Errorf("%d decisions are audited that were none", n)
	}
}

// Only what waits for a person is decided: the rest is refused, whatever is asked
// for, and nothing of it runs again.
func TestInvariant15WhatSucceededOrStillRunsIsNotDecidedByAPerson(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		until func(w world, d bus.Delivery)
		state string
	}{
		"done":       {func(w world, d bus.Delivery) { w.settle(d, bus.VerdictDone, "") }, "done"},
		"skipped":    {func(w world, d bus.Delivery) { w.settle(d, bus.VerdictSkip, "pointless") }, "skipped"},
		"processing": {func(world, bus.Delivery) {}, "processing"},
		"pending":    {func(w world, d bus.Delivery) { w.settle(d, bus.VerdictRetry, "again") }, "pending"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			typ := ownType()
			consumer := w.consumer(typ)
			event := w.emit(typ)
			w.relay()
			d := w.claim(consumer, 1)[0]
			tt.until(w, d)
			before := w.bus()
			for act, decide := range map[string]func(tx *db.OrgTx) error{
				"replay":  func(tx *db.OrgTx) error { return tx.Replay(t.Context(), d.ID, "again") },
				"confirm": func(tx *db.OrgTx) error { return tx.ConfirmDone(t.Context(), d.ID, "seen") },
				"discard": func(tx *db.OrgTx) error { return tx.Discard(t.Context(), d.ID, "away") },
			} {
				err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), decide)
				if !errors.Is(err, bus.ErrNotFound) && !errors.Is(err, bus.ErrConflict) {
					t.Errorf("%s = %v, want it refused", act, err)
				}
			}
			for _, sql := range []string{"select reprocess_event($1)", "select reprocess_event($1, $2)", "select discard_event($1, $2, 'away')"} {
				args := []any{event, consumer}
				if sql == "select reprocess_event($1)" {
					args = args[:1]
				}
				if got := w.refusal(sql, args...); got[:5] != "55000" {
					t.Errorf("%s is refused with %q, want 55000", sql, got)
				}
			}
			if diff := cmp.Diff(before, w.bus()); diff != "" {
				t.Errorf("rows have changed (-before +after):\n%s", diff)
			}
			if state, _ := w.read(event); state != tt.state {
				t.Errorf("it is %q, want %q", state, tt.state)
			}
		})
	}
}
