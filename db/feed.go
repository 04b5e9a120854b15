package db

import (
	"context"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// feedScan is how many places of an organization one call looks at, whatever it
// returns of them.
const feedScan = 2000

// FeedQuery asks for the events of an organization after a place.
type FeedQuery struct {
	After int64      // the place up to which the reader has read; 0 is the beginning
	Types []bus.Type // none means all
	Limit int        // at most MaxPage
}

// Feed is a stretch of an organization's events in their order.
type Feed struct {
	Events []FeedEvent
	Cursor int64 // what to read after next: everything up to it is in Events or is not wanted
}

// FeedEvent is an event and its place.
type FeedEvent struct {
	Seq int64
	bus.Event
}

// The sum of what is looked at and what is returned is bounded, so a rare type
// costs its reader more calls and nobody a slow one. A place whose event is gone
// with its month is passed over.
const readFeedSQL = `
	with scanned as materialized (
	    select seq, event_id, event_type
	      from event_position
	     where organization_id = @org_id and seq > @after
	     order by seq
	     limit @scan
	), wanted as materialized (
	    select seq, event_id
	      from scanned
	     where cardinality(@types::text[]) = 0 or event_type = any (@types)
	     order by seq
	     limit @limit
	), reached as (
	    select case when count(*) < @limit then coalesce((select max(seq) from scanned), @after) else max(seq) end as cursor
	      from wanted
	)
	select r.cursor, w.seq, e.id, e.event_type as type, e.entity_kind, e.entity_id, e.payload, e.metadata, e.created_at
	  from reached r
	  left join (wanted w join event_log e on e.id = w.event_id and e.organization_id = @org_id) on true
	 order by w.seq`

type feedRow struct {
	Cursor     int64
	Seq        *int64
	ID         *uuid.UUID
	Type       *bus.Type
	EntityKind *string
	EntityID   uuid.NullUUID
	Payload    json.RawMessage
	Metadata   json.RawMessage
	CreatedAt  *time.Time
}

// Feed reads on from a place: who follows it by its cursor misses no event of the
// organization and meets none twice, whenever their transactions commit. A reader
// has read everything when the cursor stays where it was.
//
// Places are found by an index of their own for organizations. Without it a reader
// would walk over what all others emit: the busiest of them would set the price of
// everybody's feed, and who was away for a day would pay for the whole
// installation's day. The index costs the relay one more entry for each event and
// emission nothing.
func (t *OrgTx) Feed(ctx context.Context, q FeedQuery) (Feed, error) {
	types := make([]string, len(q.Types))
	for i, typ := range q.Types {
		types[i] = string(typ)
	}
	rows, err := collect[feedRow](ctx, t.tx, readFeedSQL, named{
		"org_id": t.org, "after": q.After, "types": types, "limit": pageLimit(q.Limit), "scan": feedScan,
	})
	if err != nil {
		return Feed{}, wrap("read feed", err)
	}
	var feed Feed
	for _, r := range rows {
		feed.Cursor = r.Cursor
		if r.Seq == nil {
			continue
		}
		feed.Events = append(feed.Events, FeedEvent{Seq: *r.Seq, Event: bus.Event{
			ID: *r.ID, OrgID: t.org, Type: *r.Type, EntityKind: *r.EntityKind, EntityID: r.EntityID,
			Payload: r.Payload, Metadata: r.Metadata, CreatedAt: *r.CreatedAt,
		}})
	}
	return feed, nil
}
