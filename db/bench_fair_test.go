package db_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// slow is a handler whose every event takes a while.
type slow struct {
	consumer bus.Consumer
	takes    time.Duration
}

func (h slow) Consumer() bus.Consumer { return h.consumer }

func (h slow) Handle(ctx context.Context, _ *bus.Delivery) error {
	timer := time.NewTimer(h.takes)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// One organization has a hundred thousand events for a handler that takes 200 ms
// for each. Another emits ten events a second: how long they take from their
// emission to their receipt, by the database's clock, of which 200 ms are the
// handler's. Relay and drain loop run and are woken as the program does it.
func BenchmarkFairnessP95(b *testing.B) {
	const backlog = 100_000
	for name, fill := range map[string]func(w benchWorld, conn *pgx.Conn){
		"beside ready deliveries": func(w benchWorld, conn *pgx.Conn) { w.backlog(b, conn, backlog) },
		"behind a full outbox": func(w benchWorld, _ *pgx.Conn) {
			for range backlog / 1000 {
				w.emit(b, 1000)
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				measureFairness(b, fill)
			}
		})
	}
}

func measureFairness(b *testing.B, fill func(w benchWorld, conn *pgx.Conn)) {
	b.Helper()
	const samples, interval = 240, 100 * time.Millisecond
	url := dbtest.Fresh(b)
	relay, due := make(chan struct{}, 1), make(chan struct{}, 1)
	nudge := func(wake chan struct{}) func() {
		return func() {
			select {
			case wake <- struct{}{}:
			default:
			}
		}
	}
	d := dbtest.Open(b, url, db.Options{Emitted: nudge(relay), Due: nudge(due)})
	h := slow{takes: 200 * time.Millisecond, consumer: bus.Consumer{
		Name: "slow-worker", Types: []bus.Type{"custom.bench"}, Effect: bus.EffectAtLeastOnce,
		Retry: bus.DefaultRetry(), Concurrency: 16, Timeout: time.Minute,
	}}
	if err := d.RegisterConsumers(b.Context(), []bus.Consumer{h.consumer}); err != nil {
		b.Fatal(err)
	}
	fill(benchWorld{db: d, url: url, org: dbtest.Org(b, d), consumers: []string{h.consumer.Name}}, dbtest.Conn(b, url))
	quiet := dbtest.Org(b, d)

	logger := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	loops := []interface {
		Run(ctx context.Context) error
	}{
		&bus.Relay{Step: d.Relay, Poll: time.Second, Wake: relay, Drain: nudge(due), Logger: logger},
		&bus.Drainer{Log: d, Handlers: []bus.Handler{h}, Poll: time.Second, Wake: due, Grace: time.Second, Logger: logger},
	}
	ended := make(chan error, len(loops))
	for _, l := range loops {
		go func() { ended <- l.Run(ctx) }()
	}
	emitEvery(b, d, quiet, samples, interval)
	var took []time.Duration
	dbtest.Eventually(b, "all of the quiet organization's are done", func() bool {
		took = settleTimes(b, url, quiet)
		return len(took) == samples
	})
	cancel()
	for range loops {
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}
	beside := 0
	err := dbtest.Row(b, url, "select coalesce(sum(cardinality(event_ids)), 0) from receipt where organization_id <> $1", []any{quiet}, &beside)
	if err != nil {
		b.Fatal(err)
	}
	slices.Sort(took)
	for _, p := range []int{50, 95, 100} {
		b.ReportMetric(float64(took[(len(took)*p+99)/100-1].Milliseconds()), fmt.Sprintf("p%d-ms", p))
	}
	b.ReportMetric(float64(beside), "done-beside")
}

// emitEvery emits n events of an organization, one each interval.
func emitEvery(b *testing.B, d *db.DB, org uuid.UUID, n int, interval time.Duration) {
	b.Helper()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for range n {
		<-tick.C
		err := d.InOrg(b.Context(), org, dbtest.Actor(), func(tx *db.OrgTx) error {
			_, err := tx.Emit(b.Context(), db.NewEvent{Type: "custom.bench", EntityKind: "thing"})
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// settleTimes returns how long each finished event of an organization has taken.
func settleTimes(b *testing.B, url string, org uuid.UUID) (took []time.Duration) {
	b.Helper()
	err := dbtest.Row(b, url, `
		select coalesce(array_agg(r.settled_at - e.created_at), '{}')
		  from receipt r cross join lateral unnest(r.event_ids) u (id) join event_log e on e.id = u.id
		 where r.organization_id = $1`, []any{org}, &took)
	if err != nil {
		b.Fatal(err)
	}
	return took
}
