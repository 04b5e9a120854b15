package db

import (
	"context"
	"encoding/base64"
	"fmt"
	"regexp"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// Channel is a WhatsApp number of an organization, held by a gateway session.
type Channel struct {
	ID          uuid.UUID
	Name        string // of the gateway's session
	Kind        string // waha
	PhoneNumber *string
	Status      string
	HasSecret   bool
	CreatedAt   time.Time
}

// NewChannel describes a channel to make.
type NewChannel struct {
	Name          string
	Kind          string // "" is waha
	PhoneNumber   string // E.164; "" when not known yet
	WebhookSecret string // what the gateway signs with; "" when it does not sign
}

// ChannelTokens are shown once: the database keeps only hashes.
type ChannelTokens struct {
	WebhookPath string // part of the address that the gateway posts to
	Instance    string // authenticates instance webhooks
}

var (
	sessionNamePattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,54}$`)
	phonePattern       = regexp.MustCompile(`^\+\d{8,15}$`)
)

func (n NewChannel) check() error {
	switch {
	case !sessionNamePattern.MatchString(n.Name):
		return bus.Invalid("name", "must have 1 to 54 letters, digits, - or _")
	case n.Kind != "" && n.Kind != "waha":
		return bus.Invalid("kind", "must be waha")
	case n.PhoneNumber != "" && !phonePattern.MatchString(n.PhoneNumber):
		return bus.Invalid("phone_number", "must be + and 8 to 15 digits (E.164)")
	case n.WebhookSecret != "":
		return bus.CheckSecret("webhook_secret", n.WebhookSecret)
	}
	return nil
}

const insertChannelSQL = `
	insert into channel_sessions (id, organization_id, name, phone_number, webhook_token_hash, webhook_secret_encrypted, instance_token_hash)
	values (@id, @org_id, @name, nullif(@phone_number, ''), @webhook_token_hash, @secret_encrypted, @instance_token_hash)
	returning id, name, kind, phone_number, status, webhook_secret_encrypted is not null as has_secret, created_at`

// CreateChannel makes a channel. Its name and phone number are unique among the
// organization's channels, else the error is bus.ErrConflict.
func (t *OrgTx) CreateChannel(ctx context.Context, n NewChannel) (Channel, ChannelTokens, error) {
	if err := n.check(); err != nil {
		return Channel{}, ChannelTokens{}, err
	}
	id := uuid.New()
	var sealed []byte
	if n.WebhookSecret != "" {
		var err error
		if sealed, err = t.box.seal([]byte(n.WebhookSecret), secretPlace("channel_sessions", id)); err != nil {
			return Channel{}, ChannelTokens{}, err
		}
	}
	tokens := ChannelTokens{
		WebhookPath: base64.RawURLEncoding.EncodeToString(randomBytes(24)),
		Instance:    base64.RawURLEncoding.EncodeToString(randomBytes(24)),
	}
	channel, err := one[Channel](ctx, t.tx, insertChannelSQL, named{
		"id": id, "org_id": t.org, "name": n.Name, "phone_number": n.PhoneNumber, "secret_encrypted": sealed,
		"webhook_token_hash": hashToken(tokens.WebhookPath), "instance_token_hash": hashToken(tokens.Instance),
	})
	if err != nil {
		return Channel{}, ChannelTokens{}, wrap("create channel", err)
	}
	return channel, tokens, t.audit(ctx, auditEntry{
		action: "channel_session.created", resourceType: "channel_session", resourceID: id, metadata: map[string]any{"name": n.Name},
	})
}

const channelColumnsSQL = `
	select id, name, kind, phone_number, status, webhook_secret_encrypted is not null as has_secret, created_at
	  from channel_sessions
	 where organization_id = @org_id and archived_at is null`

const listChannelsSQL = channelColumnsSQL + `
	   and (@after::uuid is null or (created_at, id) > (select created_at, id from channel_sessions where id = @after))
	 order by created_at, id
	 limit @limit`

// Channels lists the organization's channels, the oldest first.
func (t *OrgTx) Channels(ctx context.Context, p Page) ([]Channel, error) {
	list, err := collect[Channel](ctx, t.tx, listChannelsSQL, named{"org_id": t.org, "after": p.After, "limit": p.limit()})
	return list, wrap("list channels", err)
}

const showChannelSQL = channelColumnsSQL + ` and id = @id`

// Channel returns one channel, or bus.ErrNotFound.
func (t *OrgTx) Channel(ctx context.Context, id uuid.UUID) (Channel, error) {
	c, err := one[Channel](ctx, t.tx, showChannelSQL, named{"org_id": t.org, "id": id})
	return c, wrap("load channel", err)
}

const archiveChannelSQL = `
	update channel_sessions set archived_at = clock_timestamp(), webhook_secret_encrypted = null
	 where organization_id = @org_id and id = @id and archived_at is null`

// DeleteChannel archives a channel: nothing is received through it any more, its
// conversations stay.
func (t *OrgTx) DeleteChannel(ctx context.Context, id uuid.UUID) error {
	tag, err := t.tx.Exec(ctx, archiveChannelSQL, named{"org_id": t.org, "id": id})
	if err != nil {
		return wrap("delete channel", err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("delete channel: %w", bus.ErrNotFound)
	}
	return t.audit(ctx, auditEntry{action: "channel_session.deleted", resourceType: "channel_session", resourceID: id})
}

// InboundChannel is a channel as its gateway's posts name it.
type InboundChannel struct {
	ID     uuid.UUID
	OrgID  uuid.UUID
	Secret string // "" when none was given: posts are not signed
}

const inboundChannelSQL = `
	select id, organization_id, webhook_secret_encrypted
	  from channel_sessions
	 where webhook_token_hash = @token_hash and archived_at is null`

// InboundChannel returns the channel that a webhook path token belongs to, or
// bus.ErrNotFound.
func (d *DB) InboundChannel(ctx context.Context, token string) (InboundChannel, error) {
	var c InboundChannel
	var sealed []byte
	err := scan(ctx, d.pool, inboundChannelSQL, named{"token_hash": hashToken(token)}, &c.ID, &c.OrgID, &sealed)
	if err != nil {
		return InboundChannel{}, wrap("find channel", err)
	}
	if sealed == nil {
		return c, nil
	}
	secret, err := d.box.open(sealed, secretPlace("channel_sessions", c.ID))
	c.Secret = string(secret)
	return c, err
}
