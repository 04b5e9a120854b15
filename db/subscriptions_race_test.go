package db_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// Whoever settles locks the delivery and then its subscription. Deleting locks what the subscription has; what is put back
// into its lane once that is known must not be waited for.
func TestDeletingASubscriptionWaitsForNoDeliveryThatIsReplayedMeanwhile(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	typ := ownType()
	var sub db.Subscription
	w.inOrg(func(tx *db.OrgTx) (err error) {
		sub, err = tx.CreateSubscription(t.Context(), db.NewSubscription{URL: "https://example.com/hook", EventTypes: []string{"*"}, Ordering: bus.OrderingKey})
		return err
	})
	w.emitKeyed(typ, "a")
	d := w.claim(bus.WebhookDispatch, 1)[0]
	w.settle(d, bus.VerdictDead, "broken")
	var tries atomic.Int32
	deleted, settled := make(chan error, 1), make(chan error, 1)
	w.heldBy("select from webhook_subscriptions where id = $1 for update", []any{sub.ID}, func(release func()) {
		go func() {
			deleted <- w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
				tries.Add(1)
				return tx.DeleteSubscription(t.Context(), sub.ID)
			})
		}()
		w.waitsForALock("with found|update webhook_subscriptions")
		w.inOrg(func(tx *db.OrgTx) error { return tx.Replay(t.Context(), d.ID, "again") })
		if again := w.claim(bus.WebhookDispatch, 1); len(again) != 1 {
			t.Fatalf("claimed %d, want what is replayed", len(again))
		}
		settler, err := dbtest.Conn(t, w.url).Begin(t.Context()) // and not Settle, which tries again when it loses a deadlock
		if err != nil {
			t.Fatal(err)
		}
		if _, err := settler.Exec(t.Context(), "delete from delivery where destination = $1", sub.ID); err != nil {
			t.Fatal(err)
		}
		go func() {
			_, err := settler.Exec(t.Context(), "update webhook_subscriptions set last_status = 200 where id = $1", sub.ID)
			settled <- errors.Join(err, settler.Commit(t.Context()))
		}()
		w.waitsForALock("set last_status")
		release()
		if err := <-deleted; err != nil {
			t.Errorf("deleting: %v", err)
		}
		if err := <-settled; err != nil {
			t.Errorf("settling: %v", err)
		}
	})
	if n := tries.Load(); n != 1 {
		t.Errorf("deleting took %d tries, want one", n)
	}
	if n := w.count("select count(*) from delivery"); n != 0 {
		t.Errorf("%d deliveries are left, want none", n)
	}
}
