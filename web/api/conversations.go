package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db"
)

func (s *Server) conversationRoutes() {
	const tag = "CRM"
	scopes := []string{"crm:read"}
	register(s, route{
		id: "list-conversations", method: http.MethodGet, path: "/v1/conversations", tag: tag, scopes: scopes,
		summary: "List conversations, oldest first",
	}, listConversations)
	register(s, route{
		id: "show-conversation", method: http.MethodGet, path: "/v1/conversations/{id}", tag: tag, scopes: scopes,
		summary: "Show one conversation",
	}, showConversation)
	register(s, route{
		id: "list-messages", method: http.MethodGet, path: "/v1/messages", tag: tag, scopes: scopes,
		summary: "List messages in the order in which they were stored",
	}, listMessages)
	register(s, route{
		id: "show-message", method: http.MethodGet, path: "/v1/messages/{id}", tag: tag, scopes: scopes,
		summary: "Show one message",
	}, showMessage)
}

// conversation is the exchange with one contact on one channel.
type conversation struct {
	ID                 uuid.UUID `json:"id" format:"uuid"`
	ContactID          uuid.UUID `json:"contact_id" format:"uuid"`
	ChannelSessionID   uuid.UUID `json:"channel_session_id" format:"uuid"`
	Channel            string    `json:"channel"`
	Status             string    `json:"status"`
	LastInboundAt      *instant  `json:"last_inbound_at" nullable:"true"`
	LastOutboundAt     *instant  `json:"last_outbound_at" nullable:"true"`
	LastMessageAt      *instant  `json:"last_message_at" nullable:"true"`
	LastMessagePreview *string   `json:"last_message_preview"`
	UnreadCount        int       `json:"unread_count"`
	CreatedAt          instant   `json:"created_at"`
	UpdatedAt          instant   `json:"updated_at"`
}

func conversationOf(c db.Conversation) conversation {
	return conversation{
		ID: c.ID, ContactID: c.ContactID, ChannelSessionID: c.ChannelSessionID, Channel: c.Channel, Status: c.Status,
		LastInboundAt: optionalInstant(c.LastInboundAt), LastOutboundAt: optionalInstant(c.LastOutboundAt),
		LastMessageAt: optionalInstant(c.LastMessageAt), LastMessagePreview: c.LastMessagePreview, UnreadCount: c.UnreadCount,
		CreatedAt: instant(c.CreatedAt), UpdatedAt: instant(c.UpdatedAt),
	}
}

func listConversations(ctx context.Context, t *db.OrgTx, in *Page) (list[conversation], error) {
	const name = "conv"
	p, err := in.after(name)
	if err != nil {
		return list[conversation]{}, err
	}
	rows, err := t.Conversations(ctx, p)
	return listOf(rows, in.Limit, conversationOf, byID(name, func(c db.Conversation) uuid.UUID { return c.ID })), err
}

func showConversation(ctx context.Context, t *db.OrgTx, in *Resource) (conversation, error) {
	c, err := t.Conversation(ctx, in.ID)
	return conversationOf(c), err
}

// message is one message of a conversation.
type message struct {
	ID               uuid.UUID `json:"id" format:"uuid"`
	ConversationID   uuid.UUID `json:"conversation_id" format:"uuid"`
	ContactID        uuid.UUID `json:"contact_id" format:"uuid"`
	ChannelSessionID uuid.UUID `json:"channel_session_id" format:"uuid"`
	WAHAMessageID    *string   `json:"waha_message_id" doc:"WhatsApp's id of the message: the part that all events about it share."`
	ExternalID       *string   `json:"external_id" doc:"The same as waha_message_id."`
	Type             string    `json:"type"`
	Direction        string    `json:"direction" enum:"inbound,outbound"`
	Status           string    `json:"status" enum:"queued,received,sending,sent,delivered,read,failed"`
	SentVia          *string   `json:"sent_via"`
	Body             string    `json:"body"`
	MediaURL         *string   `json:"media_url"`
	MediaMIME        *string   `json:"media_mime"`
	MediaFilename    *string   `json:"media_filename"`
	ReplyTo          *string   `json:"reply_to" doc:"The waha_message_id that it answers."`
	SentAt           instant   `json:"sent_at"`
	DeliveredAt      *instant  `json:"delivered_at" nullable:"true"`
	ReadAt           *instant  `json:"read_at" nullable:"true"`
	EditedAt         *instant  `json:"edited_at" nullable:"true"`
	RevokedAt        *instant  `json:"revoked_at" nullable:"true"`
	CreatedAt        instant   `json:"created_at"`
}

func messageOf(m db.Message) message {
	return message{
		ID: m.ID, ConversationID: m.ConversationID, ContactID: m.ContactID, ChannelSessionID: m.ChannelSessionID,
		WAHAMessageID: m.WAHAMessageID, ExternalID: m.WAHAMessageID, Type: m.Type, Direction: m.Direction, Status: m.Status,
		SentVia: m.SentVia, Body: m.Body, MediaURL: m.MediaURL, MediaMIME: m.MediaMIME, MediaFilename: m.MediaFilename,
		ReplyTo: m.ReplyTo, SentAt: instant(m.SentAt), DeliveredAt: optionalInstant(m.DeliveredAt), ReadAt: optionalInstant(m.ReadAt),
		EditedAt: optionalInstant(m.EditedAt), RevokedAt: optionalInstant(m.RevokedAt), CreatedAt: instant(m.CreatedAt),
	}
}

// messageQuery narrows the list of messages.
type messageQuery struct {
	Page
	ConversationID uuid.NullUUID `query:"conversation_id" format:"uuid" doc:"Only messages of this conversation."`
}

func listMessages(ctx context.Context, t *db.OrgTx, in *messageQuery) (list[message], error) {
	const name = "mess"
	p, err := in.after(name)
	if err != nil {
		return list[message]{}, err
	}
	rows, err := t.Messages(ctx, db.MessageFilter{ConversationID: in.ConversationID, Page: p})
	return listOf(rows, in.Limit, messageOf, byID(name, func(m db.Message) uuid.UUID { return m.ID })), err
}

func showMessage(ctx context.Context, t *db.OrgTx, in *Resource) (message, error) {
	m, err := t.Message(ctx, in.ID)
	return messageOf(m), err
}
