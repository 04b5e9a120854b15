package db_test

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// gatesSQL makes every transaction that relays, ends a delivery or acts for a
// person wait right before its commit, with all its locks, for as long as
// somebody holds the gate of that table.
const gatesSQL = `
	create function gate() returns trigger language plpgsql as $$
	begin
	    perform pg_advisory_xact_lock_shared(hashtext('gate ' || tg_table_name));
	    return null;
	end $$;
	create constraint trigger gate after insert on event_position deferrable initially deferred for each row execute function gate();
	create constraint trigger gate after insert on receipt deferrable initially deferred for each row execute function gate();
	create constraint trigger gate after insert on audit_log deferrable initially deferred for each row execute function gate()`

// race is a strict lane, what may be done to it, and gates to do two things at
// the same time.
type race struct {
	world
	consumer string
	typ      bus.Type
	lane     db.LaneID
	gates    *pgx.Conn
	hand     bus.Delivery  // in hand when the race begins
	ids      []uuid.UUID   // of the events so far
	dead     uuid.NullUUID // a delivery before all others
}

// step is one of the things that are done at the same time.
type step struct {
	table string // whose gate holds it at its commit
	do    func(r *race) error
}

func (r *race) person(fn func(tx *db.OrgTx) error) error {
	return r.db.InOrg(r.Context(), r.org, dbtest.Actor(), fn)
}

// steps are all that changes which delivery of a lane is the first.
var steps = map[string]step{
	"relay": {"event_position", func(r *race) error {
		_, err := r.db.Relay(r.Context())
		return err
	}},
	"settle": {"receipt", func(r *race) error {
		_, err := r.db.Settle(r.Context(), []bus.Settlement{{Delivery: &r.hand, Verdict: bus.VerdictDone}})
		return err
	}},
	"retry": {"", func(r *race) error {
		_, err := r.db.Settle(r.Context(), []bus.Settlement{{Delivery: &r.hand, Verdict: bus.VerdictRetry, Error: "refused"}})
		return err
	}},
	"effect": {"receipt", func(r *race) error {
		return r.db.InDelivery(r.Context(), &r.hand, func(*db.OrgTx) error { return nil })
	}},
	"pause": {"audit_log", func(r *race) error {
		return r.person(func(tx *db.OrgTx) error { return tx.PauseLane(r.Context(), r.lane, "wait") })
	}},
	"resume": {"audit_log", func(r *race) error {
		return r.person(func(tx *db.OrgTx) error { return tx.ResumeLane(r.Context(), r.lane, "") })
	}},
	"skip": {"audit_log", func(r *race) error {
		return r.person(func(tx *db.OrgTx) error {
			_, err := tx.SkipHead(r.Context(), db.HeadAct{Lane: r.lane, Reason: "no use"})
			return err
		})
	}},
	"again": {"audit_log", func(r *race) error {
		return r.person(func(tx *db.OrgTx) error {
			_, err := tx.RetryHead(r.Context(), db.HeadAct{Lane: r.lane})
			return err
		})
	}},
	"park": {"audit_log", func(r *race) error {
		return r.person(func(tx *db.OrgTx) error {
			_, err := tx.ParkHead(r.Context(), db.HeadAct{Lane: r.lane, Reason: "later"})
			return err
		})
	}},
	"delete": {"audit_log", func(r *race) error {
		return r.person(func(tx *db.OrgTx) error { return tx.DeleteSubscription(r.Context(), r.lane.Destination) })
	}},
	"replay": {"audit_log", func(r *race) error {
		return r.person(func(tx *db.OrgTx) error { return tx.Replay(r.Context(), r.dead.UUID, "") })
	}},
}

// newRace makes a lane in which n deliveries wait behind one in hand. An event
// that is emitted already is still to be relayed.
func newRace(t *testing.T, n int) *race {
	t.Helper()
	r := &race{world: freshWorld(t), typ: ownType()}
	r.consumer = r.ordered(bus.OrderingStrict, r.typ)
	first := r.emitKeyed(r.typ, "")
	died := r.next(r.consumer, first[0])
	r.settle(died, bus.VerdictDead, "broken")
	r.dead = uuid.NullUUID{UUID: died.ID, Valid: true}
	r.lane = db.LaneID{ConsumerID: died.ConsumerID, Lane: died.Lane}
	for range n + 1 {
		r.ids = append(r.ids, r.emitKeyed(r.typ, "")...)
	}
	r.hand = r.next(r.consumer, r.ids[0])
	r.ids = append(r.ids, r.emit(r.typ))
	r.exec(gatesSQL)
	r.gates = dbtest.Conn(t, r.url)
	return r
}

