package db

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/waha"
)

const lockConversationSQL = `
	select id, status
	  from conversations
	 where organization_id = @org_id and contact_id = @contact_id and channel_session_id = @channel_id
	   for update`

type knownConversation struct {
	ID     uuid.UUID
	Status string
}

const insertConversationSQL = `
	insert into conversations (organization_id, contact_id, channel_session_id, chat_id)
	values (@org_id, @contact_id, @channel_id, @chat_id)
	returning id, status`

// A message that is told late must not move the times back.
const advanceConversationSQL = `
	update conversations
	   set status = @status,
	       chat_id = @chat_id,
	       last_message_preview = case when coalesce(@sent_at, clock_timestamp()) >= coalesce(last_message_at, '-infinity') then @preview else last_message_preview end,
	       last_message_at = greatest(last_message_at, coalesce(@sent_at, clock_timestamp())),
	       last_inbound_at = case when @inbound then greatest(last_inbound_at, coalesce(@sent_at, clock_timestamp())) else last_inbound_at end,
	       last_outbound_at = case when @inbound then last_outbound_at else greatest(last_outbound_at, coalesce(@sent_at, clock_timestamp())) end,
	       unread_count = case when @inbound then unread_count + 1 else 0 end
	 where organization_id = @org_id and id = @id`

// conversation returns the conversation a message belongs to, opened or reopened
// if need be, with its summary brought up to date. There is one for each contact
// and channel, whatever its status.
func (in *ingest) conversation(ctx context.Context, contact uuid.UUID, m waha.Message) (uuid.UUID, error) {
	inbound := m.Direction == waha.Inbound
	place := named{"org_id": in.org, "contact_id": contact, "channel_id": in.channel}
	c, err := one[knownConversation](ctx, in.tx, lockConversationSQL, place)
	if err = wrap("find conversation", err); errors.Is(err, bus.ErrNotFound) {
		c, err = in.openConversation(ctx, contact, m.Chat.ID)
	}
	if err != nil {
		return uuid.Nil, err
	}
	status := c.Status
	if inbound && (status == "resolved" || status == "closed" || status == "archived") {
		status = "open"
		err := in.emit(ctx, bus.ConversationReopened, "conversation", c.ID, map[string]any{
			"conversation_id": c.ID, "contact_id": contact, "reopened_by": "contact", "reason": "message_received",
		})
		if err != nil {
			return uuid.Nil, err
		}
	}
	_, err = in.tx.Exec(ctx, advanceConversationSQL, named{
		"org_id": in.org, "id": c.ID, "status": status, "chat_id": m.Chat.ID, "preview": preview(m.Body),
		"inbound": inbound, "sent_at": timeOrNil(m.SentAt),
	})
	return c.ID, wrap("update conversation", err)
}

func (in *ingest) openConversation(ctx context.Context, contact uuid.UUID, chatID string) (knownConversation, error) {
	c, err := one[knownConversation](ctx, in.tx, insertConversationSQL, named{
		"org_id": in.org, "contact_id": contact, "channel_id": in.channel, "chat_id": chatID,
	})
	if err != nil {
		return c, wrap("open conversation", err)
	}
	return c, in.emit(ctx, bus.ConversationOpened, "conversation", c.ID, map[string]any{
		"conversation_id": c.ID, "contact_id": contact, "channel": "whatsapp", "channel_session_id": in.channel,
	})
}
