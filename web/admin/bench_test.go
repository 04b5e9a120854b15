package admin_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
	"github.com/deskcomm/deskcomm/web"
)

// fillDead makes 250 000 dead deliveries of 20 organizations over 90 days: 100 000
// of the first, the rest evenly of the others. One in 10 000 is of a rare type, one
// in 2 000 of a rare kind, one in 500 of the second consumer.
const fillDead = `
	insert into dead_delivery (delivery_id, organization_id, consumer_id, destination, lane, seq, event_id, event_type, entity_kind, entity_id,
	       payload, metadata, event_created_at, attempts, earlier_attempts, last_error, died_at)
	select gen_random_uuid(), ($1::uuid[])[case when i % 5 < 2 then 1 else 2 + i % 19 end],
	       (select id from consumers where name = case when i % 500 = 7 then $3 else $2 end), gen_random_uuid(), 0, i, gen_random_uuid(),
	       case when i % 10000 = 5 then 'custom.rare' else 'custom.t' || i % 30 end, case when i % 2000 = 6 then 'rarity' else 'kind' || i % 7 end,
	       gen_random_uuid(), jsonb_build_object('n', i, 'text', repeat('a payload of a usual size ', 8)), '{}', clock_timestamp() - interval '91 days',
	       8, 0, 'http_503: the receiver answered 503: the receiver asks for patience', clock_timestamp() - interval '90 days' * (i / 250000.0)
	  from generate_series(1, 250000) i`

// The list of the dead by what is asked of it. ms-p50 and ms-p95 are of whole
// requests through the server's handler; empty-ratio compares the first with the
// same page of an organization in which nothing is dead, measured in the same run.
func BenchmarkDeadList(b *testing.B) {
	w := setupOn(b, dbtest.Fresh(b), web.Options{})
	orgs := []uuid.UUID{w.org}
	for range 19 {
		orgs = append(orgs, dbtest.Org(b, w.db))
	}
	small, empty := orgs[7], dbtest.Org(b, w.db)
	w.exec(fillDead, orgs, bus.WebhookDispatch, w.consumer)
	w.exec("vacuum analyze dead_delivery")
	tenant, tiny, nothing := w.as(w.person(db.RoleAdmin)), w.as(w.personOf(small, db.RoleAdmin)), w.as(w.personOf(empty, db.RoleAdmin))
	platform := w.as(w.platform(db.PlatformFull))
	day := func(ago int) string { return time.Now().UTC().AddDate(0, 0, -ago).Format("2006-01-02T15:04") }

	fetch := func(b *testing.B, who *browser, path string) time.Duration {
		b.Helper()
		start := time.Now()
		rec := who.get(path)
		took := time.Since(start)
		if rec.Code != http.StatusOK {
			b.Fatalf("%s = %d %s", path, rec.Code, textOf(rec.Body.String()))
		}
		return took
	}
	var base []time.Duration
	for range 200 {
		base = append(base, fetch(b, nothing, "/admin/dlq"))
	}
	for _, bb := range []struct {
		name string
		who  *browser
		path string
		rows int
	}{
		{"empty", nothing, "/admin/dlq", 0},
		{"tenant", tenant, "/admin/dlq", 50},
		{"tenant-small", tiny, "/admin/dlq", 50},
		{"tenant-rare-type", tenant, "/admin/dlq?event_type=custom.rare", 25},
		{"tenant-type", tenant, "/admin/dlq?event_type=custom.t1", 50},
		{"tenant-rare-kind", tenant, "/admin/dlq?entity_kind=rarity", 50},
		{"tenant-kind", tenant, "/admin/dlq?entity_kind=kind1", 50},
		{"tenant-rare-consumer", tenant, "/admin/dlq?consumer=" + w.consumer, 0},
		{"tenant-consumer", tenant, "/admin/dlq?consumer=" + bus.WebhookDispatch, 50},
		{"tenant-period", tenant, "/admin/dlq?since=" + day(46) + "&until=" + day(45), 50},
		{"tenant-type-period", tenant, "/admin/dlq?event_type=custom.t1&since=" + day(46) + "&until=" + day(45), 50},
		{"tenant-no-such-type", tenant, "/admin/dlq?event_type=custom.none", 0},
		{"tenant-none-of-two", tenant, "/admin/dlq?event_type=custom.t1&entity_kind=none", 0},
		{"tenant-two", tenant, "/admin/dlq?event_type=custom.t1&consumer=" + bus.WebhookDispatch, 50},
		{"tenant-news", tenant, "/admin/dlq/news?after=0_" + uuid.Nil.String(), 0},
		{"tenant-overview", tenant, "/admin/", 0},
		{"platform", platform, "/admin/dlq", 50},
		{"platform-rare-type", platform, "/admin/dlq?event_type=custom.rare", 25},
		{"platform-type", platform, "/admin/dlq?event_type=custom.t1", 50},
		{"platform-rare-kind", platform, "/admin/dlq?entity_kind=rarity", 50},
		{"platform-rare-consumer", platform, "/admin/dlq?consumer=" + w.consumer, 50},
		{"platform-period", platform, "/admin/dlq?since=" + day(46) + "&until=" + day(45), 50},
		{"platform-no-such-type", platform, "/admin/dlq?event_type=custom.none", 0},
		{"platform-overview", platform, "/admin/", 0},
	} {
		b.Run(bb.name, func(b *testing.B) {
			page := bb.who.get(bb.path).Body.String()
			if got := strings.Count(page, "data-delivery="); bb.rows > 0 && got != bb.rows {
				b.Fatalf("%s has %d rows, want %d", bb.path, got, bb.rows)
			}
			var took []time.Duration
			for b.Loop() {
				took = append(took, fetch(b, bb.who, bb.path))
			}
			b.ReportMetric(milliseconds(took, 0.50), "ms-p50")
			b.ReportMetric(milliseconds(took, 0.95), "ms-p95")
			b.ReportMetric(milliseconds(took, 0.50)/milliseconds(base, 0.50), "empty-ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// milliseconds is the given quantile of durations.
func milliseconds(took []time.Duration, quantile float64) float64 {
	slices.Sort(took)
	at := min(int(quantile*float64(len(took))), len(took)-1)
	return float64(took[at]) / float64(time.Millisecond)
}
