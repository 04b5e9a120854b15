package db

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
)

// Backfill says which events of the past are for a consumer, or for a webhook
// subscription, that began to read after them.
type Backfill struct {
	Consumer     string        // "" with a subscription
	Subscription uuid.NullUUID // of OrgID, when that is given
	OrgID        uuid.NullUUID // only of this organization
	Since        time.Time     // emitted at or after
	Until        time.Time     // emitted before; the zero time is now
}

// BackfillCount is what a backfill makes, or would make, of the events of one
// type, and what it leaves alone because the reader has it or has had it.
type BackfillCount struct {
	Type       bus.Type `json:"event_type"`
	Made       int      `json:"made"`
	Unfinished int      `json:"skipped_unfinished"`
	Dead       int      `json:"skipped_dead"`
	Done       int      `json:"skipped_done"`
}

// backfillStep is how many events one transaction of a backfill looks at: while it
// lasts nothing is relayed.
const backfillStep = 1000

const databaseClockSQL = `select clock_timestamp()`

// Now is the instant by the clock of the database.
func (d *DB) Now(ctx context.Context) (now time.Time, err error) {
	err = scan(ctx, d.pool, databaseClockSQL, named{}, &now)
	return now, wrap("ask for the time", err)
}

// PreviewBackfill counts what RunBackfill would do and changes nothing. Input that
// breaks a rule is a *bus.FieldError, a reader or organization that is not there
// bus.ErrNotFound.
func (d *DB) PreviewBackfill(ctx context.Context, b Backfill) ([]BackfillCount, error) {
	if err := d.prepareBackfill(ctx, &b); err != nil {
		return nil, err
	}
	return d.backfill(ctx, b, false)
}

// RunBackfill makes the deliveries that the reader lacks for events that are
// relayed, step by step, and counts them also when it fails half way. Run again it
// makes what is missing and nothing twice, whatever else relays, claims and settles
// beside it. Without an Until before now the reader also gets what transactions emit
// that are open at this moment. Its errors are those of PreviewBackfill.
func (d *DB) RunBackfill(ctx context.Context, actor Actor, b Backfill) ([]BackfillCount, error) {
	given := b.Until
	if err := d.prepareBackfill(ctx, &b); err != nil {
		return nil, err
	}
	if err := d.auditBackfill(ctx, actor, b, "consumer.backfill_started", nil); err != nil {
		return nil, err
	}
	if !b.Until.Equal(given) {
		if err := d.beginWithOpen(ctx, b); err != nil {
			return nil, err
		}
	}
	counts, err := d.backfill(ctx, b, true)
	if err != nil {
		return counts, err
	}
	return counts, d.auditBackfill(ctx, actor, b, "consumer.backfilled", counts)
}

const logBeginsSQL = `
	select min(to_date(right(c.relname, 7), 'YYYY"m"MM')::timestamp at time zone 'UTC')
	  from pg_inherits i
	  join pg_class c on c.oid = i.inhrelid
	 where i.inhparent = 'event_log'::regclass`

// prepareBackfill checks b, completes it, and relays what the outbox holds: an
// event has to have its place to get a delivery more.
func (d *DB) prepareBackfill(ctx context.Context, b *Backfill) error {
	now, err := d.Now(ctx)
	if err != nil {
		return err
	}
	var begins time.Time
	if err := scan(ctx, d.pool, logBeginsSQL, named{}, &begins); err != nil {
		return wrap("look for the beginning of the log", err)
	}
	if b.Until.IsZero() || b.Until.After(now) {
		b.Until = now
	}
	switch {
	case b.Since.After(now):
		return bus.Invalid("since", "must not be in the future")
	case b.Since.Before(begins):
		return bus.Invalid("since", "must not be before the log begins, which is "+begins.UTC().Format(time.RFC3339))
	case !b.Since.Before(b.Until):
		return bus.Invalid("until", "must be after since")
	case b.Subscription.Valid == (b.Consumer != "") && b.Consumer != bus.WebhookDispatch:
		return bus.Invalid("consumer", "must be the name of a consumer, or else the id of a subscription")
	case b.Consumer == bus.WebhookDispatch && !b.Subscription.Valid:
		return bus.Invalid("subscription", "is required: webhooks are backfilled one by one")
	}
	if b.Subscription.Valid {
		b.Consumer = bus.WebhookDispatch
	}
	if b.OrgID.Valid {
		exists, err := d.HasOrganization(ctx, b.OrgID.UUID)
		if err == nil && !exists {
			err = fmt.Errorf("look for organization: %w", bus.ErrNotFound)
		}
		if err != nil {
			return err
		}
	}
	if _, err := findReader(ctx, d.pool, *b); err != nil {
		return err
	}
	for {
		if n, err := d.Relay(ctx); err != nil || n < RelayBatch {
			return err
		}
	}
}

