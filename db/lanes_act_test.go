package db_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

func (w world) asPerson(fn func(tx *db.OrgTx) error) error {
	return w.db.InOrg(w.Context(), w.org, dbtest.Actor(), fn)
}

// lanes lists the organization's lanes.
func (w world) lanes(f db.LaneFilter) []db.Lane {
	w.Helper()
	var lanes []db.Lane
	err := w.asPerson(func(tx *db.OrgTx) (err error) {
		lanes, err = tx.Lanes(w.Context(), f)
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return lanes
}

// laneActs are what a person may do to a lane, by name.
var laneActs = map[string]func(w world, tx *db.OrgTx, a db.HeadAct) error{
	"pause":  func(w world, tx *db.OrgTx, a db.HeadAct) error { return tx.PauseLane(w.Context(), a.Lane, a.Reason) },
	"resume": func(w world, tx *db.OrgTx, a db.HeadAct) error { return tx.ResumeLane(w.Context(), a.Lane, a.Reason) },
	"retry": func(w world, tx *db.OrgTx, a db.HeadAct) error {
		_, err := tx.RetryHead(w.Context(), a)
		return err
	},
	"skip": func(w world, tx *db.OrgTx, a db.HeadAct) error {
		_, err := tx.SkipHead(w.Context(), a)
		return err
	},
	"park": func(w world, tx *db.OrgTx, a db.HeadAct) error {
		_, err := tx.ParkHead(w.Context(), a)
		return err
	},
}

func (w world) act(name string, a db.HeadAct) error {
	return w.asPerson(func(tx *db.OrgTx) error { return laneActs[name](w, tx, a) })
}

func (w world) mustAct(name string, a db.HeadAct) {
	w.Helper()
	if err := w.act(name, a); err != nil {
		w.Fatalf("%s = %v", name, err)
	}
	w.lanesAreSound()
}

func TestALaneIsListedWithItsHead(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.ordered(bus.OrderingKey, typ)
	ids := w.emitKeyed(typ, "a", "a", "b", "")
	for _, d := range w.claimed(consumer) {
		if d.Event.ID == ids[0] {
			w.settle(d, bus.VerdictRetry, "refused")
		}
	}
	lanes := w.lanes(db.LaneFilter{Consumer: consumer, Limit: 10})
	slices.SortFunc(lanes, func(a, b db.Lane) int { return strings.Compare(*a.OrderKey, *b.OrderKey) })
	if len(lanes) != 2 {
		t.Fatalf("%d lanes, want 2", len(lanes))
	}
	a, b := lanes[0], lanes[1]
	if a.Consumer != consumer || a.Ordering != bus.OrderingKey || *a.OrderKey != "a" || a.Waiting != 2 || a.EventID.UUID != ids[0] ||
		*a.EventType != string(typ) || *a.Status != "pending" || a.Attempts != 1 || a.MaxAttempts != 3 || *a.LastError != "refused" ||
		a.NextAttemptAt == nil || a.PausedAt != nil || a.HeadID().UUID != bus.DeliveryID(ids[0], consumer, uuid.Nil) {
		t.Errorf("the waiting lane is %+v", a)
	}
	if *b.OrderKey != "b" || b.Waiting != 1 || *b.Status != "processing" || b.NextAttemptAt != nil || b.LastError != nil {
		t.Errorf("the lane in hand is %+v", b)
	}
	for _, lane := range lanes {
		if id, ok := db.ParseLaneID(lane.String()); !ok || id != lane.LaneID {
			t.Errorf("ParseLaneID(%s) = %+v, %t", lane, id, ok)
		}
	}
	for _, bad := range []string{"", "x", a.String() + "A", a.String()[1:], uuid.NewString(), (db.LaneID{ConsumerID: 1}).String()} {
		if _, ok := db.ParseLaneID(bad); ok {
			t.Errorf("ParseLaneID(%q) is fine", bad)
		}
	}
	if n := len(w.lanes(db.LaneFilter{Consumer: "nobody-worker"})); n != 0 {
		t.Errorf("%d lanes of a consumer that does not exist", n)
	}
}

func TestLanesAreListedPageByPage(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	keyed, strict := w.ordered(bus.OrderingKey, typ), w.ordered(bus.OrderingStrict, typ)
	w.emitKeyed(typ, "a", "b", "c", "d", "e", "a")
	all := w.lanes(db.LaneFilter{Limit: 50})
	if len(all) != 6 {
		t.Fatalf("%d lanes, want 6", len(all))
	}
	w.mustAct("pause", db.HeadAct{Lane: all[1].LaneID, Reason: "wait"})
	w.mustAct("pause", db.HeadAct{Lane: all[4].LaneID, Reason: "wait"})
	names := func(lanes []db.Lane) (names []string) {
		for _, l := range lanes {
			names = append(names, l.String())
		}
		return names
	}
	for name, tt := range map[string]struct {
		filter db.LaneFilter
		want   []db.Lane
	}{
		"all":                {db.LaneFilter{}, all},
		"paused":             {db.LaneFilter{Paused: new(true)}, []db.Lane{all[1], all[4]}},
		"not paused":         {db.LaneFilter{Paused: new(false)}, []db.Lane{all[0], all[2], all[3], all[5]}},
		"of a consumer":      {db.LaneFilter{Consumer: keyed}, all[:5]},
		"of the other":       {db.LaneFilter{Consumer: strict}, all[5:]},
		"paused of a reader": {db.LaneFilter{Consumer: strict, Paused: new(true)}, nil},
	} {
		var got []string
		for f := tt.filter; ; {
			f.Limit = 2
			page := w.lanes(f)
			got = append(got, names(page)...)
			if len(page) < 2 {
				break
			}
			f.After = page[1].LaneID
		}
		if diff := cmp.Diff(names(tt.want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestAPausedLaneHoldsWhatItHasUntilItIsResumed(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.ordered(bus.OrderingKey, typ)
	ids := w.emitKeyed(typ, "a", "a", "b")
	var head bus.Delivery
	for _, d := range w.claimed(consumer) {
		if d.Event.ID == ids[0] {
			head = d
		} else {
			w.settle(d, bus.VerdictRetry, "refused")
		}
	}
	lane := db.LaneID{ConsumerID: head.ConsumerID, Lane: head.Lane}
	w.mustAct("pause", db.HeadAct{Lane: lane, Reason: "the receiver is being repaired"})
	if got, want := w.states(ids[0])[consumer], "processing 0/3"; got != want {
		t.Errorf("what is in hand is %q, want %q", got, want)
	}
	if lost := w.settle(head, bus.VerdictRetry, "refused"); len(lost) != 0 {
		t.Error("the verdict over what was in hand was refused")
	}
	w.later(2 * time.Hour)
	for _, id := range ids[:2] {
		if got := w.states(id)[consumer]; !strings.HasPrefix(got, "held") {
			t.Errorf("a delivery of the paused lane is %q, want it held", got)
		}
	}
	w.next(consumer, ids[2]) // the other lane goes on
	ids = append(ids, w.emitKeyed(typ, "a")...)
	w.nothing(consumer)
	got := w.lanes(db.LaneFilter{Consumer: consumer, Paused: new(true)})
	if len(got) != 1 || got[0].Waiting != 3 || got[0].EventID.UUID != ids[0] || *got[0].Status != "held" || got[0].PausedAt == nil ||
		*got[0].PausedBy != "test" || *got[0].PauseReason != "the receiver is being repaired" {
		t.Errorf("the paused lane is %+v", got)
	}
	for _, name := range []string{"pause", "retry"} {
		if err := w.act(name, db.HeadAct{Lane: lane, Reason: "again"}); !errors.Is(err, bus.ErrConflict) {
			t.Errorf("%s of a paused lane = %v, want a conflict", name, err)
		}
	}
	w.mustAct("resume", db.HeadAct{Lane: lane})
	w.nothing(consumer) // the retry is not due before its time for having stood
	w.mustAct("retry", db.HeadAct{Lane: lane})
	w.settle(w.next(consumer, ids[0]), bus.VerdictDone, "")
	w.settle(w.next(consumer, ids[1]), bus.VerdictDone, "")
	w.settle(w.next(consumer, ids[3]), bus.VerdictDone, "")
	w.mustAct("pause", db.HeadAct{Lane: lane, Reason: "an empty one"})
	more := w.emitKeyed(typ, "a")
	w.nothing(consumer)
	w.mustAct("resume", db.HeadAct{Lane: lane})
	w.next(consumer, more[0])
	if n := w.count("select count(*) from audit_log where organization_id = $1 and action in ('lane.paused', 'lane.resumed') and metadata ->> 'lane' = $2",
		w.org, lane.String()); n != 4 {
		t.Errorf("%d audit rows, want 4", n)
	}
}

func TestAHeadIsRetriedSkippedOrParkedByAPerson(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"retry": "pending 1/3", "skip": "skipped 1/3", "park": "dead 1/3"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			typ := ownType()
			consumer := w.ordered(bus.OrderingStrict, typ)
			ids := w.emitKeyed(typ, "", "")
			head := w.next(consumer, ids[0])
			act := db.HeadAct{
				Lane: db.LaneID{ConsumerID: head.ConsumerID, Lane: head.Lane}, Delivery: uuid.NullUUID{UUID: head.ID, Valid: true}, Reason: "seen",
			}
			if err := w.act(name, act); !errors.Is(err, bus.ErrConflict) {
				t.Errorf("%s of what is in hand = %v, want a conflict", name, err)
			}
			w.settle(head, bus.VerdictRetry, "refused")
			other := act
			other.Delivery.UUID = uuid.New()
			if err := w.act(name, other); !errors.Is(err, bus.ErrConflict) {
				t.Errorf("%s of another head = %v, want a conflict", name, err)
			}
			w.nothing(consumer)
			w.mustAct(name, act)
			if got := w.states(ids[0])[consumer]; got != want {
				t.Errorf("the head is %q, want %q", got, want)
			}
			if n := w.count(`select count(*) from audit_log where organization_id = $1 and resource_id = $2 and action like 'delivery.%'
				and metadata ->> 'reason' = 'seen' and metadata ->> 'old_error' = 'refused'`, w.org, head.ID); n != 1 {
				t.Errorf("%d audit rows, want 1", n)
			}
			if name == "retry" {
				w.settle(w.next(consumer, ids[0]), bus.VerdictDone, "")
			} else if err := w.act(name, act); !errors.Is(err, bus.ErrConflict) {
				t.Errorf("%s of the next head by the id of the one before = %v, want a conflict", name, err)
			}
			w.settle(w.next(consumer, ids[1]), bus.VerdictDone, "")
			if err := w.act(name, act); !errors.Is(err, bus.ErrConflict) {
				t.Errorf("%s of an empty lane = %v, want a conflict", name, err)
			}
		})
	}
}

func TestWhatIsParkedIsReplayedIntoItsLane(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.ordered(bus.OrderingStrict, typ)
	ids := w.emitKeyed(typ, "", "")
	head := w.lanes(db.LaneFilter{Consumer: consumer})[0]
	w.mustAct("park", db.HeadAct{Lane: head.LaneID, Reason: "after the others"})
	err := w.asPerson(func(tx *db.OrgTx) error {
		dead, err := tx.DeadDelivery(t.Context(), head.HeadID().UUID)
		if err == nil && (dead.State != "dead" || dead.Attempts != 0 || dead.Reason == nil || *dead.Reason != "after the others") {
			t.Errorf("parked as %+v", dead)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	second := w.next(consumer, ids[1])
	if err := w.asPerson(func(tx *db.OrgTx) error { return tx.Replay(t.Context(), head.HeadID().UUID, "") }); err != nil {
		t.Fatal(err)
	}
	w.settle(second, bus.VerdictDone, "")
	w.next(consumer, ids[0])
}

func TestAHeadWhoseEffectMayHaveHappenedIsParkedAsUncertain(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.ordered(bus.OrderingStrict, typ)
	ids := w.emitKeyed(typ, "")
	head := w.next(consumer, ids[0])
	if err := w.db.BeginEffect(t.Context(), head.Lease()); err != nil {
		t.Fatal(err)
	}
	w.later(time.Hour)
	w.nothing(consumer)
	w.mustAct("park", db.HeadAct{Lane: db.LaneID{ConsumerID: head.ConsumerID, Lane: head.Lane}, Reason: "look at it"})
	if got := w.states(ids[0])[consumer]; got != "uncertain 0/3" {
		t.Errorf("the head is %q, want it uncertain", got)
	}
}

func TestLanesOfOthersAndUnknownOnesAreNotFound(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.ordered(bus.OrderingStrict, typ)
	w.emitKeyed(typ, "", "")
	lane := w.lanes(db.LaneFilter{Consumer: consumer})[0].LaneID
	other := w
	other.org = dbtest.Org(t, w.db)
	if got := other.lanes(db.LaneFilter{}); len(got) != 0 {
		t.Errorf("another organization lists %v", got)
	}
	free := w.consumer(ownType())
	wrong := []db.LaneID{
		{ConsumerID: 32000, Lane: 1},
		{ConsumerID: lane.ConsumerID, Lane: 77}, // it is strict
		{ConsumerID: lane.ConsumerID, Destination: uuid.New(), Lane: 1},
		{ConsumerID: int16(w.count("select id from consumers where name = $1", free)), Lane: 1}, //nolint:gosec // it is small
	}
	for name := range laneActs {
		for _, id := range wrong {
			if err := w.act(name, db.HeadAct{Lane: id, Reason: "none"}); !errors.Is(err, bus.ErrNotFound) {
				t.Errorf("%s of %+v = %v, want not found", name, id, err)
			}
		}
		if name == "pause" {
			continue // of a lane that is empty in that organization
		}
		if err := other.act(name, db.HeadAct{Lane: lane, Reason: "not mine"}); !errors.Is(err, bus.ErrConflict) {
			t.Errorf("%s of the empty lane of another organization = %v, want a conflict", name, err)
		}
	}
	if got := w.lanes(db.LaneFilter{Consumer: consumer}); len(got) != 1 || got[0].Waiting != 2 || got[0].PausedAt != nil {
		t.Errorf("the lane is %+v, want it as it was", got)
	}
}

func TestActsOnLanesNeedAReasonThatCanBeKept(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.ordered(bus.OrderingStrict, typ)
	w.emitKeyed(typ, "")
	lane := w.lanes(db.LaneFilter{Consumer: consumer})[0].LaneID
	for name := range laneActs {
		reasons := []string{strings.Repeat("x", 501), "\x00", "\xff"}
		if name != "resume" && name != "retry" {
			reasons = append(reasons, "", "  ")
		}
		for _, reason := range reasons {
			err := w.act(name, db.HeadAct{Lane: lane, Reason: reason})
			if field, ok := errors.AsType[*bus.FieldError](err); !ok || field.Field != "reason" {
				t.Errorf("%s with %d bytes of a reason = %v, want it refused", name, len(reason), err)
			}
		}
	}
}

func TestDeliveriesOfAPausedConsumerAreHeld(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.consumer(typ)
	id := w.emit(typ)
	w.relay()
	w.exec("update consumers set paused_at = clock_timestamp() where name = $1", consumer)
	w.nothing(consumer)
	if got := w.states(id)[consumer]; got != "held 0/3" {
		t.Errorf("the delivery is %q, want it held", got)
	}
	err := w.asPerson(func(tx *db.OrgTx) error {
		ev, err := tx.Event(t.Context(), id)
		if err == nil && ev.Status != "held" {
			t.Errorf("the event is %q, want it held", ev.Status)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
