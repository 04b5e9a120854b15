package db

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/waha"
)

// rank orders the states of an outgoing message: they only move up.
func rank(status string) int {
	return slices.Index([]string{"failed", "queued", "sending", "sent", "delivered", "read"}, status)
}

const advanceMessageSQL = `
	update messages
	   set status = @status,
	       delivered_at = case when @status in ('delivered', 'read') then coalesce(delivered_at, @at, clock_timestamp()) else delivered_at end,
	       read_at = case when @status = 'read' then coalesce(read_at, @at, clock_timestamp()) else read_at end
	 where organization_id = @org_id and id = @id
	returning delivered_at, read_at`

type messageTimes struct {
	DeliveredAt *time.Time
	ReadAt      *time.Time
}

const readConversationSQL = `
	update conversations set unread_count = 0 where organization_id = @org_id and id = @id`

// ack moves a message of ours up to what its receipt says. A receipt for a
// message of the customer's says that the account has read it elsewhere.
func (in *ingest) ack(ctx context.Context, a waha.Ack) (string, error) {
	m, err := in.storedMessage(ctx, a.ID)
	if errors.Is(err, bus.ErrNotFound) {
		if !a.FromMe {
			return reasonNothingNew, nil
		}
		return reasonParked, in.park(ctx, a.ID, parkedUpdate{Ack: &a})
	}
	if err != nil {
		return "", err
	}
	if m.Direction == "inbound" {
		if a.Status != "read" {
			return reasonNothingNew, nil
		}
		_, err := in.tx.Exec(ctx, readConversationSQL, named{"org_id": in.org, "id": m.ConversationID})
		return reasonMessageUpdated, wrap("mark conversation read", err)
	}
	return in.advance(ctx, m, a)
}

func (in *ingest) advance(ctx context.Context, m storedMessage, a waha.Ack) (string, error) {
	to := string(a.Status)
	// A failure counts only where nothing better is known.
	late := to == "failed" && rank(m.Status) > rank("sending")
	if late || to != "failed" && rank(to) <= rank(m.Status) || to == m.Status {
		return reasonNothingNew, nil
	}
	times, err := one[messageTimes](ctx, in.tx, advanceMessageSQL, named{"org_id": in.org, "id": m.ID, "status": to, "at": timeOrNil(a.At)})
	if err != nil {
		return "", wrap("update message status", err)
	}
	facts := map[string]bus.Type{
		"sent": bus.MessageSent, "delivered": bus.MessageDelivered, "read": bus.MessageRead, "failed": bus.MessageFailed,
	}
	fact, ok := facts[to]
	if !ok {
		return reasonMessageUpdated, nil
	}
	m.Status = to
	payload := in.payload(a.ID, m)
	switch to {
	case "sent":
		addBody(payload, m.Body)
	case "delivered":
		payload["delivered_at"] = times.DeliveredAt.UTC()
	case "read":
		payload["read_at"] = times.ReadAt.UTC()
	case "failed":
		payload["error_code"], payload["error_message"], payload["retryable"] = "waha_ack_error", "the gateway reported an error", false
	}
	return reasonMessageUpdated, in.emit(ctx, fact, "message", m.ID, payload)
}

const editMessageSQL = `
	update messages
	   set body = case when @empty then body else @body end,
	       edited_at = coalesce(@at, clock_timestamp()),
	       metadata = case when @empty then metadata || '{"edit_sealed": true}' else metadata - 'edit_sealed' end
	 where organization_id = @org_id and id = @id and (edited_at is null or edited_at <= coalesce(@at, clock_timestamp()))`

// edit replaces the text of a message. A sealed edit, whose new text nobody can
// read, only leaves a mark.
func (in *ingest) edit(ctx context.Context, e waha.Edit) (string, error) {
	m, err := in.storedMessage(ctx, e.TargetID)
	if errors.Is(err, bus.ErrNotFound) {
		return reasonParked, in.park(ctx, e.TargetID, parkedUpdate{Edit: &e})
	}
	if err != nil {
		return "", err
	}
	tag, err := in.tx.Exec(ctx, editMessageSQL, named{"org_id": in.org, "id": m.ID, "body": e.Body, "empty": e.Empty, "at": timeOrNil(e.At)})
	if err != nil {
		return "", wrap("edit message", err)
	}
	if tag.RowsAffected() == 0 {
		return reasonNothingNew, nil
	}
	return reasonMessageUpdated, nil
}

const revokeMessageSQL = `
	update messages set revoked_at = coalesce(@at, clock_timestamp())
	 where organization_id = @org_id and id = @id and revoked_at is null`

// revoke marks a message as deleted for everyone; its row and text are kept.
func (in *ingest) revoke(ctx context.Context, r waha.Revoke) (string, error) {
	m, err := in.storedMessage(ctx, r.TargetID)
	if errors.Is(err, bus.ErrNotFound) {
		return reasonParked, in.park(ctx, r.TargetID, parkedUpdate{Revoke: &r})
	}
	if err != nil {
		return "", err
	}
	tag, err := in.tx.Exec(ctx, revokeMessageSQL, named{"org_id": in.org, "id": m.ID, "at": timeOrNil(r.At)})
	if err != nil {
		return "", wrap("revoke message", err)
	}
	if tag.RowsAffected() == 0 {
		return reasonNothingNew, nil
	}
	return reasonMessageUpdated, nil
}

// parkedUpdate is an update that came before its message; one field is set.
type parkedUpdate struct {
	Ack    *waha.Ack    `json:",omitempty"`
	Edit   *waha.Edit   `json:",omitempty"`
	Revoke *waha.Revoke `json:",omitempty"`
}

const parkUpdateSQL = `
	insert into parked_message_updates (organization_id, channel_session_id, waha_message_id, update)
	values (@org_id, @channel_id, @bare_id, @update)`

// park keeps an update for when its message arrives.
func (in *ingest) park(ctx context.Context, bareID string, u parkedUpdate) error {
	raw, err := json.Marshal(u)
	if err != nil {
		return wrap("park update", err)
	}
	_, err = in.tx.Exec(ctx, parkUpdateSQL, named{
		"org_id": in.org, "channel_id": in.channel, "bare_id": bareID, "update": json.RawMessage(raw),
	})
	return wrap("park update", err)
}

const takeParkedSQL = `
	with taken as (
	    delete from parked_message_updates
	     where channel_session_id = @channel_id and organization_id = @org_id and waha_message_id = @bare_id
	    returning id, update
	)
	select update from taken order by id`

// applyParked applies what came before its message, in the order it came.
func (in *ingest) applyParked(ctx context.Context, bareID string) error {
	rows, _ := in.tx.Query(ctx, takeParkedSQL, named{"channel_id": in.channel, "org_id": in.org, "bare_id": bareID}) // its error comes back from rows
	parked, err := collectColumn[parkedUpdate](rows)
	if err != nil {
		return wrap("take parked updates", err)
	}
	for _, u := range parked {
		switch {
		case u.Ack != nil:
			_, err = in.ack(ctx, *u.Ack)
		case u.Edit != nil:
			_, err = in.edit(ctx, *u.Edit)
		case u.Revoke != nil:
			_, err = in.revoke(ctx, *u.Revoke)
		}
		if err != nil {
			return fmt.Errorf("apply parked update: %w", err)
		}
	}
	return nil
}
