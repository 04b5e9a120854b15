package db_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// freshWorld is a world in a database that only this test uses.
func freshWorld(t *testing.T) world {
	t.Helper()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	return world{T: t, db: d, url: url, org: dbtest.Org(t, d)}
}

// ordered registers a reader in order that nobody else's test reads as.
func (w world) ordered(ordering bus.Ordering, types ...bus.Type) string {
	w.Helper()
	c := bus.Consumer{
		Name: workerName(), Types: types, Effect: bus.EffectAtLeastOnce, Ordering: ordering,
		Retry: bus.Ladder([]time.Duration{time.Hour, time.Hour}), Concurrency: 8, Timeout: time.Minute,
	}
	if err := w.db.RegisterConsumers(w.Context(), []bus.Consumer{c}); err != nil {
		w.Fatal(err)
	}
	return c.Name
}

// emitKeyed emits events with an order_key, relays them and returns their ids.
func (w world) emitKeyed(typ bus.Type, keys ...string) []uuid.UUID {
	w.Helper()
	events := make([]db.NewEvent, len(keys))
	for i, key := range keys {
		events[i] = db.NewEvent{Type: typ, EntityKind: "thing"}
		if key != "" {
			quoted, _ := json.Marshal(key)
			events[i].Metadata = map[string]json.RawMessage{"order_key": quoted}
		}
	}
	var ids []uuid.UUID
	err := w.db.InOrg(w.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) (err error) {
		ids, err = tx.EmitAll(w.Context(), events)
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	w.relay()
	return ids
}

// unsoundSQL finds lanes of which more than one delivery is current, which have
// none although they are not paused, which go on although they are, and those
// whose current one is not the first and not in hand either.
const unsoundSQL = `
	select l.organization_id::text || ' ' || l.lane || ': ' || l.current || ' current of ' || l.n || ', paused: ' || (p.lane is not null)
	  from (select organization_id, consumer_id, destination, lane, count(*) as n, count(*) filter (where due_at < 'infinity') as current,
	               min(seq) as first, min(seq) filter (where due_at < 'infinity') as current_seq, bool_or(lease_token is not null) as in_hand
	          from delivery where lane <> 0
	         group by organization_id, consumer_id, destination, lane) l
	  left join paused_lane p using (organization_id, consumer_id, destination, lane)
	 where l.organization_id = any ($1)
	   and (l.current > 1 or l.current = 0 and p.lane is null or l.current = 1 and not l.in_hand and (p.lane is not null or l.current_seq <> l.first))`

// lanesAreSound fails the test when a lane of the organizations is stuck or in
// disorder. Nothing may be under way.
func (w world) lanesAreSound(more ...uuid.UUID) {
	w.Helper()
	rows, err := dbtest.Conn(w.T, w.url).Query(w.Context(), unsoundSQL, append(more, w.org))
	if err != nil {
		w.Fatal(err)
	}
	unsound, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.Fatal(err)
	}
	for _, line := range unsound {
		w.Errorf("unsound lane: %s", line)
	}
}

// claimed claims all that a consumer may have, with a look at the lanes before and
// after.
func (w world) claimed(consumer string) []bus.Delivery {
	w.Helper()
	w.lanesAreSound()
	got := w.claim(consumer, 100)
	w.lanesAreSound()
	return got
}

// eventIDs are the events of deliveries.
func eventIDs(deliveries []bus.Delivery) map[uuid.UUID]bool {
	ids := make(map[uuid.UUID]bool)
	for _, d := range deliveries {
		ids[d.Event.ID] = true
	}
	return ids
}

