package db_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// benchWorld is a database with one organization and three consumers of
// custom.bench.
type benchWorld struct {
	db        *db.DB
	url       string
	org       uuid.UUID
	consumers []string
}

func benchSetup(b *testing.B) benchWorld {
	b.Helper()
	url := dbtest.Fresh(b)
	d := dbtest.Open(b, url, db.Options{})
	w := benchWorld{db: d, url: url, org: dbtest.Org(b, d), consumers: []string{"a-worker", "b-worker", "c-worker"}}
	var consumers []bus.Consumer
	for _, name := range w.consumers {
		consumers = append(consumers, bus.Consumer{
			Name: name, Types: []bus.Type{"custom.bench"}, Effect: bus.EffectAtLeastOnce, Retry: bus.Ladder([]time.Duration{time.Minute}),
		})
	}
	if err := d.RegisterConsumers(b.Context(), consumers); err != nil {
		b.Fatal(err)
	}
	return w
}

func (w benchWorld) emit(b *testing.B, n int) {
	b.Helper()
	events := make([]db.NewEvent, n)
	for i := range events {
		events[i] = db.NewEvent{Type: "custom.bench", EntityKind: "thing", Payload: []byte(`{"text":"a payload of a usual size, with a name and a number in it","n":12345}`)}
	}
	err := w.db.InOrg(b.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
		_, err := tx.EmitAll(b.Context(), events)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
}

func (w benchWorld) relay(b *testing.B) {
	b.Helper()
	for {
		n, err := w.db.Relay(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if n == 0 {
			return
		}
	}
}

// One event in a transaction of its own, by parallel callers.
func BenchmarkEmit(b *testing.B) {
	w := benchSetup(b)
	b.SetParallelism(4)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			err := w.db.InOrg(b.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
				_, err := tx.Emit(b.Context(), db.NewEvent{Type: "custom.bench", EntityKind: "thing", Payload: []byte(`{"n":1}`)})
				return err
			})
			if err != nil {
				b.Error(err)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// A thousand events for three consumers, from the outbox to deliveries.
func BenchmarkRelay(b *testing.B) {
	w := benchSetup(b)
	const batch = 1000
	for b.Loop() {
		b.StopTimer()
		w.emit(b, batch)
		b.StartTimer()
		w.relay(b)
	}
	b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "events/s")
}

// The same with two hundred thousand deliveries of another consumer waiting.
func BenchmarkClaimAndSettleBesideABacklog(b *testing.B) {
	w := benchSetup(b)
	for range 70 {
		w.emit(b, 1000)
		w.relay(b)
	}
	w.claimAndSettle(b, w.consumers[:1], 200)
}

// The same with seventy thousand suspects of the same consumer waiting.
func BenchmarkClaimAndSettleBesideSuspects(b *testing.B) {
	w := benchSetup(b)
	for range 70 {
		w.emit(b, 1000)
		w.relay(b)
	}
	if _, err := dbtest.Conn(b, w.url).Exec(b.Context(), "update delivery set suspect = true"); err != nil {
		b.Fatal(err)
	}
	w.claimAndSettle(b, w.consumers[:1], 200)
}

// Three thousand deliveries claimed and settled, five hundred at a time.
func BenchmarkClaimAndSettle(b *testing.B) {
	w := benchSetup(b)
	w.claimAndSettle(b, w.consumers, 1000)
}

func (w benchWorld) claimAndSettle(b *testing.B, consumers []string, batch int) {
	b.Helper()
	wants := make([]bus.Want, len(consumers))
	for i, name := range consumers {
		wants[i] = bus.Want{Consumer: name, Limit: 500}
	}
	handled := 0
	for b.Loop() {
		b.StopTimer()
		w.emit(b, batch)
		w.relay(b)
		b.StartTimer()
		for n := 0; n < batch*len(consumers); {
			claimed, err := w.db.Claim(b.Context(), bus.Claim{Wants: wants, Suspect: true})
			if err != nil {
				b.Fatal(err)
			}
			settlements := make([]bus.Settlement, len(claimed))
			for i := range claimed {
				settlements[i] = bus.Settlement{Delivery: &claimed[i], Verdict: bus.VerdictDone}
			}
			if _, err := w.db.Settle(b.Context(), settlements); err != nil {
				b.Fatal(err)
			}
			n += len(claimed)
			handled += len(claimed)
		}
	}
	b.ReportMetric(float64(handled)/b.Elapsed().Seconds(), "deliveries/s")
}

// What the shares and classes cost: a claim of 16 with 4 express and 4 more, and
// the claim that knows none beside it, in turn. Each lease is given back, outside
// the measure.
func BenchmarkClaimFair(b *testing.B) {
	cases := map[string]struct {
		due         []int // for each organization
		interactive int   // of that of the first
	}{
		"10k of one":                             {due: []int{10_000}},
		"100k of one, 10 of them interactive":    {due: []int{100_000}, interactive: 10},
		"100k of one and 1 of another":           {due: []int{100_000, 1}},
		"1000 with 100 each":                     {due: slices.Repeat([]int{100}, 1000)},
		"1000 with 100 each, 10 are interactive": {due: slices.Repeat([]int{100}, 1000), interactive: 10},
	}
	for name, c := range cases {
		b.Run(name, func(b *testing.B) {
			w := benchSetup(b)
			conn := dbtest.Conn(b, w.url)
			if _, err := conn.Exec(b.Context(), plainClaimSQL); err != nil {
				b.Fatal(err)
			}
			for i, n := range c.due {
				w.backlog(b, conn, n)
				if i > 0 {
					continue
				}
				if _, err := conn.Exec(b.Context(), "update delivery set interactive = true where seq <= 1000000000 + $1", c.interactive); err != nil {
					b.Fatal(err)
				}
			}
			want := bus.Want{Consumer: w.consumers[0], Limit: 16, Express: 4, Overflow: 4, Side: 2, Share: 4, Bulk: 2}
			var fair, plain []time.Duration
			for b.Loop() {
				began := time.Now()
				claimed, err := w.db.Claim(b.Context(), bus.Claim{Wants: []bus.Want{want}, Suspect: true})
				fair = append(fair, time.Since(began))
				if err != nil || len(claimed) < 16 {
					b.Fatalf("Claim() = %d deliveries, %v", len(claimed), err)
				}
				want.After = claimed[len(claimed)-1].OrgID
				began = time.Now()
				_, err = conn.Exec(b.Context(), "select * from plain_claims($1, $2, true, interval '30 s')", []string{w.consumers[0]}, []int{16})
				plain = append(plain, time.Since(began))
				if err != nil {
					b.Fatal(err)
				}
				if _, err := conn.Exec(b.Context(), "update delivery set lease_token = null, due_at = now() - interval '1 hour' where lease_token is not null"); err != nil {
					b.Fatal(err)
				}
			}
			slices.Sort(fair)
			slices.Sort(plain)
			for _, p := range []int{50, 99} {
				f, o := fair[len(fair)*p/100], plain[len(plain)*p/100]
				b.ReportMetric(f.Seconds()*1000, fmt.Sprintf("p%d-ms", p))
				b.ReportMetric(f.Seconds()/o.Seconds(), fmt.Sprintf("p%d-ratio", p))
			}
		})
	}
}

// backlog makes n deliveries due, of an organization of its own.
func (w benchWorld) backlog(b *testing.B, conn *pgx.Conn, n int) {
	b.Helper()
	w.org = dbtest.Org(b, w.db)
	w.emit(b, 1)
	var event uuid.UUID
	if err := conn.QueryRow(b.Context(), "delete from outbox returning event_id").Scan(&event); err != nil {
		b.Fatal(err)
	}
	if _, err := conn.Exec(b.Context(), backlogSQL, w.consumers[0], w.org, event, n); err != nil {
		b.Fatal(err)
	}
}

// plainClaimSQL is the claim without shares and classes.
const plainClaimSQL = `
create function plain_claims(p_consumers text[], p_limits int[], p_suspect boolean, p_lease_time interval)
returns table (
    consumer_id smallint, destination uuid, org_id uuid, lane bigint, seq bigint, token bigint, consumer text, attempt int, budgeted int,
    max_attempts int, suspect boolean, unknown boolean, id uuid, type text, entity_kind text, entity_id uuid, payload jsonb, metadata jsonb,
    created_at timestamptz
)
language plpgsql
set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    with want as (
        select c.id, c.name, c.max_attempts, c.retry_steps, c.retry_jitter, w.n
          from unnest(p_consumers, p_limits) w (name, n)
          join consumers c on c.name = w.name
    ), lapsed as (
        select d.*, w.name, w.retry_steps, w.retry_jitter, d.attempts + 1 as attempts_now,
               case when not d.suspect then 'suspect' when d.attempts + 1 < w.max_attempts then 'counted' else 'dead' end as outcome
          from want w
         cross join lateral (
            select d.*
              from delivery d
             where d.consumer_id = w.id
               and d.lease_token is not null
               and d.due_at <= now()
             order by d.due_at
             limit 500
               for update of d skip locked
         ) d
    ), freed as (
        update delivery d
           set lease_token = null,
               due_at = clock_timestamp()
                   + case when l.crashes > 0 then retry_delay(l.retry_steps, l.retry_jitter, l.attempts_now) else interval '0' end,
               suspect = true,
               attempts = case when l.outcome = 'counted' then l.attempts_now else l.attempts end,
               crashes = case when l.outcome = 'counted' then l.crashes + 1 else 0 end,
               last_error = case when l.outcome = 'counted' then 'the process died during the attempt' else l.last_error end,
               updated_at = clock_timestamp()
          from lapsed l
         where l.outcome <> 'dead'
           and d.consumer_id = l.consumer_id and d.destination = l.destination and d.organization_id = l.organization_id
           and d.lane = l.lane and d.seq = l.seq
    ), finished as (
        delete from delivery d
         using lapsed l
         where l.outcome = 'dead'
           and d.consumer_id = l.consumer_id and d.destination = l.destination and d.organization_id = l.organization_id
           and d.lane = l.lane and d.seq = l.seq
    ), buried as (
        insert into dead_delivery (delivery_id, organization_id, consumer_id, destination, lane, seq, event_id, event_type, entity_kind,
               entity_id, payload, metadata, event_created_at, attempts, earlier_attempts, last_error, state)
        select delivery_id(l.event_id, l.name, l.destination), l.organization_id, l.consumer_id, l.destination, l.lane, l.seq, l.event_id,
               e.event_type, e.entity_kind, e.entity_id, e.payload, e.metadata, e.created_at, l.attempts_now, l.earlier_attempts,
               'the process died during the attempt', case when l.effect_at is null then 'dead' else 'uncertain' end
          from lapsed l
          join event_log e on e.id = l.event_id and e.organization_id = l.organization_id
         where l.outcome = 'dead'
        on conflict (delivery_id) do update
           set state = excluded.state, attempts = excluded.attempts, earlier_attempts = excluded.earlier_attempts,
               last_error = excluded.last_error, died_at = clock_timestamp(), resolved_at = null, reason = null
    ), alone as (
        select d.*
          from want w
         cross join lateral (
            select d.consumer_id, d.destination, d.organization_id, d.lane, d.seq, d.due_at
              from delivery d
             where p_suspect
               and d.consumer_id = w.id
               and d.lease_token is null
               and d.suspect
               and d.due_at <= now()
               and (select o.status from organizations o where o.id = d.organization_id) = 'active'
               and coalesce((select s.enabled from webhook_subscriptions s where s.id = d.destination), true)
             order by d.due_at
             limit 1
               for update of d skip locked
         ) d
         order by d.due_at
         limit 1
    ), due as (
        select d.*
          from want w
         cross join lateral (
            select d.consumer_id, d.destination, d.organization_id, d.lane, d.seq
              from delivery d
             where d.consumer_id = w.id
               and not d.interactive
               and d.lease_token is null
               and not d.suspect
               and d.due_at <= now()
               and (select o.status from organizations o where o.id = d.organization_id) = 'active'
               and coalesce((select s.enabled from webhook_subscriptions s where s.id = d.destination), true)
             order by d.due_at
             limit w.n - (select count(*) from alone where alone.consumer_id = w.id)
               for update of d skip locked
         ) d
         union all
        select consumer_id, destination, organization_id, lane, seq from alone
    ), lease as materialized (
        select nextval('lease_token_seq') as token
         where exists (select from due)
    ), claimed as (
        update delivery d
           set lease_token = (select token from lease),
               due_at = clock_timestamp() + p_lease_time,
               updated_at = clock_timestamp()
          from due
         where d.consumer_id = due.consumer_id
           and d.destination = due.destination
           and d.organization_id = due.organization_id
           and d.lane = due.lane
           and d.seq = due.seq
        returning d.*
    )
    select c.consumer_id, c.destination, c.organization_id, c.lane, c.seq, c.lease_token,
           w.name, (c.attempts + c.earlier_attempts + 1)::int, (c.attempts + 1)::int, w.max_attempts::int, c.suspect, c.effect_at is not null,
           e.id, e.event_type, e.entity_kind, e.entity_id, e.payload, e.metadata, e.created_at
      from claimed c
      join want w on w.id = c.consumer_id
      join event_log e on e.id = c.event_id and e.organization_id = c.organization_id;
end $$;`
