package db_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// futureOrgsSQL makes organizations that have nothing but work for the days to come.
const futureOrgsSQL = `insert into organizations (name) select 'o' || n from generate_series(1, $1) n`

const futureJobsSQL = `
	insert into waiting_job (event_id, organization_id, event_type, created_at, not_before)
	select uuid_v7(), o.id, 'custom.bench_requested', now(), now() + interval '1 day' + n * interval '1 second'
	  from generate_series(1, $1::int) n
	  join (select id, row_number() over () as i from organizations) o on o.i = 1 + n % $2::int`

const futureDeliveriesSQL = `
	insert into delivery (consumer_id, destination, organization_id, seq, event_id, due_at, not_before)
	select (select id from consumers where name = $3), '00000000-0000-0000-0000-000000000000', o.id, 1000000000 + n, uuid_v7(),
	       now() + interval '1 day' + n * interval '1 second', now() + interval '1 day'
	  from generate_series(1, $1::int) n
	  join (select id, row_number() over () as i from organizations) o on o.i = 1 + n % $2::int`

// What a claim costs beside a million jobs for the days to come, and what it would
// if they were deliveries already, against none at all. They take turns in one run.
func BenchmarkClaimBesideFuture(b *testing.B) {
	const future = 1_000_000
	for name, tt := range map[string]struct{ orgs, backlog int }{
		"1 organization, 10 due":       {1, 10},
		"1000 organizations, 10 due":   {1000, 10},
		"1000 organizations, 100k due": {1000, 100_000},
	} {
		b.Run(name, func(b *testing.B) {
			worlds := make(map[string]benchWorld)
			conns := make(map[string]*pgx.Conn)
			for kind, sql := range map[string]string{"none": "", "jobs": futureJobsSQL, "deliveries": futureDeliveriesSQL} {
				w := benchSetup(b)
				conn := dbtest.Conn(b, w.url)
				exec := func(sql string, args ...any) {
					if _, err := conn.Exec(b.Context(), sql, args...); err != nil {
						b.Fatal(err)
					}
				}
				exec(futureOrgsSQL, tt.orgs)
				switch kind {
				case "jobs":
					exec(sql, future, tt.orgs)
				case "deliveries":
					exec(sql, future, tt.orgs, w.consumers[0])
				}
				w.backlog(b, conn, tt.backlog)
				exec("vacuum analyze")
				worlds[kind], conns[kind] = w, conn
			}
			took := make(map[string][]time.Duration)
			for b.Loop() {
				for kind, w := range worlds {
					want := bus.Want{Consumer: w.consumers[0], Limit: 16, Overflow: 4, Side: 2, Share: 4, After: uuid.Nil}
					began := time.Now()
					claimed, err := w.db.Claim(b.Context(), bus.Claim{Wants: []bus.Want{want}, Suspect: true})
					took[kind] = append(took[kind], time.Since(began))
					if err != nil || len(claimed) == 0 {
						b.Logf("%s: Claim() = %d deliveries, %v", kind, len(claimed), err)
					}
					if _, err := conns[kind].Exec(b.Context(), "update delivery set lease_token = null, due_at = now() - interval '1 hour' where lease_token is not null"); err != nil {
						b.Fatal(err)
					}
				}
			}
			for _, kind := range slices.Sorted(maps.Keys(took)) {
				slices.Sort(took[kind])
				b.ReportMetric(took[kind][len(took[kind])/2].Seconds()*1000, kind+"-ms")
			}
			for _, kind := range []string{"jobs", "deliveries"} {
				b.ReportMetric(took[kind][len(took[kind])/2].Seconds()/took["none"][len(took["none"])/2].Seconds(), kind+"-ratio")
			}
		})
	}
}
