package db

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// AttemptRow is one try of a delivery by a consumer that calls outside.
type AttemptRow struct {
	DeliveryID uuid.UUID
	Number     int
	Consumer   string
	Outcome    string // done, retry, postponed, dead, uncertain or skipped
	Error      *string
	StatusCode *int
	Response   *string // what the receiver answered, cut
	StartedAt  time.Time
	Duration   time.Duration
}

const listAttemptsSQL = `
	select a.delivery_id, a.number::int, c.name as consumer, a.outcome, a.error, a.status_code::int, a.response, a.started_at, a.duration
	  from attempt a
	  join consumers c on c.id = a.consumer_id
	 where a.organization_id = @org_id and a.delivery_id = any(@ids)
	 order by a.started_at desc, a.number desc
	 limit @limit`

// Attempts lists the tries of deliveries, the newest first, at most limit.
func (t *OrgTx) Attempts(ctx context.Context, limit int, ids ...uuid.UUID) ([]AttemptRow, error) {
	rows, err := collect[AttemptRow](ctx, t.tx, listAttemptsSQL, named{"org_id": t.org, "ids": ids, "limit": limit})
	return rows, wrap("list attempts", err)
}
