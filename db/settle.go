package db

import (
	"context"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
)

// One statement settles a batch: what is not held under the given token any more
// is not in mine, and so nothing happens to it. Rows are locked in the order of
// their keys, deliveries before subscriptions, as everywhere: statements that lock
// several of them would else stop each other for good. They are found by their
// keys: plain equality of tokens would offer the planner the index of all leases,
// which it takes for empty when nothing was held at the last analyze.
//
// A subscription to which nothing new has happened is neither locked nor written
// more than once a second: its last_delivered_at may be that much older.
const settleDeliveriesSQL = `
	with verdict as (
	    select *
	      from unnest(@consumer_ids::smallint[], @destinations::uuid[], @org_ids::uuid[], @lanes::bigint[], @seqs::bigint[],
	                  @tokens::bigint[], @delivery_ids::uuid[], @verdicts::text[], @errors::text[], @not_untils::interval[],
	                  @started_ats::timestamptz[], @durations::interval[], @status_codes::smallint[], @responses::text[],
	                  @were_unknown::boolean[], @are_unknown::boolean[])
	        as v (consumer_id, destination, organization_id, lane, seq, token, delivery_id, verdict, error, not_until,
	              started_at, duration, status_code, response, was_unknown, is_unknown)
	), mine as (
	    select d as held, d.event_id, d.attempts + 1 as attempts, d.earlier_attempts, v.*
	      from delivery d
	      join verdict v using (consumer_id, destination, organization_id, lane, seq)
	     where d.lease_token is not distinct from v.token
	     order by d.consumer_id, d.destination, d.organization_id, d.lane, d.seq
	       for update of d
	), judged as (
	    select m.*, c.retry_steps, c.retry_jitter,
	           case when m.verdict <> 'retry' or m.attempts < c.max_attempts then m.verdict
	                when m.is_unknown then 'uncertain'
	                else 'dead' end as outcome
	      from mine m
	      join consumers c on c.id = m.consumer_id
	), finished as (
	    delete from delivery d
	     using judged j
	     where j.outcome in ('done', 'skipped')
	       and d.consumer_id = j.consumer_id and d.destination = j.destination and d.organization_id = j.organization_id
	       and d.lane = j.lane and d.seq = j.seq
	), due_again as (
	    update delivery d
	       set due_at = clock_timestamp() + greatest(
	               case when j.outcome = 'retry' then retry_delay(j.retry_steps, j.retry_jitter, j.attempts) else interval '0' end, j.not_until),
	           lease_token = null, effect_at = case when j.is_unknown then d.effect_at end,
	           suspect = d.suspect and j.was_unknown, crashes = case when j.was_unknown then d.crashes else 0 end,
	           attempts = case when j.outcome = 'retry' then j.attempts else d.attempts end,
	           last_error = case when j.outcome = 'retry' then j.error else coalesce(nullif(j.error, ''), d.last_error) end,
	           updated_at = clock_timestamp()
	      from judged j
	     where j.outcome in ('retry', 'postponed')
	       and d.consumer_id = j.consumer_id and d.destination = j.destination and d.organization_id = j.organization_id
	       and d.lane = j.lane and d.seq = j.seq
	), receipts as (
	    insert into receipt (organization_id, consumer_id, outcome, reason, first_event_id, last_event_id, event_ids, destinations, attempts)
	    select organization_id, consumer_id, outcome, case when outcome = 'skipped' then error end,
	           (array_agg(event_id order by event_id))[1], (array_agg(event_id order by event_id desc))[1],
	           array_agg(event_id order by event_id), array_agg(destination order by event_id), array_agg(attempts::smallint order by event_id)
	      from judged
	     where outcome in ('done', 'skipped')
	     group by organization_id, consumer_id, outcome, case when outcome = 'skipped' then error end
	), buried as materialized (
	    select bury_delivery(j.held, j.attempts, j.error, j.outcome) as id from judged j where j.outcome in ('dead', 'uncertain')
	), tried as (
	    insert into attempt (delivery_id, number, organization_id, consumer_id, destination, event_id, outcome, error, status_code,
	           response, started_at, duration)
	    select delivery_id, attempts + earlier_attempts, organization_id, consumer_id, destination, event_id, outcome, nullif(error, ''),
	           nullif(status_code, 0), nullif(response, ''), started_at, duration
	      from judged
	     where started_at is not null
	    on conflict (organization_id, delivery_id, number) do update
	       set outcome = excluded.outcome, error = excluded.error, status_code = excluded.status_code, response = excluded.response,
	           started_at = excluded.started_at, duration = excluded.duration
	     where attempt.outcome = 'postponed' -- it spent nothing, so the next try has its number
	), thawed as (
	    delete from frozen_body b using judged j where b.delivery_id = j.delivery_id and j.outcome in ('done', 'skipped')
	), tally as materialized (
	    select destination, bool_or(outcome = 'done') as delivered, count(*) filter (where outcome <> 'done')::int as failed,
	           nullif((array_agg(status_code order by started_at desc))[1], 0) as last_status,
	           nullif((array_agg(error order by started_at desc))[1], '') as last_error
	      from judged
	     where started_at is not null and outcome <> 'postponed'
	     group by destination
	), subscribers as materialized (
	    select s.id, t.delivered, t.failed, t.last_status, t.last_error
	      from tally t
	      join webhook_subscriptions s on s.id = t.destination
	     where not (t.delivered and s.consecutive_failures = 0 and s.last_status is not distinct from t.last_status
	                and s.last_error is not distinct from t.last_error
	                and s.last_delivered_at between clock_timestamp() - interval '1 second' and clock_timestamp())
	     order by s.id
	       for update of s
	), counted as (
	    update webhook_subscriptions s
	       set consecutive_failures = case when t.delivered then 0 else s.consecutive_failures + t.failed end,
	           last_status = t.last_status,
	           last_error = t.last_error,
	           last_delivered_at = case when t.delivered then clock_timestamp() else s.last_delivered_at end
	      from subscribers t
	     where s.id = t.id
	)
	select consumer_id, destination, organization_id as org_id, lane, seq, token
	  from mine
	 where (select count(id) from buried) >= 0 -- or nobody would ask for it`

