package db

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/waha"
)

const (
	previewRunes = 280              // of body_preview, which automations match on
	staleAfter   = 10 * time.Minute // an older message at its arrival triggers nothing in case a gateway delivers a backlog
)

const messageByBareIDSQL = `
	select id, status, direction, conversation_id, contact_id, type, body
	  from messages
	 where channel_session_id = @channel_id and organization_id = @org_id and waha_message_id = @bare_id
	   for update`

// storedMessage is a message as updates of it need it.
type storedMessage struct {
	ID             uuid.UUID
	Status         string
	Direction      string
	ConversationID uuid.UUID
	ContactID      uuid.UUID
	Type           string
	Body           string
}

// payload is what every event about a message says of it.
func (in *ingest) payload(bareID string, m storedMessage) map[string]any {
	return map[string]any{
		"message_id": m.ID, "conversation_id": m.ConversationID, "contact_id": m.ContactID, "channel_session_id": in.channel,
		"channel": "whatsapp", "waha_message_id": bareID, "external_id": bareID, "type": m.Type, "status": m.Status,
		"direction": map[string]string{"inbound": "in", "outbound": "out"}[m.Direction],
	}
}

// addBody adds the text of a message to its payload.
func addBody(payload map[string]any, body string) {
	payload["body"], payload["body_preview"] = body, preview(body)
}

func (in *ingest) storedMessage(ctx context.Context, bareID string) (storedMessage, error) {
	m, err := one[storedMessage](ctx, in.tx, messageByBareIDSQL, named{"channel_id": in.channel, "org_id": in.org, "bare_id": bareID})
	return m, wrap("find message", err)
}

const insertMessageSQL = `
	insert into messages (organization_id, conversation_id, contact_id, channel_session_id, waha_message_id, type, direction, status, sent_via,
	       body, media_url, media_mime, media_filename, reply_to, metadata, sent_at, delivered_at, read_at)
	values (@org_id, @conversation_id, @contact_id, @channel_id, @bare_id, @type, @direction, @status, nullif(@sent_via, ''),
	       @body, nullif(@media_url, ''), nullif(@media_mime, ''), nullif(@media_filename, ''), nullif(@reply_to, ''), @metadata,
	       coalesce(@sent_at, clock_timestamp()),
	       case when @status in ('delivered', 'read') then clock_timestamp() end,
	       case when @status = 'read' then clock_timestamp() end)
	returning id`

// message stores a message once, however often and under whichever names it is
// told, together with what it needs around it.
func (in *ingest) message(ctx context.Context, m waha.Message) (string, error) {
	if _, err := in.storedMessage(ctx, m.ID); !errors.Is(err, bus.ErrNotFound) {
		return reasonDuplicateMessage, err
	}
	contact, err := in.contact(ctx, m.Chat, m.PushName)
	if err != nil {
		return "", err
	}
	conversation, err := in.conversation(ctx, contact, m)
	if err != nil {
		return "", err
	}
	metadata, err := messageMetadata(m)
	if err != nil {
		return "", err
	}
	media := cmp.Or(m.Media, &waha.Media{})
	var id uuid.UUID
	err = in.tx.QueryRow(ctx, insertMessageSQL, named{
		"org_id": in.org, "conversation_id": conversation, "contact_id": contact, "channel_id": in.channel, "bare_id": m.ID,
		"type": m.Type, "direction": m.Direction, "status": initialStatus(m), "sent_via": sentVia(m), "body": m.Body,
		"media_url": media.URL, "media_mime": media.MIME, "media_filename": media.Filename, "reply_to": m.ReplyTo,
		"metadata": metadata, "sent_at": timeOrNil(m.SentAt),
	}).Scan(&id)
	if err != nil {
		return "", wrap("store message", err)
	}
	stored := storedMessage{
		ID: id, Status: initialStatus(m), Direction: string(m.Direction), ConversationID: conversation, ContactID: contact,
		Type: string(m.Type), Body: m.Body,
	}
	if err := in.emitMessage(ctx, m, stored); err != nil {
		return "", err
	}
	return reasonMessageCreated, in.applyParked(ctx, m.ID)
}

// emitMessage tells of a new message. One that the gateway has not sent yet is
// told of when it has.
func (in *ingest) emitMessage(ctx context.Context, m waha.Message, s storedMessage) error {
	payload := in.payload(m.ID, s)
	addBody(payload, s.Body)
	if m.Media != nil && m.Media.URL != "" {
		payload["media_urls"] = []string{m.Media.URL}
	}
	if !m.SentAt.IsZero() {
		payload["sent_at"] = m.SentAt.UTC()
		if !in.envelope.ReceivedAt.IsZero() && in.envelope.ReceivedAt.Sub(m.SentAt) > staleAfter {
			payload["stale"] = true
		}
	}
	if m.Direction == waha.Inbound {
		return in.emit(ctx, bus.MessageReceived, "message", s.ID, payload)
	}
	if rank(s.Status) < rank("sent") {
		return nil
	}
	payload["sent_via"] = sentVia(m)
	return in.emit(ctx, bus.MessageSent, "message", s.ID, payload)
}

// initialStatus is where a message starts: one of the customer's has arrived,
// one of ours is as far as its receipt says.
func initialStatus(m waha.Message) string {
	if m.Direction == waha.Inbound {
		return "received"
	}
	if m.Ack == nil {
		return "sent"
	}
	return string(m.Ack.Status())
}

// sentVia tells what the operator typed on the phone from what a program sent
// through the gateway.
func sentVia(m waha.Message) string {
	switch {
	case m.Direction == waha.Inbound:
		return ""
	case m.Source == waha.SourceAPI:
		return "system"
	default:
		return "external_device"
	}
}

// messageMetadata keeps what has no column.
func messageMetadata(m waha.Message) (json.RawMessage, error) {
	all := map[string]any{
		"full_id": m.FullID, "raw_type": m.RawType, "chat_id": m.Chat.ID, "selected_id": m.SelectedID,
		"location": m.Location, "vcards": m.VCards, "media": m.Media,
	}
	for key, value := range all {
		switch v := value.(type) {
		case string:
			if v == "" {
				delete(all, key)
			}
		case *waha.Location:
			if v == nil {
				delete(all, key)
			}
		case *waha.Media:
			if v == nil {
				delete(all, key)
			}
		case []string:
			if len(v) == 0 {
				delete(all, key)
			}
		}
	}
	if m.MediaMissing {
		all["media_status"] = "missing"
	}
	raw, err := json.Marshal(all)
	return raw, wrap("write message metadata", err)
}

func preview(body string) string {
	runes := []rune(body)
	return string(runes[:min(len(runes), previewRunes)])
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