func setOf(ids ...uuid.UUID) map[uuid.UUID]bool {
	set := make(map[uuid.UUID]bool)
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// next asserts that exactly the event is claimed, and returns its delivery.
func (w world) next(consumer string, want uuid.UUID) bus.Delivery {
	w.Helper()
	got := w.claimed(consumer)
	if len(got) != 1 || got[0].Event.ID != want {
		w.Fatalf("claimed %v, want only %s", eventIDs(got), want)
	}
	return got[0]
}

func (w world) nothing(consumer string) {
	w.Helper()
	if got := w.claimed(consumer); len(got) != 0 {
		w.Fatalf("claimed %v, want nothing", eventIDs(got))
	}
}

func TestInvariant10TheVerdictsOfAHeadDecideWhatItsLaneDoes(t *testing.T) {
	t.Parallel()
	for verdict, goesOn := range map[bus.Verdict]bool{
		bus.VerdictDone: true, bus.VerdictSkip: true, bus.VerdictDead: true, bus.VerdictUncertain: true,
		bus.VerdictRetry: false, bus.VerdictPostpone: false,
	} {
		for _, ordering := range []bus.Ordering{bus.OrderingKey, bus.OrderingStrict} {
			t.Run(fmt.Sprintf("%s %s", ordering, verdict), func(t *testing.T) {
				t.Parallel()
				w := setup(t)
				typ := ownType()
				consumer := w.ordered(ordering, typ)
				ids := w.emitKeyed(typ, "a", "a", "a")
				head := w.next(consumer, ids[0])
				w.nothing(consumer)
				settlement := bus.Settlement{Delivery: &head, Verdict: verdict, Error: "because", NotUntil: time.Hour}
				if lost, err := w.db.Settle(t.Context(), []bus.Settlement{settlement}); err != nil || len(lost) > 0 {
					t.Fatalf("Settle() = %v, %v", lost, err)
				}
				if goesOn {
					w.next(consumer, ids[1])
					return
				}
				w.nothing(consumer)
				w.later(2 * time.Hour)
				w.settle(w.next(consumer, ids[0]), bus.VerdictDone, "")
				w.next(consumer, ids[1])
			})
		}
	}
}

func TestInvariant10AWaitingHeadBlocksOnlyItsLane(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.ordered(bus.OrderingKey, typ)
	ids := w.emitKeyed(typ, "a", "b", "", "a", "b", "")
	got := w.claimed(consumer)
	if diff := cmp.Diff(setOf(ids[0], ids[1], ids[2], ids[5]), eventIDs(got)); diff != "" {
		t.Fatalf("claimed not the heads and what has no key (-want +got):\n%s", diff)
	}
	for _, d := range got {
		verdict := bus.VerdictDone
		if d.Event.ID == ids[0] {
			verdict = bus.VerdictRetry
		}
		w.settle(d, verdict, "refused")
	}
	w.settle(w.next(consumer, ids[4]), bus.VerdictDone, "")
	w.nothing(consumer)
}

func TestInvariant10TheKeyIsTheEntityWhenNoneIsGiven(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.ordered(bus.OrderingKey, typ)
	one, two := uuid.NullUUID{UUID: uuid.New(), Valid: true}, uuid.NullUUID{UUID: uuid.New(), Valid: true}
	events := []db.NewEvent{
		{Type: typ, EntityKind: "thing", EntityID: one},
		{Type: typ, EntityKind: "thing", EntityID: two},
		{Type: typ, EntityKind: "other", EntityID: one},
		{Type: typ, EntityKind: "thing", EntityID: one},
		{Type: typ, EntityKind: "x", Metadata: map[string]json.RawMessage{"order_key": json.RawMessage(`"thing:` + one.UUID.String() + `"`)}},
	}
	var ids []uuid.UUID
	err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) (err error) {
		ids, err = tx.EmitAll(t.Context(), events)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	w.relay()
	got := w.claimed(consumer)
	if diff := cmp.Diff(setOf(ids[:3]...), eventIDs(got)); diff != "" {
		t.Fatalf("claimed not the first of each entity (-want +got):\n%s", diff)
	}
	w.settle(got[0], bus.VerdictDone, "")
	w.settle(got[1], bus.VerdictDone, "")
	w.settle(got[2], bus.VerdictDone, "")
	w.settle(w.next(consumer, ids[3]), bus.VerdictDone, "")
	w.next(consumer, ids[4])
}

func TestInvariant10DestinationsConsumersAndOrganizationsHaveLanesOfTheirOwn(t *testing.T) {
	t.Parallel()
	w := freshWorld(t)
	hooks := bus.Consumer{Name: bus.WebhookDispatch, Effect: bus.EffectAtLeastOnce, Retry: bus.DefaultRetry()}
	if err := w.db.RegisterConsumers(t.Context(), []bus.Consumer{hooks}); err != nil {
		t.Fatal(err)
	}
	typ := ownType()
	other := w
	other.org = dbtest.Org(t, w.db)
	for _, x := range []world{w, other} {
		for range 2 {
			err := x.db.InOrg(t.Context(), x.org, dbtest.Actor(), func(tx *db.OrgTx) error {
				_, err := tx.CreateSubscription(t.Context(), db.NewSubscription{
					URL: "https://receiver.example/", EventTypes: []string{"*"}, Ordering: bus.OrderingStrict,
				})
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	reader := w.ordered(bus.OrderingStrict, typ)
	w.emitKeyed(typ, "a", "a")
	other.emitKeyed(typ, "a", "a")
	if n := w.count("select count(distinct (organization_id, consumer_id, destination, lane)) from delivery where lane = 1"); n != 6 {
		t.Errorf("%d lanes, want one for each of two organizations and three readers", n)
	}
	if got := w.claim(bus.WebhookDispatch, 100); len(got) != 4 {
		t.Errorf("claimed %d webhooks, want one for each subscription", len(got))
	}
	got := w.claim(reader, 100)
	if len(got) != 2 {
		t.Fatalf("claimed %d, want one for each organization", len(got))
	}
	w.settle(got[0], bus.VerdictRetry, "refused")
	w.settle(got[1], bus.VerdictDone, "")
	if next := w.claim(reader, 100); len(next) != 1 || next[0].OrgID != got[1].OrgID || next[0].Seq <= got[1].Seq {
		t.Errorf("claimed %v, want the next of the organization that goes on", eventIDs(next))
	}
	w.lanesAreSound(other.org)
}

func TestInvariant10AHeadWhoseProcessDiesStaysTheHead(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.ordered(bus.OrderingStrict, typ)
	ids := w.emitKeyed(typ, "", "")
	late := w.next(consumer, ids[0])
	w.later(time.Hour)
	w.nothing(consumer) // which finds that the lease has run out
	again := w.next(consumer, ids[0])
	if !again.Suspect {
		t.Error("what was in hand of a process that died is no suspect")
	}
	if lost := w.settle(late, bus.VerdictDone, ""); len(lost) != 1 {
		t.Error("a late owner has settled")
	}
	w.nothing(consumer)
	for range 2 { // it dies of its own crashes, and the lane goes on
		w.later(2 * time.Hour)
		w.nothing(consumer)
		w.later(2 * time.Hour)
		w.next(consumer, ids[0])
	}
	w.later(2 * time.Hour)
	w.claim(consumer, 1)
	if got := w.states(ids[0])[consumer]; got != "dead 3/3" {
		t.Fatalf("the head is %q, want it dead", got)
	}
	w.next(consumer, ids[1])
}

func TestInvariant10AReplayedDeliveryIsTheNextOfItsLane(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.ordered(bus.OrderingStrict, typ)
	ids := w.emitKeyed(typ, "", "", "")
	dead := w.next(consumer, ids[0])
	w.settle(dead, bus.VerdictDead, "broken")
	second := w.next(consumer, ids[1])
	replay := func() {
		t.Helper()
		err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error { return tx.Replay(t.Context(), dead.ID, "") })
		if err != nil {
			t.Fatal(err)
		}
	}
	replay()
	w.nothing(consumer) // the second is in hand
	w.settle(second, bus.VerdictRetry, "refused")
	dead = w.next(consumer, ids[0])
	w.settle(dead, bus.VerdictDead, "broken again")
	w.nothing(consumer) // the second waits for its retry, as if nothing had come before it
	replay()
	w.settle(w.next(consumer, ids[0]), bus.VerdictDone, "")
	w.later(2 * time.Hour)
	w.exec("update delivery set not_before = null where organization_id = $1", w.org)
	w.settle(w.next(consumer, ids[1]), bus.VerdictDone, "")
	w.settle(w.next(consumer, ids[2]), bus.VerdictDone, "")
}

func TestInvariant10ALocalEffectLetsItsLaneGoOn(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.ordered(bus.OrderingKey, typ)
	ids := w.emitKeyed(typ, "a", "a")
	d := w.next(consumer, ids[0])
	if err := w.effect(&d, ownType()); err != nil {
		t.Fatal(err)
	}
	w.next(consumer, ids[1])
}

func TestInvariant10WhatWaitsInALaneOutlivesAChangeOfOrdering(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.ordered(bus.OrderingStrict, typ)
	c := bus.Consumer{Name: consumer, Types: []bus.Type{typ}, Effect: bus.EffectAtLeastOnce, Retry: bus.DefaultRetry()}
	strict := w.emitKeyed(typ, "a", "a")
	change := func(o bus.Ordering) {
		t.Helper()
		c.Ordering = o
		if err := w.db.RegisterConsumers(t.Context(), []bus.Consumer{c}); err != nil {
			t.Fatal(err)
		}
	}
	change(bus.OrderingKey)
	keyed := w.emitKeyed(typ, "a", "a")
	change("")
	free := w.emitKeyed(typ, "a", "a")
	got := w.claimed(consumer)
	if diff := cmp.Diff(setOf(strict[0], keyed[0], free[0], free[1]), eventIDs(got)); diff != "" {
		t.Fatalf("claimed not the heads of the old lanes and all that is free (-want +got):\n%s", diff)
	}
	for _, d := range got {
		w.settle(d, bus.VerdictDone, "")
	}
	if diff := cmp.Diff(setOf(strict[1], keyed[1]), eventIDs(w.claimed(consumer))); diff != "" {
		t.Errorf("the old lanes do not go on (-want +got):\n%s", diff)
	}
}

func TestInvariant10LanesStandWhileTheirOrganizationIsSuspended(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.ordered(bus.OrderingStrict, typ)
	ids := w.emitKeyed(typ, "", "")
	head := w.next(consumer, ids[0])
	if _, err := w.db.SuspendOrganization(t.Context(), dbtest.Actor(), w.org, "unpaid"); err != nil {
		t.Fatal(err)
	}
	w.settle(head, bus.VerdictDone, "")
	w.nothing(consumer)
	if _, err := w.db.ReactivateOrganization(t.Context(), dbtest.Actor(), w.org); err != nil {
		t.Fatal(err)
	}
	w.next(consumer, ids[1])
}

func TestInvariant10NoTwoDeliveriesOfALaneCanBeDue(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	w.ordered(bus.OrderingStrict, typ)
	w.emitKeyed(typ, "", "")
	if got := w.refusal("update delivery set due_at = clock_timestamp() where organization_id = $1", w.org); !strings.Contains(got, "delivery_lane_idx") {
		t.Errorf("making both due = %s, want it refused by the index", got)
	}
}