const (
	shutGateSQL   = `select pg_advisory_lock(hashtext('gate ' || $1))`
	openGateSQL   = `select pg_advisory_unlock(hashtext('gate ' || $1))`
	atGateSQL     = `select pid from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())`
	waitingForSQL = `select exists (select from pg_stat_activity where datname = current_database() and $1::int = any (pg_blocking_pids(pid)))`
)

// hold starts a step and returns when it has done everything but its commit,
// with the process of the database that does it and what lets it commit.
func (r *race) hold(name string) (pid int, commit func()) {
	r.Helper()
	table := steps[name].table
	if _, err := r.gates.Exec(r.Context(), shutGateSQL, table); err != nil {
		r.Fatal(err)
	}
	done := r.start(name)
	dbtest.Eventually(r.T, name+" is about to commit", func() bool {
		err := dbtest.Row(r.T, r.url, atGateSQL, nil, &pid)
		if err != nil && err != pgx.ErrNoRows { //nolint:errorlint // a bare sentinel
			r.Fatal(err)
		}
		return err == nil
	})
	return pid, sync.OnceFunc(func() {
		if _, err := r.gates.Exec(r.Context(), openGateSQL, table); err != nil {
			r.Error(err)
		}
		done()
	})
}

// start begins a step and returns what waits for its end.
func (r *race) start(name string) (wait func()) {
	ended := make(chan error, 1)
	go func() { ended <- steps[name].do(r) }()
	return func() {
		r.Helper()
		if err := <-ended; err != nil {
			r.Errorf("%s = %v", name, err)
		}
	}
}

// waitsFor waits until something waits for the process.
func (r *race) waitsFor(pid int, what string) {
	r.Helper()
	dbtest.Eventually(r.T, what, func() bool {
		var waits bool
		if err := dbtest.Row(r.T, r.url, waitingForSQL, []any{pid}, &waits); err != nil {
			r.Fatal(err)
		}
		return waits
	})
}

// What is next in a lane when two have changed it at the same time, in terms of
// the events 1, 2, … of the lane, of which 1 is in hand at first; 0 is the dead
// one that comes before them, and -1 nothing. Whoever comes second has to wait for
// the first: it could not know else what it has to do.
func TestInvariant10NoLaneIsLeftWithoutACurrentDeliveryWhoeverMeets(t *testing.T) {
	t.Parallel()
	paused := []string{"settle", "pause"} // the lane stands, with event 2 as its first
	for name, tt := range map[string]struct {
		behind        int
		before        []string
		first, second string
		next          int
	}{
		"relay comes to a lane that settle empties":      {0, nil, "settle", "relay", 2},
		"settle empties a lane that relay comes to":      {0, nil, "relay", "settle", 2},
		"relay comes to a lane that a settle moves on":   {1, nil, "settle", "relay", 2},
		"a settle moves on a lane that relay comes to":   {1, nil, "relay", "settle", 2},
		"relay comes to a lane that an effect empties":   {0, nil, "effect", "relay", 2},
		"an effect empties a lane that relay comes to":   {0, nil, "relay", "effect", 2},
		"pause comes to a lane that settle moves on":     {1, nil, "settle", "pause", -1},
		"settle moves on a lane that pause comes to":     {1, nil, "pause", "settle", -1},
		"relay comes to a lane that is being paused":     {0, []string{"settle"}, "pause", "relay", -1},
		"pause comes to a lane that is being relayed to": {0, []string{"settle"}, "relay", "pause", -1},
		"relay comes to a lane that is being resumed":    {1, paused, "resume", "relay", 2},
		"resume comes to a lane that relay comes to":     {1, paused, "relay", "resume", 2},
		"relay comes to an empty lane, being resumed":    {0, paused, "resume", "relay", 2},
		"an empty lane is resumed while relay comes":     {0, paused, "relay", "resume", 2},
		"relay comes to a lane that replay comes to":     {0, []string{"settle"}, "replay", "relay", 0},
		"replay comes to a lane that relay comes to":     {0, []string{"settle"}, "relay", "replay", 0},
		"settle moves on a lane that replay comes to":    {1, nil, "replay", "settle", 0},
		"replay comes to a lane that settle moves on":    {1, nil, "settle", "replay", 0},
		"replay comes to a lane that settle empties":     {0, nil, "settle", "replay", 0},
		"resume comes to a lane whose first is skipped":  {2, paused, "skip", "resume", 3},
		"a first is skipped while its lane is resumed":   {2, paused, "resume", "skip", 3},
		"relay comes to a lane whose last is parked":     {1, []string{"settle"}, "park", "relay", 3},
		"the last is parked while relay comes":           {1, []string{"settle"}, "relay", "park", 3},
		"pause comes to a lane whose head is skipped":    {2, []string{"settle"}, "skip", "pause", -1},
		"replay comes to a lane that is being paused":    {0, []string{"settle"}, "pause", "replay", -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRace(t, tt.behind)
			for _, before := range tt.before {
				r.start(before)()
			}
			pid, commit := r.hold(tt.first)
			defer commit()
			wait := r.start(tt.second)
			r.waitsFor(pid, tt.second+" waits for "+tt.first)
			commit()
			wait()
			switch tt.next {
			case -1:
				r.nothing(r.consumer)
				if r.count("select count(*) from delivery") > 0 && r.count("select count(*) from paused_lane") == 0 {
					t.Error("nothing is due in a lane that is not paused")
				}
			case 0:
				got := r.claimed(r.consumer)
				if len(got) != 1 || got[0].ID != r.dead.UUID {
					t.Errorf("claimed %v, want what was replayed", eventIDs(got))
				}
			default:
				r.next(r.consumer, r.ids[tt.next-1])
			}
		})
	}
}

