package db

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/waha"
)

const storeReactionSQL = `
	insert into message_reactions (organization_id, channel_session_id, waha_message_id, reactor, emoji, reacted_at)
	values (@org_id, @channel_id, @bare_id, @reactor, @emoji, coalesce(@at, clock_timestamp()))
	on conflict (channel_session_id, waha_message_id, reactor) do update
	   set emoji = excluded.emoji, reacted_at = excluded.reacted_at
	 where message_reactions.reacted_at <= excluded.reacted_at`

// reaction keeps the last reaction of a person to a message. Removing one leaves
// an empty row: an older reaction told later must not bring it back.
func (in *ingest) reaction(ctx context.Context, r waha.Reaction) (string, error) {
	reactor := "contact" // under either of the two addresses it may have
	if r.FromMe {
		reactor = "me"
	}
	tag, err := in.tx.Exec(ctx, storeReactionSQL, named{
		"org_id": in.org, "channel_id": in.channel, "bare_id": r.TargetID, "reactor": reactor, "emoji": r.Emoji, "at": timeOrNil(r.At),
	})
	if err != nil {
		return "", wrap("store reaction", err)
	}
	if tag.RowsAffected() == 0 {
		return reasonNothingNew, nil
	}
	return reasonReactionStored, nil
}

const lockChannelSQL = `select id, name, status, status_changed_at from channel_sessions where organization_id = @org_id and id = @id for update`

type channelState struct {
	ID              uuid.UUID
	Name            string
	Status          string
	StatusChangedAt *time.Time
}

// The number of a paired account is kept unless another channel has it.
const moveChannelSQL = `
	update channel_sessions c
	   set status = @status, status_changed_at = coalesce(@at, clock_timestamp()),
	       phone_number = case when @phone = '' or exists (select from channel_sessions o where o.organization_id = @org_id
	           and o.phone_number = @phone and o.id <> c.id and o.archived_at is null) then c.phone_number else @phone end
	 where c.organization_id = @org_id and c.id = @id`

// sessionStatus follows the gateway's session. A status that is told again, as at
// each refresh of the QR code, and one that is older than the last change nothing.
func (in *ingest) sessionStatus(ctx context.Context, s waha.SessionStatus) (string, error) {
	c, err := one[channelState](ctx, in.tx, lockChannelSQL, named{"org_id": in.org, "id": in.channel})
	if err != nil {
		return "", wrap("find channel", err)
	}
	if now := in.envelope.ReceivedAt; !now.IsZero() && s.At.After(now) {
		s.At = now // a gateway's clock that runs ahead must not outrank what it says later
	}
	late := c.StatusChangedAt != nil && !s.At.IsZero() && s.At.Before(*c.StatusChangedAt)
	if late || c.Status == string(s.State) {
		return reasonNothingNew, nil
	}
	_, err = in.tx.Exec(ctx, moveChannelSQL, named{"org_id": in.org, "id": c.ID, "status": s.State, "phone": s.Me.Phone, "at": timeOrNil(s.At)})
	if err != nil {
		return "", wrap("update channel status", err)
	}
	return reasonSessionUpdated, in.emit(ctx, bus.SystemSessionChanged, "channel_session", c.ID, map[string]any{
		"channel_session_id": c.ID, "name": c.Name, "from_status": c.Status, "to_status": s.State,
	})
}
