package db_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// What order costs: events of 500 entities relayed, claimed and settled for a
// reader without order, one by key and one in strict order, in turn. The strict
// one gets fewer: it handles one at a time.
func BenchmarkOrder(b *testing.B) {
	w := benchSetup(b)
	entities := make([]uuid.NullUUID, 500)
	for i := range entities {
		entities[i] = uuid.NullUUID{UUID: uuid.New(), Valid: true}
	}
	orderings := []bus.Ordering{bus.OrderingNone, bus.OrderingKey, bus.OrderingStrict}
	batch := map[bus.Ordering]int{bus.OrderingNone: 1000, bus.OrderingKey: 1000, bus.OrderingStrict: 100}
	var consumers []bus.Consumer
	for _, o := range orderings {
		consumers = append(consumers, bus.Consumer{
			Name: string(o) + "-worker", Types: []bus.Type{bus.Type("custom.bench_" + o)}, Effect: bus.EffectAtLeastOnce, Ordering: o,
			Retry: bus.Ladder([]time.Duration{time.Minute}),
		})
	}
	if err := w.db.RegisterConsumers(b.Context(), consumers); err != nil {
		b.Fatal(err)
	}
	relayed, handled := make(map[bus.Ordering]time.Duration), make(map[bus.Ordering]time.Duration)
	for b.Loop() {
		for i, o := range orderings {
			events := make([]db.NewEvent, batch[o])
			for n := range events {
				events[n] = db.NewEvent{Type: consumers[i].Types[0], EntityKind: "thing", EntityID: entities[n%len(entities)], Payload: []byte(`{"n":12345}`)}
			}
			err := w.db.InOrg(b.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
				_, err := tx.EmitAll(b.Context(), events)
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
			began := time.Now()
			w.relay(b)
			relayed[o] += time.Since(began)
			began = time.Now()
			w.drain(b, consumers[i].Name, batch[o])
			handled[o] += time.Since(began)
		}
	}
	rate := func(spent map[bus.Ordering]time.Duration, o bus.Ordering) float64 {
		return float64(b.N*batch[o]) / spent[o].Seconds()
	}
	for _, o := range orderings {
		b.ReportMetric(rate(handled, o), fmt.Sprintf("%s-handled/s", o))
		if o != bus.OrderingNone {
			b.ReportMetric(rate(relayed, o)/rate(relayed, bus.OrderingNone), fmt.Sprintf("%s-relay-ratio", o))
			b.ReportMetric(rate(handled, o)/rate(handled, bus.OrderingNone), fmt.Sprintf("%s-handle-ratio", o))
		}
	}
}

// drain claims and settles n deliveries.
func (w benchWorld) drain(b *testing.B, consumer string, n int) {
	b.Helper()
	for n > 0 {
		claimed, err := w.db.Claim(b.Context(), bus.Claim{Wants: []bus.Want{{Consumer: consumer, Limit: 500}}, Suspect: true})
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
		n -= len(claimed)
	}
}
