package db_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// backlog makes n deliveries due for a consumer.
func (w world) backlog(consumer string, n int) {
	w.Helper()
	w.exec(backlogSQL, consumer, w.org, w.emit(ownType()), n)
}

// claimAll claims until nothing comes any more, always again, and returns how
// often each organization got something.
func (w world) claimAll(want bus.Want, each func(claimed map[uuid.UUID]int)) map[uuid.UUID]int {
	w.Helper()
	all, seen := make(map[uuid.UUID]int), make(map[bus.Key]bool)
	for {
		claimed, err := w.db.Claim(w.Context(), bus.Claim{Wants: []bus.Want{want}, Again: true})
		if err != nil {
			w.Fatal(err)
		}
		if len(claimed) == 0 {
			return all
		}
		now := make(map[uuid.UUID]int)
		for _, d := range claimed {
			if seen[d.Key] {
				w.Errorf("%v was claimed twice", d.Key)
			}
			seen[d.Key] = true
			now[d.OrgID]++
			all[d.OrgID]++
		}
		if each != nil {
			each(now)
		}
	}
}

func TestClaimsThatGoByWhatTheLastOneLeftTakeEverythingWithinTheShares(t *testing.T) {
	t.Parallel()
	w := alone(t)
	consumer := w.consumer(ownType())
	many, few := world{T: t, db: w.db, url: w.url, org: dbtest.Org(t, w.db)}, w
	many.backlog(consumer, 230)
	few.backlog(consumer, 90)
	const share = 10
	all := w.claimAll(bus.Want{Consumer: consumer, Limit: 16, Overflow: 4, Share: share}, func(now map[uuid.UUID]int) {
		if now[many.org] > share && now[few.org] > 0 {
			t.Errorf("one claim gives %v, want at most %d to each of two", now, share)
		}
	})
	if all[many.org] != 230 || all[few.org] != 90 {
		t.Errorf("claimed %v, want all", all)
	}
}

func TestAClaimByWhatIsLeftTakesNothingOfWhoWasStoppedMeanwhile(t *testing.T) {
	t.Parallel()
	w := alone(t)
	consumer := w.consumer(ownType())
	suspended, other := world{T: t, db: w.db, url: w.url, org: dbtest.Org(t, w.db)}, w
	suspended.backlog(consumer, 50)
	other.backlog(consumer, 50)
	stopped := false
	all := w.claimAll(bus.Want{Consumer: consumer, Limit: 4, Share: 2}, func(now map[uuid.UUID]int) {
		if stopped && now[suspended.org] > 0 {
			t.Errorf("claimed %d of an organization that is suspended", now[suspended.org])
		}
		if !stopped {
			w.exec("update organizations set status = 'suspended', suspended_at = now() where id = $1", suspended.org)
			stopped = true
		}
	})
	if all[suspended.org] != 2 || all[other.org] != 50 {
		t.Errorf("claimed %v, want 2 of the suspended and 50 of the other", all)
	}
}

func TestADeliveryThatBecomesDueIsSeenByTheNextClaimThatIsNotAgain(t *testing.T) {
	t.Parallel()
	w := alone(t)
	consumer := w.consumer(ownType())
	late := world{T: t, db: w.db, url: w.url, org: dbtest.Org(t, w.db)}
	w.backlog(consumer, 500)
	want := bus.Want{Consumer: consumer, Limit: 8, Overflow: 2, Share: 4}
	if claimed, err := w.db.Claim(t.Context(), bus.Claim{Wants: []bus.Want{want}}); err != nil || len(claimed) != 8 {
		t.Fatalf("Claim() = %d, %v", len(claimed), err)
	}
	late.backlog(consumer, 1)
	claimed, err := w.db.Claim(t.Context(), bus.Claim{Wants: []bus.Want{want}})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, d := range claimed {
		if d.OrgID == late.org {
			n++
		}
	}
	if n != 1 {
		t.Errorf("the claim after it became due gives %d of it", n)
	}
}

