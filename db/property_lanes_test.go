package db_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// orderKeys are few, so that much has to wait; with none an event is outside of
// the order of who reads by key.
var orderKeys = []string{"a", "a", "b", ""}

func (ev *modelEvent) metadata() map[string]json.RawMessage {
	if ev.key == "" {
		return nil
	}
	return map[string]json.RawMessage{"order_key": json.RawMessage(`"` + ev.key + `"`)}
}

// modelReader is a consumer, or one subscription.
type modelReader struct {
	modelConsumer
	sub      *modelSubscription
	ordering bus.Ordering
	began    *int
}

// readers lists those that there are.
func (m *machine) readers() []modelReader {
	var readers []modelReader
	for i, c := range m.consumers[1:] {
		readers = append(readers, modelReader{modelConsumer: c, ordering: c.Ordering, began: &m.consumers[i+1].since})
	}
	for _, s := range m.subs {
		if !s.deleted {
			readers = append(readers, modelReader{modelConsumer: m.consumers[0], sub: s, ordering: s.ordering, began: &s.since})
		}
	}
	return readers
}

func (r modelReader) reads(ev *modelEvent) bool {
	if r.sub == nil {
		return slices.Contains(r.Types, ev.typ)
	}
	pattern := r.sub.pattern
	return r.sub.org == ev.org && (pattern == "*" || pattern == string(ev.typ) || pattern == strings.Split(string(ev.typ), ".")[0]+".*")
}

func (r modelReader) destination() uuid.UUID {
	if r.sub == nil {
		return uuid.Nil
	}
	return r.sub.id
}

// strictLane is the one of who reads one at a time in all.
const strictLane = "strict"

// lane is that of an event of an organization with a key.
func (r modelReader) lane(org uuid.UUID, key string) bustest.LaneName {
	l := bustest.LaneName{Consumer: r.Name, Destination: r.destination(), Org: org}
	switch r.ordering {
	case bus.OrderingStrict:
		l.Lane = strictLane
	case bus.OrderingKey:
		l.Lane = key
	default:
	}
	return l
}

// addDelivery adds that of an event, which has its place, to a reader that lacks
// it, due since late before now.
func (m *machine) addDelivery(r modelReader, ev *modelEvent, late time.Duration) {
	name := bustest.Name{Event: ev.id, Consumer: r.Name, Destination: r.destination()}
	if !m.model.Has(name) {
		m.model.AddInLane(bustest.LanePlace{LaneName: r.lane(ev.org, ev.key), Seq: slices.Index(m.places, ev.id), Late: late}, name, r.Consumer)
	}
}

// someLane draws a lane, whether there is something in it or not, and its id.
func (m *machine) someLane(rt *rapid.T) (bustest.LaneName, db.LaneID) {
	readers := slices.DeleteFunc(m.readers(), func(r modelReader) bool { return r.ordering == bus.OrderingNone })
	r := rapid.SampledFrom(readers).Draw(rt, "reader")
	org := rapid.SampledFrom(m.orgs).Draw(rt, "organization")
	if r.sub != nil {
		org = r.sub.org
	}
	l := r.lane(org, rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "key"))
	id := db.LaneID{Destination: l.Destination}
	m.must(rt, m.conn.QueryRow(m.Context(), `
		select id, case when $2 = $3 then 1 else event_lane('thing', null, jsonb_build_object('order_key', $2)) end from consumers where name = $1`,
		l.Consumer, l.Lane, strictLane).Scan(&id.ConsumerID, &id.Lane))
	return l, id
}

func (m *machine) pauseLane(rt *rapid.T) {
	l, id := m.someLane(rt)
	if m.model.LanePaused(l) {
		m.must(rt, m.inOrg(l.Org, func(t *db.OrgTx) error { return t.ResumeLane(m.Context(), id, "") }))
		m.model.ResumeLane(l)
		return
	}
	if rapid.IntRange(0, 2).Draw(rt, "seldom") == 0 { // else all would stand
		m.must(rt, m.inOrg(l.Org, func(t *db.OrgTx) error { return t.PauseLane(m.Context(), id, "wait") }))
		m.model.PauseLane(l)
	}
}