// reader is who is backfilled, by its keys.
type reader struct {
	ConsumerID  int16
	Destination uuid.UUID
	OrgID       uuid.NullUUID
}

const findReaderSQL = `
	select c.id as consumer_id, '00000000-0000-0000-0000-000000000000'::uuid as destination, @org_id::uuid as org_id
	  from consumers c
	 where c.name = @consumer and @subscription::uuid is null
	union all
	select c.id, s.id, s.organization_id
	  from webhook_subscriptions s
	  join consumers c on c.name = @consumer
	 where s.id = @subscription and s.deleted_at is null and (@org_id::uuid is null or s.organization_id = @org_id)`

func findReader(ctx context.Context, c conn, b Backfill) (reader, error) {
	r, err := one[reader](ctx, c, findReaderSQL, named{"consumer": b.Consumer, "subscription": b.Subscription, "org_id": b.OrgID})
	return r, wrap("look for the reader", err)
}

const beginWithOpenSQL = `
	with consumer as (
	    update consumers set starts_after = 0
	     where id = @consumer_id and @destination::uuid = '00000000-0000-0000-0000-000000000000' and starts_after > 0
	)
	update webhook_subscriptions set starts_after = 0 where id = @destination and starts_after > 0`

// beginWithOpen gives a reader what transactions emit that have been open since before
// it began: that has a lower number than the reader begins after, and no place yet in
// which a backfill would find it. All that was committed has its place by now, so the
// relay brings nothing else that is older. Each step of the backfill waits for a relay
// that goes on at this moment and does not know of this.
func (d *DB) beginWithOpen(ctx context.Context, b Backfill) error {
	r, err := findReader(ctx, d.pool, b)
	if err != nil {
		return err
	}
	_, err = d.pool.Exec(ctx, beginWithOpenSQL, named{"consumer_id": r.ConsumerID, "destination": r.Destination})
	return wrap("begin with open transactions", err)
}

const backfillDeliveriesSQL = `
	select last_id, types, made, unfinished, dead, done
	  from backfill_deliveries(@consumer_id, @destination, @org_id, @since, @until, @after, @limit, @make)`

// backfilled is one step of a backfill.
type backfilled struct {
	LastID                       uuid.NullUUID
	Types                        []bus.Type
	Made, Unfinished, Dead, Done []int
}

// backfill goes over the log, in transactions of their own, and adds up by type.
func (d *DB) backfill(ctx context.Context, b Backfill, write bool) ([]BackfillCount, error) {
	var counts []BackfillCount
	for after := (uuid.NullUUID{}); ; {
		var step backfilled
		err := d.inTx(ctx, func(tx pgx.Tx) error {
			r, err := findReader(ctx, tx, b) // it may be deleted meanwhile
			if err != nil {
				return err
			}
			step, err = one[backfilled](ctx, tx, backfillDeliveriesSQL, named{
				"consumer_id": r.ConsumerID, "destination": r.Destination, "org_id": r.OrgID, "since": b.Since, "until": b.Until,
				"after": after, "limit": backfillStep, "make": write,
			})
			return wrap("backfill", err)
		})
		if err != nil {
			return counts, err
		}
		counts = step.addTo(counts)
		if write && len(step.Types) > 0 {
			d.due()
		}
		if after = step.LastID; !after.Valid {
			return counts, nil
		}
	}
}

func (s backfilled) addTo(counts []BackfillCount) []BackfillCount {
	for i, typ := range s.Types {
		at, found := slices.BinarySearchFunc(counts, typ, func(c BackfillCount, t bus.Type) int { return strings.Compare(string(c.Type), string(t)) })
		if !found {
			counts = slices.Insert(counts, at, BackfillCount{Type: typ})
		}
		c := &counts[at]
		c.Made, c.Unfinished, c.Dead, c.Done = c.Made+s.Made[i], c.Unfinished+s.Unfinished[i], c.Dead+s.Dead[i], c.Done+s.Done[i]
	}
	return counts
}

func (d *DB) auditBackfill(ctx context.Context, actor Actor, b Backfill, action string, counts []BackfillCount) error {
	r, err := findReader(ctx, d.pool, b)
	if errors.Is(err, bus.ErrNotFound) { // deleted after its last delivery was made
		r, err = reader{Destination: b.Subscription.UUID, OrgID: b.OrgID}, nil
	}
	if err != nil {
		return err
	}
	entry := auditEntry{action: action, resourceType: "consumer", metadata: map[string]any{
		"consumer": b.Consumer, "since": b.Since.UTC(), "until": b.Until.UTC(),
	}}
	if b.Subscription.Valid {
		entry.resourceType, entry.resourceID = "webhook_subscription", b.Subscription.UUID
	}
	if counts != nil {
		entry.metadata["events"] = counts
	}
	return insertAudit(ctx, d.pool, r.OrgID, actor, entry)
}
