package db_test

import (
	"testing"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// What the relay brings to a subscription that is being deleted is claimed and
// then skipped. It must not wait for ever behind what is gone.
func TestInvariant10NothingWaitsBehindWhatADeletedSubscriptionHad(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before        []string
		first, second string
		left          int // deliveries that the relay has made meanwhile
	}{
		"deleted while the relay comes":                    {nil, "relay", "delete", 0},
		"the relay comes while it is deleted":              {nil, "delete", "relay", 1},
		"deleted while what it had is settled":             {nil, "settle", "delete", 0},
		"settled while it is deleted":                      {[]string{"relay"}, "delete", "retry", 0},
		"deleted while its lane is resumed":                {[]string{"settle", "pause", "relay"}, "resume", "delete", 0},
		"deleted while the relay comes to its paused lane": {[]string{"settle", "pause"}, "relay", "delete", 0},
		"the relay comes while it is deleted when paused":  {[]string{"settle", "pause"}, "delete", "relay", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &race{world: withWebhooks(t), consumer: bus.WebhookDispatch, typ: ownType()}
			err := r.person(func(tx *db.OrgTx) error {
				sub, err := tx.CreateSubscription(t.Context(), db.NewSubscription{
					URL: "https://example.com/hook", EventTypes: []string{"*"}, Ordering: bus.OrderingStrict,
				})
				r.lane.Destination = sub.ID
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			r.hand = r.next(r.consumer, r.emitKeyed(r.typ, "", "")[0])
			r.lane.ConsumerID, r.lane.Lane = r.hand.ConsumerID, r.hand.Lane
			r.emit(r.typ)
			r.exec(gatesSQL)
			r.gates = dbtest.Conn(t, r.url)
			for _, before := range tt.before {
				r.start(before)()
			}
			pid, commit := r.hold(tt.first)
			defer commit()
			wait := r.start(tt.second)
			r.waitsFor(pid, tt.second+" waits for "+tt.first)
			commit()
			wait()
			if got := r.claimed(r.consumer); len(got) != tt.left {
				t.Errorf("claimed %d deliveries, want %d", len(got), tt.left)
			}
			if n := r.count("select count(*) from delivery"); n != tt.left {
				t.Errorf("%d deliveries, want %d", n, tt.left)
			}
		})
	}
}
