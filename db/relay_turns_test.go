package db_test

import (
	"testing"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// placesSQL lists the organizations of events in the order of their places.
const placesSQL = `select array_agg(organization_id order by seq) from event_position where event_type = any ($1)`

// organizations makes n organizations, in the order of their ids.
func (w world) organizations(n int) []world {
	w.Helper()
	worlds := make([]world, n)
	for i := range worlds {
		worlds[i] = world{T: w.T, db: w.db, url: w.url, org: dbtest.Org(w.T, w.db)}
	}
	return worlds
}

// places are the organizations whose events have theirs, in that order.
func (w world) places(types ...bus.Type) (orgs []uuid.UUID) {
	w.Helper()
	if err := dbtest.Row(w.T, w.url, placesSQL, []any{types}, &orgs); err != nil {
		w.Fatal(err)
	}
	return orgs
}

// relayBatch relays one batch of at most limit events.
func (w world) relayBatch(limit, want int) {
	w.Helper()
	if n := w.count("select relay_events($1)", limit); n != want {
		w.Fatalf("relayed %d events, want %d", n, want)
	}
}

func TestInvariant12AnEventIsRelayedInTheNextBatchWhateverAnotherOrganizationHasBeforeIt(t *testing.T) {
	t.Parallel()
	w := freshWorld(t)
	orgs, typ := w.organizations(2), ownType()
	noisy, quiet := orgs[0], orgs[1]
	consumer := w.consumer(typ)
	noisy.emitMany(typ, 10_000)
	event := quiet.emit(typ)
	if n, err := w.db.Relay(t.Context()); err != nil || n != 1000 {
		t.Fatalf("Relay() = %d, %v, want a full batch", n, err)
	}
	if n := w.count("select count(*) from delivery d join consumers c on c.id = d.consumer_id where c.name = $1 and d.event_id = $2", consumer, event); n != 1 {
		t.Errorf("the quiet organization's event has %d deliveries after a batch, want 1", n)
	}
	if n := w.count("select count(*) from event_position where organization_id = $1", noisy.org); n != 999 {
		t.Errorf("%d events of the noisy organization are relayed beside it, want what else the batch has room for", n)
	}
}

// A feed reads an organization's events by their places.
func TestInvariant10AnOrganizationsEventsHaveTheirPlacesInTheOrderOfTheirEmissionWhenOthersTakeTurns(t *testing.T) {
	t.Parallel()
	w := freshWorld(t)
	typ := ownType()
	for i, o := range w.organizations(3) {
		o.emitMany(typ, 100*(i+1))
	}
	for left := 600; left > 0; left -= 70 {
		w.relayBatch(70, min(70, left))
	}
	n := w.count(`select count(*) from (
		select p.event_id < lag(p.event_id) over (partition by p.organization_id order by p.seq) as early from event_position p) p where early`)
	if n != 0 {
		t.Errorf("%d events have a place before an earlier one of their organization", n)
	}
	if n := w.count("select count(distinct seq) from event_position where seq between 1 and 600"); n != 600 {
		t.Errorf("%d places are given, want 600 without a gap", n)
	}
}

// What one leaves of its share the others get, so that a batch is full as long as
// the outbox can fill it.
func TestABatchIsSharedByTurnsAndFull(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		emitted, want []int
		limit         int
	}{
		"one alone":                        {[]int{50}, []int{40}, 40},
		"two with much":                    {[]int{50, 50}, []int{20, 20}, 40},
		"one has little":                   {[]int{100, 3}, []int{37, 3}, 40},
		"few, some and much":               {[]int{1, 15, 100, 100}, []int{1, 13, 13, 13}, 40},
		"leftovers of leftovers":           {[]int{1, 9, 12, 100}, []int{1, 9, 12, 18}, 40},
		"exactly as many as there is room": {[]int{30, 10}, []int{30, 10}, 40},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := freshWorld(t)
			orgs, typ := w.organizations(len(tt.emitted)), ownType()
			for i, o := range orgs {
				o.emitMany(typ, tt.emitted[i])
			}
			w.relayBatch(tt.limit, tt.limit)
			for i, o := range orgs {
				if n := w.count("select count(*) from event_position where organization_id = $1", o.org); n != tt.want[i] {
					t.Errorf("organization %d has %d of %d relayed, want %d", i, n, tt.emitted[i], tt.want[i])
				}
			}
		})
	}
}

func TestMoreOrganizationsThanABatchHoldsAllComeToTheirTurn(t *testing.T) {
	t.Parallel()
	w := freshWorld(t)
	typ := ownType()
	orgs := w.organizations(7)
	for _, o := range orgs {
		o.emitMany(typ, 20)
	}
	for range 7 {
		w.relayBatch(2, 2)
	}
	for i, o := range orgs {
		if n := w.count("select count(*) from event_position where organization_id = $1", o.org); n != 2 {
			t.Errorf("organization %d has %d relayed of 14, want 2", i, n)
		}
	}
}

func TestWhatIsLeftOfABatchGoesToEventsThatSomebodyWaitsFor(t *testing.T) {
	t.Parallel()
	w := freshWorld(t)
	orgs, typ := w.organizations(2), ownType()
	orgs[0].emitMany(typ, 10)
	orgs[1].emitMany(typ, 1)
	orgs[1].emitMany("message.received", 9)
	w.relayBatch(3, 3)
	got := w.places(typ, "message.received")
	if n := w.count("select count(*) from event_position where event_type = 'message.received'"); n != 1 || len(got) != 3 {
		t.Errorf("%d of %d relayed events are ones that somebody waits for, want the third", n, len(got))
	}
}

// Places are looked up by their key and not read, whatever the planner believes.
func TestTheCostOfABatchGrowsWithNoHistory(t *testing.T) {
	t.Parallel()
	w := freshWorld(t)
	w.exec("alter table event_position set (autovacuum_enabled = false)")
	typ := ownType()
	step := func() int {
		w.emitMany(typ, 100)
		w.exec("analyze outbox")
		return w.buffers("select relay_events(100)")
	}
	few := step()
	w.exec("with moved as (update relay_state set last_seq = 100000) insert into event_position (seq, event_id, organization_id, event_type) select n, gen_random_uuid(), $1, 'custom.x' from generate_series(1000, 40000) n", w.org)
	w.exec("analyze event_position")
	if many := step(); many > few+350 {
		t.Errorf("pages touched: %d, then %d with a history; want no growth", few, many)
	}
}