// Who acts on a head and then asks for relay_state, while the relay has that and
// asks for the head, would wait for ever.
func TestInvariant10WhoActsOnAHeadHoldsItOnlyAfterTheRelay(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"skip", "park", "again"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRace(t, 1)
			r.start("settle")()
			relay, err := dbtest.Conn(t, r.url).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer relay.Rollback(context.Background()) //nolint:errcheck // it is over
			var pid int
			if err := relay.QueryRow(t.Context(), "select pg_backend_pid() from relay_state for update").Scan(&pid); err != nil {
				t.Fatal(err)
			}
			wait := r.start(name)
			r.waitsFor(pid, name+" waits for the relay")
			if _, err := relay.Exec(t.Context(), "select from delivery where due_at < 'infinity' for update nowait"); err != nil {
				t.Errorf("the head is locked already: %v", err)
			}
			if err := relay.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			wait()
			r.lanesAreSound()
		})
	}
}

// The relay locks the current deliveries of its lanes one after the other. While
// it waits in the first lane the second one may move on and be emptied, by
// somebody who does not see what the relay brings.
func TestInvariant10TheRelayWaitsForWhatBecameCurrentWhileItWaited(t *testing.T) {
	t.Parallel()
	w := freshWorld(t)
	typ := ownType()
	consumer := w.ordered(bus.OrderingKey, typ)
	w.emitKeyed(typ, "a", "b")
	heads := w.claimed(consumer)
	if len(heads) != 2 {
		t.Fatalf("claimed %d heads, want 2", len(heads))
	}
	keys := map[uuid.UUID]string{}
	w.eachKey(keys)
	one, two := heads[0], heads[1]
	if one.Lane > two.Lane {
		one, two = two, one
	}
	w.emitKeyed(typ, keys[two.Event.ID]) // what becomes current
	r := &race{world: w, consumer: consumer, typ: typ, hand: two, gates: dbtest.Conn(t, w.url)}
	r.exec(gatesSQL)

	holder, err := dbtest.Conn(t, w.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Rollback(context.Background()) //nolint:errcheck // it is over
	var pid int
	if err := holder.QueryRow(t.Context(), "select pg_backend_pid() from delivery where lane = $1 and due_at < 'infinity' for update", one.Lane).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	err = w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
		_, err := tx.EmitAll(t.Context(), []db.NewEvent{keyed(typ, keys[one.Event.ID]), keyed(typ, keys[two.Event.ID])})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	relayed := r.start("relay")
	r.waitsFor(pid, "the relay waits in the first lane")
	r.start("settle")()
	r.hand = r.claim(consumer, 1)[0]
	if r.hand.Lane != two.Lane {
		t.Fatal("claimed not what became current in the second lane")
	}
	settling, commit := r.hold("settle")
	defer commit()
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitsFor(settling, "the relay waits for the verdict over what became current")
	commit()
	relayed()
	if got := w.claimed(consumer); len(got) != 1 || got[0].Lane != two.Lane {
		t.Errorf("claimed %v, want what the relay brought", eventIDs(got))
	}
}

func keyed(typ bus.Type, key string) db.NewEvent {
	return db.NewEvent{Type: typ, EntityKind: "thing", Metadata: map[string]json.RawMessage{"order_key": json.RawMessage(`"` + key + `"`)}}
}

// eachKey maps the organization's events to their order_key.
func (w world) eachKey(keys map[uuid.UUID]string) {
	w.Helper()
	rows, _ := dbtest.Conn(w.T, w.url).Query(w.Context(), "select id, metadata ->> 'order_key' as key from event_log where organization_id = $1", w.org) // its error comes back from rows
	type event struct {
		ID  uuid.UUID
		Key string
	}
	events, err := pgx.CollectRows(rows, pgx.RowToStructByName[event])
	if err != nil {
		w.Fatal(err)
	}
	for _, e := range events {
		keys[e.ID] = e.Key
	}
}
