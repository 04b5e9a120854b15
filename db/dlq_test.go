package db_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

func TestInvariant15ReplayRunsOnlyTheDeadDeliveryAgain(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	a, b, c := w.consumer(typ), w.consumer(typ), w.consumer(typ)
	id := w.emit(typ)
	w.relay()
	w.settle(w.claim(a, 1)[0], bus.VerdictDone, "")
	w.settle(w.claim(b, 1)[0], bus.VerdictDone, "")
	dead := w.claim(c, 1)[0]
	w.settle(dead, bus.VerdictDead, "the receiver refused it")

	replay := func() error {
		return w.db.InOrg(t.Context(), w.org, db.Actor{Kind: db.ActorUser, Name: "ana"}, func(tx *db.OrgTx) error {
			return tx.Replay(t.Context(), dead.ID, "the receiver is repaired")
		})
	}
	if err := replay(); err != nil {
		t.Fatal(err)
	}
	if err := replay(); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("second replay = %v, want a conflict", err)
	}
	if got, want := w.states(id), map[string]string{a: "done 1/3", b: "done 1/3", c: "pending 0/3"}; !cmp.Equal(got, want) {
		t.Errorf("after the replay: %v, want %v", got, want)
	}
	if n := len(w.claim(a, 10)) + len(w.claim(b, 10)); n != 0 {
		t.Errorf("%d deliveries of the others came back", n)
	}
	again := w.claim(c, 10)
	if len(again) != 1 || again[0].ID != dead.ID || again[0].Attempt != 2 || again[0].Budgeted != 1 {
		t.Fatalf("claimed after the replay: %+v, want the same delivery at attempt 2, first of a new budget", again)
	}
	w.settle(again[0], bus.VerdictDone, "")
	if err := replay(); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("replay of what is done = %v, want a conflict", err)
	}
	var actor, oldError, reason string
	err := dbtest.Conn(t, w.url).QueryRow(t.Context(), `
		select actor_name, metadata ->> 'old_error', metadata ->> 'reason' from audit_log
		 where organization_id = $1 and action = 'delivery.replayed' and resource_id = $2`, w.org, dead.ID).Scan(&actor, &oldError, &reason)
	if err != nil || actor != "ana" || oldError != "the receiver refused it" || reason != "the receiver is repaired" {
		t.Errorf("audit row says %q, %q, %q, %v", actor, oldError, reason, err)
	}
}

func TestDiscardNeedsAReasonAndEndsADeadDelivery(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.consumer(typ)
	id := w.emit(typ)
	w.relay()
	dead := w.claim(consumer, 1)[0]
	w.settle(dead, bus.VerdictDead, "broken")
	discard := func(reason string) error {
		return w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error { return tx.Discard(t.Context(), dead.ID, reason) })
	}
	if _, ok := errors.AsType[*bus.FieldError](discard("")); !ok {
		t.Error("a discard without a reason was accepted")
	}
	if err := discard("test data"); err != nil {
		t.Fatal(err)
	}
	if err := discard("again"); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("second discard = %v, want a conflict", err)
	}
	if got, want := w.states(id), map[string]string{consumer: "discarded 1/3"}; !cmp.Equal(got, want) {
		t.Errorf("after the discard: %v, want %v", got, want)
	}
}
