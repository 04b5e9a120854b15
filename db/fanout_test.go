package db_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// relayTogether lets two sessions relay at the same moment and returns how many
// events both have moved.
func (w world) relayTogether() int {
	w.Helper()
	gate := w.begin()
	if _, err := gate.Exec(w.Context(), "select from relay_state for update"); err != nil {
		w.Fatal(err)
	}
	moved := make(chan int, 2)
	for range cap(moved) {
		go func() {
			n, err := w.db.Relay(w.Context())
			if err != nil {
				w.Error(err)
			}
			moved <- n
		}()
	}
	dbtest.Eventually(w.T, "two relays wait", func() bool {
		return w.waiting(gate.Conn().PgConn().PID(), "relay_events") == 2
	})
	if err := gate.Rollback(w.Context()); err != nil {
		w.Fatal(err)
	}
	return <-moved + <-moved
}

// claimInTx claims for a worker in a transaction that stays open.
func (w world) claimInTx(tx pgx.Tx, worker string) []uuid.UUID {
	w.Helper()
	rows, err := tx.Query(w.Context(), "select id from claim_events($1)", worker)
	if err != nil {
		w.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		w.Fatal(err)
	}
	return ids
}

// One event for three readers: two handlers with local effects and a worker in
// SQL. It is relayed twice at once and once more, claimed by two for each reader,
// and ended twice.
func TestInvariant4TwoRelaysAndTwoClaimersMakeOneDeliveryAndOneEffectForEachReader(t *testing.T) {
	t.Parallel()
	w := alone(t)
	for round := range rounds {
		typ := ownType()
		crm := effector{name: roleName("crm"), types: []bus.Type{typ}, made: ownType(), log: w.db}
		search := effector{name: roleName("search"), types: []bus.Type{typ}, made: ownType(), log: w.db}
		w.register(crm, search)
		worker := w.worker(typ)
		readers := []string{crm.name, search.name, worker}
		slices.Sort(readers)

		w.relay() // what the last round's effects have emitted
		event := w.emit(typ)
		before := w.logRow(event)
		if n := w.relayTogether(); n != 1 {
			t.Errorf("round %d: two relays at once moved %d events, want 1", round, n)
		}
		w.exec("insert into outbox (event_id, organization_id, event_type, created_at) values ($1, $2, $3, clock_timestamp())", event, w.org, typ)
		w.relayTogether()
		var got []string
		err := dbtest.Row(t, w.url, `
			select array_agg(concat_ws(' ', c.name, d.destination, delivery_id(d.event_id, c.name, d.destination), d.attempts) order by c.name)
			  from delivery d join consumers c on c.id = d.consumer_id where d.event_id = $1`, []any{event}, &got)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for _, name := range readers {
			want = append(want, name+" "+uuid.Nil.String()+" "+bus.DeliveryID(event, name, uuid.Nil).String()+" 0")
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("round %d: deliveries (-want +got):\n%s", round, diff)
		}

		w.contend(round, event, worker, crm)
		w.race(round, event, search)
		for _, h := range []effector{crm, search} {
			if n := w.effects(h, event); n != 1 {
				t.Errorf("round %d: %d effects of %s, want 1", round, n, h.name)
			}
		}
		if got, want := w.states(event), map[string]string{crm.name: "done 1/8", search.name: "done 1/8", worker: "done 1/8"}; !cmp.Equal(got, want) {
			t.Errorf("round %d: states %v, want %v", round, got, want)
		}
		if n := w.count("select coalesce(sum(cardinality(event_ids)), 0) from receipt where $1 = any (event_ids)", event); n != 3 {
			t.Errorf("round %d: %d receipts of the event, want 3", round, n)
		}
		if got := w.logRow(event); got != before {
			t.Errorf("round %d: the row in the log was %q and is %q", round, before, got)
		}
	}
}

// contend has one claim for the worker stay open: another for the same worker
// finds nothing and does not wait, and one for another reader goes on.
func (w world) contend(round int, event uuid.UUID, worker string, other effector) {
	w.Helper()
	winner, loser := w.begin(), w.begin()
	if ids := w.claimInTx(winner, worker); !cmp.Equal(ids, []uuid.UUID{event}) {
		w.Fatalf("round %d: the first claimed %v, want the event", round, ids)
	}
	if _, err := loser.Exec(w.Context(), "set local statement_timeout = '20s'"); err != nil { // a wait would be for ever
		w.Fatal(err)
	}
	if ids := w.claimInTx(loser, worker); len(ids) != 0 {
		w.Errorf("round %d: the second claimed %v, want nothing", round, ids)
	}
	claimed := w.claim(other.name, 10)
	if len(claimed) != 1 {
		w.Fatalf("round %d: %d deliveries claimed for another reader beside an open claim, want 1", round, len(claimed))
	}
	if err := other.effect(w.Context(), &claimed[0]); err != nil {
		w.Errorf("round %d: the effect of another reader beside an open claim = %v", round, err)
	}
	if err := other.effect(w.Context(), &claimed[0]); !errors.Is(err, bus.ErrLeaseLost) {
		w.Errorf("round %d: the same effect again = %v, want %v", round, err, bus.ErrLeaseLost)
	}
	if err := errors.Join(loser.Commit(w.Context()), winner.Commit(w.Context())); err != nil {
		w.Fatal(err)
	}
	w.exec("select ack_event($1, $2)", event, worker)
	if got := w.refusal("select ack_event($1, $2)", event, worker); got[:5] != "55000" {
		w.Errorf("round %d: the same acknowledgement again is refused with %q, want 55000", round, got)
	}
}

// race has two claim and have the effect at the same time.
func (w world) race(round int, event uuid.UUID, h effector) {
	w.Helper()
	var claimers sync.WaitGroup
	won := make(chan bus.Delivery, 4)
	start := make(chan struct{})
	for range 2 {
		log := dbtest.Open(w.T, w.url, db.Options{MaxConns: 1})
		claimers.Go(func() {
			<-start
			claimed, err := log.Claim(context.WithoutCancel(w.Context()), bus.Claim{Wants: []bus.Want{{Consumer: h.name, Limit: 2}}})
			if err != nil {
				w.Error(err)
			}
			for _, d := range claimed {
				won <- d
			}
		})
	}
	close(start)
	claimers.Wait()
	close(won)
	if len(won) != 1 {
		w.Fatalf("round %d: %d of two claims got the delivery, want 1", round, len(won))
	}
	d := <-won
	if d.Event.ID != event {
		w.Errorf("round %d: claimed %s, want %s", round, d.Event.ID, event)
	}
	results := make(chan error, 2)
	for range cap(results) {
		again := d
		go func() { results <- h.effect(w.Context(), &again) }()
	}
	first, second := <-results, <-results
	if (first == nil) == (second == nil) || !errors.Is(errors.Join(first, second), bus.ErrLeaseLost) {
		w.Errorf("round %d: the effect twice at once = %v and %v, want one and a lost lease", round, first, second)
	}
}