func TestAClaimThatRelaysHandsOutWhatWasEmitted(t *testing.T) {
	t.Parallel()
	emitted := make(chan struct{}, 10)
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{Emitted: func() { emitted <- struct{}{} }})
	w := world{T: t, db: d, url: url, org: dbtest.Org(t, d)}
	typ := ownType()
	consumer := w.consumer(typ)
	claim := func() int {
		t.Helper()
		got, err := d.Claim(t.Context(), bus.Claim{Wants: []bus.Want{{Consumer: consumer, Limit: 5000}}, Relay: true})
		if err != nil {
			t.Fatal(err)
		}
		return len(got)
	}
	w.emit(typ)
	<-emitted
	if n := claim(); n != 1 || len(emitted) != 0 {
		t.Errorf("claimed %d and asked for %d relays more, want 1 and none", n, len(emitted))
	}
	w.emitMany(typ, db.RelayBatch+1)
	<-emitted
	if n := claim(); n != db.RelayBatch || len(emitted) != 1 {
		t.Errorf("claimed %d and asked for %d relays more, want a batch and one", n, len(emitted))
	}
	if n := claim(); n != 1 {
		t.Errorf("claimed %d of what was left, want 1", n)
	}
}

// Of a relay whose claim fails nothing may be left half done.
func TestARelayWhoseClaimFailsIsUndone(t *testing.T) {
	t.Parallel()
	w := alone(t)
	typ := ownType()
	consumer := w.consumer(typ)
	w.emit(typ)
	w.exec("alter function lock_due(smallint, int) rename to lock_due_away")
	claim := bus.Claim{Wants: []bus.Want{{Consumer: consumer, Limit: 5}}, Relay: true}
	if got, err := w.db.Claim(t.Context(), claim); err == nil {
		t.Errorf("Claim() = %d without its function, want an error", len(got))
	}
	if n := w.count("select count(*) from outbox"); n != 1 {
		t.Errorf("%d events wait for the relay, want 1", n)
	}
	w.exec("alter function lock_due_away(smallint, int) rename to lock_due")
	if got, err := w.db.Claim(t.Context(), claim); err != nil || len(got) != 1 {
		t.Errorf("Claim() = %d, %v, want 1", len(got), err)
	}
}

// The head of a lane dies with its process. Whoever is behind it is for a later
// claim than that which finds the head dead, as all that comes of a dead process.
func TestACrowdedClaimEndsTheLeasesThatHaveRunOutAndHandsOutNothingOfThem(t *testing.T) {
	t.Parallel()
	w := alone(t)
	lane, other := ownType(), world{T: t, db: w.db, url: w.url, org: dbtest.Org(t, w.db)}
	ordered := "ordered" + workerName()
	if err := w.db.RegisterConsumers(t.Context(), []bus.Consumer{{
		Name: ordered, Types: []bus.Type{lane}, Effect: bus.EffectAtLeastOnce, Ordering: bus.OrderingStrict, Retry: bus.Ladder(nil), Concurrency: 4, Timeout: time.Minute,
	}}); err != nil {
		t.Fatal(err)
	}
	w.emitMany(lane, 2)
	w.relay()
	claim := func() (events []uuid.UUID) {
		t.Helper()
		got, err := w.db.Claim(t.Context(), bus.Claim{Wants: []bus.Want{{Consumer: ordered, Limit: 4, Overflow: 2, Share: 2}}, Suspect: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range got {
			if d.OrgID == w.org {
				events = append(events, d.Event.ID)
			}
		}
		return events
	}
	lapse := func() {
		w.exec("update delivery set due_at = clock_timestamp() - interval '1 s' where lease_token is not null and lane <> 0")
	}
	head := claim()
	lapse()
	other.backlog(ordered, 50) // crowded from here on
	if got := claim(); len(got) != 0 {
		t.Fatalf("claimed %v by the claim that finds the lease run out", got)
	}
	if got := claim(); len(head) != 1 || len(got) != 1 || got[0] != head[0] {
		t.Fatalf("claimed %v after %v, want the same as a suspect", got, head)
	}
	lapse() // a second time, which is its death
	if got := claim(); len(got) != 0 {
		t.Errorf("claimed %v by the claim that finds the head dead", got)
	}
	if got := claim(); len(got) != 1 || got[0] == head[0] {
		t.Errorf("claimed %v after the head's death, want the one behind it", got)
	}
}
