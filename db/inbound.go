package db

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/waha"
)

// InboundPost is one authenticated post of a gateway.
type InboundPost struct {
	Envelope       waha.Envelope
	RequestID      string            // the gateway's own id of the request
	OurRequestID   string            // kept with the events it leads to
	Headers        map[string]string // without credentials
	Body           []byte            // exactly as received
	SignatureValid bool              // false when the channel has no secret
}

// externalID is what makes a post known again: the gateway repeats what it got
// no answer for.
func (p InboundPost) externalID() string {
	if key := p.Envelope.DedupeKey(p.RequestID); key != "" {
		return key
	}
	sum := sha256.Sum256(p.Body)
	return "body-sha256:" + hex.EncodeToString(sum[:])
}

// The states of an archived post.
const (
	InboundProcessed = "processed" // it changed something
	InboundIgnored   = "ignored"   // it is no business of a conversation; the reason says why
	InboundMalformed = "malformed" // it breaks the gateway's contract
	InboundError     = "error"     // applying it failed; it is tried again
	InboundDuplicate = "duplicate" // only answered, never stored: it is archived already
)

// InboundResult says what became of a post. Reason is a machine word.
type InboundResult struct {
	Status string
	Reason string
	Fields []waha.FieldError // of a malformed post
}

// Posts of one organization are applied one after the other: two of them may
// bring the same new contact under two of its names. The lock is for other
// processes; within this one turns are taken before.
const lockInboundSQL = `select pg_advisory_xact_lock(hashtextextended('inbound:' || @org_id::text, 0))`

const archivePostSQL = `
	insert into inbound_webhooks (organization_id, channel_session_id, provider, external_id, event_name, headers, raw_body, signature_valid,
	       status, attempts)
	values (@org_id, @channel_id, 'waha', @external_id, @event_name, @headers, @raw_body, @signature_valid, 'error', 0)
	on conflict (channel_session_id, external_id) do nothing
	returning id, created_at`

const closePostSQL = `
	update inbound_webhooks
	   set status = case when @status = 'error' and attempts + 1 >= 3 then 'dead' else @status end,
	       reason = nullif(@reason, ''), attempts = attempts + 1, processed_at = clock_timestamp()
	 where organization_id = @org_id and id = @id`

// Ingest archives a post of a channel's gateway and applies it, in one
// transaction. A post whose envelope is archived already changes nothing. When
// applying fails, the archive keeps the post and RetryInbound tries it again; an
// error is returned only when nothing could be stored.
func (d *DB) Ingest(ctx context.Context, ch InboundChannel, post InboundPost) (InboundResult, error) {
	headers, err := json.Marshal(post.Headers)
	if err != nil {
		return InboundResult{}, wrap("archive post", err)
	}
	done, err := d.inbound.take(ctx, ch.OrgID)
	if err != nil {
		return InboundResult{}, fmt.Errorf("take turns: %w", translate(err))
	}
	defer done()
	var result InboundResult
	var emitted bool
	err = d.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockInboundSQL, named{"org_id": ch.OrgID}); err != nil {
			return wrap("take turns", err)
		}
		var id uuid.UUID
		envelope := post.Envelope
		err := tx.QueryRow(ctx, archivePostSQL, named{
			"org_id": ch.OrgID, "channel_id": ch.ID, "external_id": post.externalID(), "event_name": post.Envelope.Event,
			"headers": json.RawMessage(headers), "raw_body": post.Body, "signature_valid": post.SignatureValid,
		}).Scan(&id, &envelope.ReceivedAt)
		if errors.Is(err, pgx.ErrNoRows) {
			result = InboundResult{Status: InboundDuplicate}
			return nil
		}
		if err != nil {
			return wrap("archive post", err)
		}
		result, emitted, err = applyPost(ctx, tx, ch, id, envelope, post.OurRequestID)
		return err
	})
	if err != nil {
		return InboundResult{}, translate(err)
	}
	if emitted {
		d.emitted()
	}
	return result, nil
}

// applyPost reads an archived post and applies it within a savepoint, so that
// the archive survives what goes wrong.
func applyPost(ctx context.Context, tx pgx.Tx, ch InboundChannel, id uuid.UUID, env waha.Envelope, requestID string) (InboundResult, bool, error) {
	in := &ingest{org: ch.OrgID, channel: ch.ID, envelope: env, requestID: requestID}
	result, err := in.readAndApply(ctx, tx)
	if err != nil {
		if errors.Is(translate(err), bus.ErrUnavailable) || ctx.Err() != nil {
			return InboundResult{}, false, err
		}
		in.emitted = false
		result = InboundResult{Status: InboundError, Reason: storableText(err.Error())}
	}
	_, err = tx.Exec(ctx, closePostSQL, named{"org_id": ch.OrgID, "id": id, "status": result.Status, "reason": result.Reason})
	return result, in.emitted, wrap("close post", err)
}

// A post rests between two tries, so that the jobs of several processes do not
// spend its tries within one minute.
const failedPostsSQL = `
	select id, channel_session_id, organization_id, raw_body, created_at
	  from inbound_webhooks
	 where status = 'error' and processed_at < clock_timestamp() - interval '30 seconds'
	 order by created_at
	 limit 100`

type failedPost struct {
	ID               uuid.UUID
	ChannelSessionID uuid.UUID
	OrganizationID   uuid.UUID
	RawBody          []byte
	CreatedAt        time.Time
}

// RetryInbound applies again the archived posts whose application failed. After
// three failures a post is dead and waits for a person.
func (d *DB) RetryInbound(ctx context.Context) error {
	posts, err := collect[failedPost](ctx, d.pool, failedPostsSQL, named{})
	if err != nil {
		return wrap("list failed posts", err)
	}
	var failures []error
	for _, p := range posts {
		failures = append(failures, d.retryPost(ctx, p))
	}
	return errors.Join(failures...)
}

const lockPostSQL = `
	select w.status = 'error' and w.processed_at < clock_timestamp() - interval '30 seconds', c.archived_at is not null
	  from inbound_webhooks w
	  join channel_sessions c on c.id = w.channel_session_id
	 where w.organization_id = @org_id and w.id = @id
	   for update of w`

// reasonChannelDeleted ends a post whose channel was deleted before it could be
// applied.
const reasonChannelDeleted = "channel_deleted"

func (d *DB) retryPost(ctx context.Context, p failedPost) error {
	env, err := waha.ParseEnvelope(p.RawBody)
	if err != nil {
		return wrap("read archived post "+p.ID.String(), err)
	}
	env.ReceivedAt = p.CreatedAt
	var emitted bool
	var result InboundResult
	err = d.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockInboundSQL, named{"org_id": p.OrganizationID}); err != nil {
			return wrap("take turns", err)
		}
		var due, orphan bool
		if err := scan(ctx, tx, lockPostSQL, named{"org_id": p.OrganizationID, "id": p.ID}, &due, &orphan); err != nil || !due {
			return wrap("lock archived post", err)
		}
		if orphan {
			_, err := tx.Exec(ctx, closePostSQL, named{
				"org_id": p.OrganizationID, "id": p.ID, "status": InboundIgnored, "reason": reasonChannelDeleted,
			})
			return wrap("close post", err)
		}
		result, emitted, err = applyPost(ctx, tx, InboundChannel{ID: p.ChannelSessionID, OrgID: p.OrganizationID}, p.ID, env, "")
		return err
	})
	if err == nil && emitted {
		d.emitted()
	}
	if err == nil && result.Status == InboundError {
		err = fmt.Errorf("archived post %s failed again: %s", p.ID, result.Reason)
	}
	return err
}
