package db_test

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// What an event of 500 bytes for three consumers adds to the write-ahead log, from
// its emission in batches of a hundred to the receipts of all three, after a
// checkpoint.
func BenchmarkWAL(b *testing.B) {
	const events, batch = 20_000, 100
	w := benchSetup(b)
	conn := dbtest.Conn(b, w.url)
	written := make(map[string]int)
	measure := func(step string, do func()) {
		b.Helper()
		began := lsn(b, conn)
		do()
		written[step] += lsn(b, conn) - began
	}
	for b.Loop() {
		if _, err := conn.Exec(b.Context(), "checkpoint"); err != nil {
			b.Fatal(err)
		}
		measure("emit", func() {
			for range events / batch {
				w.emitSized(b, batch, 500)
			}
		})
		measure("relay", func() { w.relay(b) })
		measure("drain", func() { w.settleAll(b, events*len(w.consumers)) })
	}
	for step, n := range written {
		b.ReportMetric(float64(n)/float64(b.N*events), step+"-B/event")
	}
}

// lsn is how many bytes the server has written ahead since it was made.
func lsn(b *testing.B, conn *pgx.Conn) (n int) {
	b.Helper()
	if err := conn.QueryRow(b.Context(), "select (pg_current_wal_insert_lsn() - '0/0')::bigint").Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

// emitSized emits events whose payload has a size, and letters that cannot be
// squeezed much.
func (w benchWorld) emitSized(b *testing.B, n, size int) {
	b.Helper()
	events := make([]db.NewEvent, n)
	for i := range events {
		events[i] = db.NewEvent{Type: "custom.bench", EntityKind: "thing", Payload: incompressible(size)}
	}
	err := w.db.InOrg(b.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
		_, err := tx.EmitAll(b.Context(), events)
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
}

// settleAll claims and settles n deliveries.
func (w benchWorld) settleAll(b *testing.B, n int) {
	b.Helper()
	wants := make([]bus.Want, len(w.consumers))
	for i, name := range w.consumers {
		wants[i] = bus.Want{Consumer: name, Limit: 500}
	}
	for n > 0 {
		claimed, err := w.db.Claim(b.Context(), bus.Claim{Wants: wants, Suspect: true})
		if err != nil || len(claimed) == 0 {
			b.Fatalf("Claim() = %d deliveries, %v, with %d left", len(claimed), err, n)
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

// incompressible is a JSON object of a size.
func incompressible(size int) json.RawMessage {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	pad := make([]byte, size-len(`{"text":""}`))
	for i := range pad {
		pad[i] = letters[rand.N(len(letters))] //nolint:gosec // nothing is secret
	}
	return json.RawMessage(`{"text":"` + string(pad) + `"}`)
}
