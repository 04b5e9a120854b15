package db

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Contact is a person an organization talks to.
type Contact struct {
	ID             uuid.UUID
	Name           *string
	PhoneNumber    *string // E.164
	WALID          *string `db:"wa_lid"` // WhatsApp's opaque number for the person
	Email          *string
	Tags           []string
	Source         string
	LastActivityAt *time.Time
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

const contactColumnsSQL = `
	select id, name, phone_number, wa_lid, email, tags, source, last_activity_at, created_at, updated_at
	  from contacts
	 where organization_id = @org_id`

const listContactsSQL = contactColumnsSQL + `
	   and is_merged_into is null
	   and (@after::uuid is null or id > @after)
	 order by id
	 limit @limit`

// Contacts lists the organization's contacts, without those merged into others.
func (t *OrgTx) Contacts(ctx context.Context, p Page) ([]Contact, error) {
	list, err := collect[Contact](ctx, t.tx, listContactsSQL, named{"org_id": t.org, "after": p.After, "limit": p.limit()})
	return list, wrap("list contacts", err)
}

const showContactSQL = contactColumnsSQL + ` and id = @id`

// Contact returns one contact, or bus.ErrNotFound.
func (t *OrgTx) Contact(ctx context.Context, id uuid.UUID) (Contact, error) {
	c, err := one[Contact](ctx, t.tx, showContactSQL, named{"org_id": t.org, "id": id})
	return c, wrap("load contact", err)
}

// ContactRef names a contact of an organization.
type ContactRef struct{ OrgID, ID uuid.UUID }

// Each organization's own only: an event may name any id.
const contactsForWebhooksSQL = `
	select c.organization_id as org_id, c.id, c.name, c.phone_number, c.wa_lid, c.email, c.tags, c.source, c.last_activity_at, c.created_at, c.updated_at
	  from (select distinct organization_id, id from unnest(@org_ids::uuid[], @ids::uuid[]) as u (organization_id, id)) u
	  join contacts c using (organization_id, id)`

// ContactsForWebhooks returns those of the contacts that exist, in one statement.
func (d *DB) ContactsForWebhooks(ctx context.Context, refs []ContactRef) (map[ContactRef]Contact, error) {
	orgs, ids := make([]uuid.UUID, len(refs)), make([]uuid.UUID, len(refs))
	for i, r := range refs {
		orgs[i], ids[i] = r.OrgID, r.ID
	}
	type row struct {
		OrgID uuid.UUID
		Contact
	}
	rows, err := collect[row](ctx, d.pool, contactsForWebhooksSQL, named{"org_ids": orgs, "ids": ids})
	found := make(map[ContactRef]Contact, len(rows))
	for _, r := range rows {
		found[ContactRef{r.OrgID, r.ID}] = r.Contact
	}
	return found, wrap("load contacts", err)
}

// Conversation is the exchange with one contact on one channel.
type Conversation struct {
	ID                 uuid.UUID
	ContactID          uuid.UUID
	ChannelSessionID   uuid.UUID
	Channel            string
	Status             string
	LastInboundAt      *time.Time
	LastOutboundAt     *time.Time
	LastMessageAt      *time.Time
	LastMessagePreview *string
	UnreadCount        int
	CreatedAt          time.Time
	UpdatedAt          time.Time
}

const conversationColumnsSQL = `
	select id, contact_id, channel_session_id, channel, status, last_inbound_at, last_outbound_at, last_message_at,
	       last_message_preview, unread_count, created_at, updated_at
	  from conversations
	 where organization_id = @org_id`

const listConversationsSQL = conversationColumnsSQL + `
	   and (@after::uuid is null or id > @after)
	 order by id
	 limit @limit`

// Conversations lists the organization's conversations, the oldest first.
func (t *OrgTx) Conversations(ctx context.Context, p Page) ([]Conversation, error) {
	list, err := collect[Conversation](ctx, t.tx, listConversationsSQL, named{"org_id": t.org, "after": p.After, "limit": p.limit()})
	return list, wrap("list conversations", err)
}

const showConversationSQL = conversationColumnsSQL + ` and id = @id`

// Conversation returns one conversation, or bus.ErrNotFound.
func (t *OrgTx) Conversation(ctx context.Context, id uuid.UUID) (Conversation, error) {
	c, err := one[Conversation](ctx, t.tx, showConversationSQL, named{"org_id": t.org, "id": id})
	return c, wrap("load conversation", err)
}

// Message is one message of a conversation.
type Message struct {
	ID               uuid.UUID
	ConversationID   uuid.UUID
	ContactID        uuid.UUID
	ChannelSessionID uuid.UUID
	WAHAMessageID    *string `db:"waha_message_id"` // the bare id
	Type             string
	Direction        string
	Status           string
	SentVia          *string
	Body             string
	MediaURL         *string
	MediaMIME        *string `db:"media_mime"`
	MediaFilename    *string
	ReplyTo          *string
	SentAt           time.Time
	DeliveredAt      *time.Time
	ReadAt           *time.Time
	EditedAt         *time.Time
	RevokedAt        *time.Time
	CreatedAt        time.Time
}

// MessageFilter narrows a list of messages; a zero field does not.
type MessageFilter struct {
	ConversationID uuid.NullUUID
	Page
}

const messageColumnsSQL = `
	select id, conversation_id, contact_id, channel_session_id, waha_message_id, type, direction, status, sent_via, body, media_url,
	       media_mime, media_filename, reply_to, sent_at, delivered_at, read_at, edited_at, revoked_at, created_at
	  from messages
	 where organization_id = @org_id`

const listMessagesSQL = messageColumnsSQL + `
	   and (@conversation_id::uuid is null or conversation_id = @conversation_id)
	   and (@after::uuid is null or id > @after)
	 order by id
	 limit @limit`

// Messages lists messages in the order in which they were stored.
func (t *OrgTx) Messages(ctx context.Context, f MessageFilter) ([]Message, error) {
	list, err := collect[Message](ctx, t.tx, listMessagesSQL, named{
		"org_id": t.org, "conversation_id": f.ConversationID, "after": f.After, "limit": pageLimit(f.Limit),
	})
	return list, wrap("list messages", err)
}

const showMessageSQL = messageColumnsSQL + ` and id = @id`

// Message returns one message, or bus.ErrNotFound.
func (t *OrgTx) Message(ctx context.Context, id uuid.UUID) (Message, error) {
	m, err := one[Message](ctx, t.tx, showMessageSQL, named{"org_id": t.org, "id": id})
	return m, wrap("load message", err)
}