// actOnHead does something to the head of a lane, and fails when it is refused or
// accepted against the rules.
func (m *machine) actOnHead(rt *rapid.T, may func(*bustest.Row) bool, act func(*db.OrgTx, db.HeadAct) (uuid.UUID, error)) *bustest.Row {
	l, id := m.someLane(rt)
	head := m.model.Head(l)
	var got uuid.UUID
	err := m.inOrg(l.Org, func(t *db.OrgTx) (err error) {
		got, err = act(t, db.HeadAct{Lane: id, Reason: "by hand"})
		return err
	})
	if head == nil || head.Status == "processing" || !may(head) {
		if !errors.Is(err, bus.ErrConflict) {
			rt.Fatalf("an act on the head of a lane that has none, or one that it may not be done to, = %v, want a refusal", err)
		}
		return nil
	}
	m.must(rt, err)
	if want := bus.DeliveryID(head.Event, head.Consumer, head.Destination); got != want {
		rt.Fatalf("an act on the head of a lane was done to %s, want %s", got, want)
	}
	return head
}

func always(*bustest.Row) bool { return true }

func (m *machine) retryHead(rt *rapid.T) {
	hasTurn := func(r *bustest.Row) bool { return !r.Waits() }
	if r := m.actOnHead(rt, hasTurn, func(t *db.OrgTx, a db.HeadAct) (uuid.UUID, error) { return t.RetryHead(m.Context(), a) }); r != nil {
		m.model.HeadRetried(r)
	}
}

func (m *machine) skipHead(rt *rapid.T) {
	if r := m.actOnHead(rt, always, func(t *db.OrgTx, a db.HeadAct) (uuid.UUID, error) { return t.SkipHead(m.Context(), a) }); r != nil {
		m.model.HeadSkipped(r, "by hand")
	}
}

func (m *machine) parkHead(rt *rapid.T) {
	if r := m.actOnHead(rt, always, func(t *db.OrgTx, a db.HeadAct) (uuid.UUID, error) { return t.ParkHead(m.Context(), a) }); r != nil {
		m.model.HeadParked(r)
	}
}

func (m *machine) pauseConsumer(rt *rapid.T) {
	name := rapid.SampledFrom(m.consumers).Draw(rt, "consumer").Name
	if m.stopped[name] = !m.stopped[name]; m.stopped[name] {
		m.must(rt, m.db.PauseConsumer(m.Context(), dbtest.Actor(), name, "wait"))
		m.model.PauseConsumer(name)
		return
	}
	m.must(rt, m.db.ResumeConsumer(m.Context(), dbtest.Actor(), name, ""))
	m.model.ResumeConsumer(name)
}

// backfill gives a reader what it lacks of all that there is.
func (m *machine) backfill(rt *rapid.T) {
	if len(m.log) == 0 {
		return
	}
	r := rapid.SampledFrom(m.readers()).Draw(rt, "reader")
	m.relayAll(rt)
	b := db.Backfill{Consumer: r.Name}
	if r.sub != nil {
		b = db.Backfill{Subscription: uuid.NullUUID{UUID: r.sub.id, Valid: true}}
	}
	m.must(rt, m.conn.QueryRow(m.Context(), "select min(created_at) from event_log").Scan(&b.Since))
	_, err := m.db.RunBackfill(m.Context(), dbtest.Actor(), b)
	m.must(rt, err)
	*r.began = 0 // what open transactions have emitted is for it too
	log := slices.SortedFunc(slices.Values(m.log), func(a, b *modelEvent) int {
		return cmp.Compare(slices.Index(m.places, a.id), slices.Index(m.places, b.id))
	})
	for _, ev := range log {
		if r.reads(ev) && !ev.cancelled && slices.Contains(m.places, ev.id) {
			m.addDelivery(r, ev, 0)
		}
	}
}

// disorderSQL finds what the rows themselves show, whatever the model says: a lane
// in disorder, and a delivery that is in two places.
const disorderSQL = unsoundSQL + `
	union all
	select format('%s is in %s places', event_id, count(*))
	  from (select consumer_id, destination, event_id from delivery
	        union all
	        select consumer_id, destination, event_id from dead_delivery where state in ('dead', 'uncertain', 'discarded')) d
	 group by consumer_id, destination, event_id having count(*) > 1`
