package db

import (
	"context"

	"github.com/deskcomm/deskcomm/bus"
)

const leaveOrgSQL = `select set_config('role', 'none', true)`

// InDelivery runs the effect of a claimed delivery in a transaction on behalf of
// its organization that settles the delivery as done too, so that the effect
// happens exactly once, however often the delivery is claimed. It returns
// bus.ErrLeaseLost, and nothing has happened, when the delivery is not held under
// its lease any more. The drain loop has nothing left to settle after it.
//
// The delivery is locked last: a renewal of leases would wait for the effect else.
func (d *DB) InDelivery(ctx context.Context, delivery *bus.Delivery, effect func(t *OrgTx) error) error {
	actor := Actor{Kind: ActorSystem, Name: delivery.Consumer}
	err := d.InOrg(ctx, delivery.OrgID, actor, func(t *OrgTx) error {
		if err := effect(t); err != nil {
			return err
		}
		if _, err := t.tx.Exec(ctx, leaveOrgSQL); err != nil {
			return wrap("leave organization", err)
		}
		lost, err := settle(ctx, t.tx, []bus.Settlement{{Delivery: delivery, Verdict: bus.VerdictDone}})
		if err == nil && len(lost) > 0 {
			return bus.ErrLeaseLost
		}
		return err
	})
	if err == nil {
		delivery.MarkSettled()
	}
	return err
}
