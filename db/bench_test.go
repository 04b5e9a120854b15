package db_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

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
