package db

import (
	"context"
	"time"
)

// Overview is how an organization is doing. Counts go up to CountCap; CountCap
// and one means more.
type Overview struct {
	Dead             int
	EventsToday      int // of the last 24 hours
	Webhooks         int
	WebhooksFailing  int // whose last attempt failed, or that are disabled
	Channels         int
	ChannelsWorking  int
	ChannelsWaiting  int // that need somebody: to scan a code, or because they failed
	LastEventAt      *time.Time
	OldestDeadDiedAt *time.Time
}

const showOverviewSQL = `
	select (select count(*) from (select from dead_delivery where organization_id = @org_id and state in ('dead', 'uncertain')
	          order by died_at desc, delivery_id desc limit @cap) x)::int as dead,
	       (select count(*) from (select from event_log
	          where organization_id = @org_id and id >= uuid_v7_floor(clock_timestamp() - interval '24 hours') limit @cap) x)::int as events_today,
	       (select count(*) from webhook_subscriptions where organization_id = @org_id and deleted_at is null)::int as webhooks,
	       (select count(*) from webhook_subscriptions
	         where organization_id = @org_id and deleted_at is null and (consecutive_failures > 0 or not enabled))::int as webhooks_failing,
	       (select count(*) from channel_sessions where organization_id = @org_id and archived_at is null)::int as channels,
	       (select count(*) from channel_sessions
	         where organization_id = @org_id and archived_at is null and status = 'WORKING')::int as channels_working,
	       (select count(*) from channel_sessions
	         where organization_id = @org_id and archived_at is null
	           and status in ('SCAN_QR_CODE', 'PASSKEY_REQUIRED', 'PASSKEY_CONFIRMATION_REQUIRED', 'FAILED'))::int as channels_waiting,
	       (select created_at from event_log where organization_id = @org_id order by id desc limit 1) as last_event_at,
	       (select died_at from dead_delivery where organization_id = @org_id and state in ('dead', 'uncertain')
	         order by died_at, delivery_id limit 1) as oldest_dead_died_at`

// Overview looks at the organization as a whole.
func (t *OrgTx) Overview(ctx context.Context) (Overview, error) {
	if _, err := t.tx.Exec(ctx, planAnewSQL); err != nil { // how far to count decides how
		return Overview{}, wrap("look at the organization", err)
	}
	o, err := one[Overview](ctx, t.tx, showOverviewSQL, named{"org_id": t.org, "cap": CountCap + 1})
	return o, wrap("look at the organization", err)
}