// Only of lanes whose current delivery was held: to wait for the row of another
// could make two who settle wait for each other.
const advanceLanesSQL = `select advance_lanes(@consumer_ids::smallint[], @destinations::uuid[], @org_ids::uuid[], @lanes::bigint[])`

// maxErrorText bounds what is kept of an error or an answer, in bytes.
const maxErrorText = 4096

// Settle brings claimed deliveries to their verdicts and returns the leases that
// were no longer valid.
func (d *DB) Settle(ctx context.Context, settlements []bus.Settlement) (lost []bus.Lease, err error) {
	if !slices.ContainsFunc(settlements, func(s bus.Settlement) bool { return !isPlain(s) }) {
		return d.settleDone(ctx, settlements)
	}
	if !slices.ContainsFunc(settlements, func(s bus.Settlement) bool { return s.Delivery.Lane != 0 }) {
		return settle(ctx, d.pool, settlements)
	}
	err = d.inTx(ctx, func(tx pgx.Tx) error {
		lost, err = settle(ctx, tx, settlements)
		return err
	})
	return lost, err
}

// settle needs a transaction when one of the deliveries is in a lane.
func settle(ctx context.Context, c conn, settlements []bus.Settlement) ([]bus.Lease, error) {
	leases := make([]bus.Lease, len(settlements))
	for i, s := range settlements {
		leases[i] = s.Delivery.Lease()
	}
	args := leaseColumns(leases)
	addVerdictColumns(args, settlements)
	settled, err := collect[bus.Lease](ctx, c, settleDeliveriesSQL, args)
	if err != nil {
		return nil, wrap("settle deliveries", err)
	}
	return missing(leases, settled), advanceLanes(ctx, c, settled)
}

// advanceLanes lets the next ones of their lanes follow deliveries that were
// settled. It is a statement of its own: it sees what has come into a lane, or
// has paused it, while the one before waited for its row.
func advanceLanes(ctx context.Context, c conn, settled []bus.Lease) error {
	ordered := slices.DeleteFunc(slices.Clone(settled), func(l bus.Lease) bool { return l.Lane == 0 })
	if len(ordered) == 0 {
		return nil
	}
	args := leaseColumns(ordered)
	delete(args, "seqs")
	delete(args, "tokens")
	_, err := c.Exec(ctx, advanceLanesSQL, args)
	return wrap("advance lanes", err)
}

func addVerdictColumns(args named, settlements []bus.Settlement) {
	n := len(settlements)
	ids := make([]uuid.UUID, n)
	verdicts, errs, responses := make([]string, n), make([]string, n), make([]string, n)
	notUntils, durations := make([]time.Duration, n), make([]time.Duration, n)
	startedAts := make([]*time.Time, n)
	statusCodes := make([]int16, n)
	were, are := make([]bool, n), make([]bool, n)
	for i, s := range settlements {
		ids[i], verdicts[i], notUntils[i] = s.Delivery.ID, string(s.Verdict), s.NotUntil
		errs[i] = storableText(s.Error)
		were[i], are[i] = s.Delivery.Unknown, s.Unknown
		if detail := s.Delivery.Detail; detail != nil {
			startedAts[i], durations[i] = &detail.StartedAt, detail.Duration
			statusCodes[i], responses[i] = int16(detail.StatusCode), storableText(detail.Response) //nolint:gosec // three digits
		}
	}
	args["delivery_ids"], args["verdicts"], args["errors"], args["not_untils"] = ids, verdicts, errs, notUntils
	args["were_unknown"], args["are_unknown"] = were, are
	args["started_ats"], args["durations"], args["status_codes"], args["responses"] = startedAts, durations, statusCodes, responses
}

// storableText makes any bytes fit a text column: valid UTF-8, no NUL, bounded.
func storableText(s string) string {
	if len(s) > maxErrorText {
		s = s[:maxErrorText]
	}
	out := make([]rune, 0, len(s))
	for _, r := range s {
		if r == 0 {
			r = utf8.RuneError
		}
		out = append(out, r)
	}
	return string(out)
}
