package bus_test

import (
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
)

// shares counts what is being handled for each organization and destination.
type shares struct {
	mu     sync.Mutex
	inHand map[uuid.UUID]int
}

func (s *shares) add(d *bus.Delivery, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inHand == nil {
		s.inHand = make(map[uuid.UUID]int)
	}
	for _, id := range []uuid.UUID{d.OrgID, d.Destination} {
		s.inHand[id] += n
	}
}

// hang keeps what it gets until the drainer stops.
func (s *shares) hang(ctx context.Context, d *bus.Delivery) error {
	s.add(d, 1)
	defer s.add(d, -1)
	return untilCancelled(ctx, d)
}

func (s *shares) of(id uuid.UUID) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inHand[id]
}

func (r *rig) wantInHand(what string, s *shares, want map[uuid.UUID]int) {
	r.Helper()
	synctest.Wait()
	got := make(map[uuid.UUID]int)
	for id := range want {
		got[id] = s.of(id)
	}
	if !maps.Equal(got, want) {
		r.Errorf("%s: in hand %v, want %v", what, got, want)
	}
}

// emitTo emits and wakes the drainer, as the process does that emits.
func (r *rig) emitTo(org, destination uuid.UUID, n int) {
	r.log.EmitTo(org, destination, happened, n)
	r.wake <- struct{}{}
	synctest.Wait()
}

func TestInvariant12WhoIsAloneHasAllSlotsAndOthersStartAtOnceBesideIt(t *testing.T) {
	t.Parallel()
	var s shares
	inBubble(t, func(r *rig) {
		a, b, c := uuid.New(), uuid.New(), uuid.New()
		r.log.EmitTo(a, uuid.Nil, happened, 1000)
		r.start()
		r.wantInHand("alone", &s, map[uuid.UUID]int{a: 16})
		r.emitTo(b, uuid.Nil, 1)
		r.wantInHand("another's event", &s, map[uuid.UUID]int{a: 16, b: 1})
		r.emitTo(c, uuid.Nil, 1000)
		r.wantInHand("the overflow of a third", &s, map[uuid.UUID]int{a: 16, b: 1, c: 3})
		if r.at() != 0 {
			r.Errorf("it took %s, want no time", r.at())
		}
		bustest.Advance(time.Minute)
		r.wantInHand("a minute later", &s, map[uuid.UUID]int{a: 16, b: 1, c: 3})
	}, handler{reader("shared", concurrency(16)), s.hang})
}

func TestInvariant12ADestinationThatHangsDoesNotDelayTheOtherOfItsOrganization(t *testing.T) {
	t.Parallel()
	var s shares
	inBubble(t, func(r *rig) {
		org, hanging, other := uuid.New(), uuid.New(), uuid.New()
		r.log.EmitTo(org, hanging, happened, 1000)
		r.start()
		r.wantInHand("alone", &s, map[uuid.UUID]int{hanging: 16})
		r.emitTo(org, other, 1)
		r.wantInHand("beside it", &s, map[uuid.UUID]int{hanging: 16, other: 1})
		third := uuid.New()
		r.emitTo(third, uuid.Nil, 1)
		r.wantInHand("and another organization", &s, map[uuid.UUID]int{hanging: 16, other: 1, third: 1})
		if r.at() != 0 {
			r.Errorf("it took %s, want no time", r.at())
		}
	}, handler{reader("shared", concurrency(16)), s.hang})
}

func TestInvariant12EachOfTwoHasAQuarterWhileBothHaveDueWorkAndTheLastTakesAll(t *testing.T) {
	t.Parallel()
	var s shares
	handle := func(ctx context.Context, d *bus.Delivery) error {
		s.add(d, 1)
		defer s.add(d, -1)
		return after(time.Second)(ctx, d)
	}
	inBubble(t, func(r *rig) {
		a, b := uuid.New(), uuid.New()
		r.log.EmitTo(a, uuid.Nil, happened, 100)
		r.log.EmitTo(b, uuid.Nil, happened, 8)
		r.drainer.Poll = time.Hour // a slot that becomes free is what wakes
		r.start()
		r.wantInHand("both", &s, map[uuid.UUID]int{a: 4, b: 4})
		bustest.Advance(1500 * time.Millisecond)
		r.wantInHand("the last of one", &s, map[uuid.UUID]int{a: 12, b: 4})
		bustest.Advance(time.Second)
		r.wantInHand("one", &s, map[uuid.UUID]int{a: 16, b: 0})
		bustest.Advance(10 * time.Second)
		r.wantCount("done", 108)
	}, handler{reader("shared", concurrency(16)), handle})
}

func TestInvariant12AHundredOrganizationsTakeTurns(t *testing.T) {
	t.Parallel()
	const organizations, each = 100, 10
	handled := make(map[uuid.UUID]int)
	var mu sync.Mutex
	handle := func(ctx context.Context, d *bus.Delivery) error {
		mu.Lock()
		handled[d.OrgID]++
		mu.Unlock()
		return after(time.Second)(ctx, d)
	}
	inBubble(t, func(r *rig) {
		for range organizations {
			r.log.EmitTo(uuid.New(), uuid.Nil, happened, each)
		}
		r.drainer.Poll = time.Hour
		r.start()
		for round := 1; round <= each; round++ {
			// Twenty slots, the overflow with them, hence five seconds for a round.
			bustest.Advance(5*time.Second - 500*time.Millisecond*time.Duration(min(round, 2)%2))
			mu.Lock()
			least, most := each, 0
			for _, n := range handled {
				least, most = min(least, n), max(most, n)
			}
			if len(handled) != organizations || least != round || most != round {
				t.Errorf("round %d: %d organizations had between %d and %d turns, want all as many", round, len(handled), least, most)
			}
			mu.Unlock()
		}
		bustest.Advance(time.Second)
		r.wantCount("done", organizations*each)
	}, handler{reader("shared", concurrency(16)), handle})
}

func TestInvariant12DestinationsThatHaveTheirHalfGoOnWhenTheirSlotsAreFree(t *testing.T) {
	t.Parallel()
	inBubble(t, func(r *rig) {
		for range 2 {
			org := uuid.New()
			r.log.EmitTo(org, uuid.New(), happened, 100)
			r.log.EmitTo(org, uuid.New(), happened, 1)
		}
		r.drainer.Poll = time.Hour
		r.start()
		bustest.Advance(500 * time.Millisecond)
		r.wantCount("processing", 6)
		bustest.Advance(time.Minute)
		r.wantCount("done", 202)
	}, handler{reader("shared", concurrency(16)), after(time.Second)})
}

// slowLog takes a second to write that a suspect is tried.
type slowLog struct{ slog.Handler }

func (h slowLog) Handle(ctx context.Context, record slog.Record) error {
	if strings.HasPrefix(record.Message, "tried alone") {
		<-time.After(time.Second)
	}
	return h.Handler.Handle(ctx, record)
}

func TestInvariant12SlotsThatAreFreeBeforeTheClaimIsReadAreNotLost(t *testing.T) {
	t.Parallel()
	const elsewhere bus.Type = "custom.elsewhere"
	shared, other := reader("shared", concurrency(16)), reader("other", func(c *bus.Consumer) { c.Types = []bus.Type{elsewhere} })
	inBubble(t, func(r *rig) {
		r.log.Emit(elsewhere, 1)
		r.die(other)
		bustest.Advance(31 * time.Second)
		if _, err := r.log.Claim(r.Context(), bus.Claim{Wants: []bus.Want{{Consumer: other.Name, Limit: 1}}}); err != nil {
			r.Fatal(err)
		}
		for range 2 {
			r.log.EmitTo(uuid.New(), uuid.Nil, happened, 50)
		}
		r.drainer.Poll = time.Hour
		r.drainer.Logger = slog.New(slowLog{r.drainer.Logger.Handler()})
		r.start()
		bustest.Advance(time.Minute)
		r.wantCount("done", 100)
	}, handler{shared, succeed}, handler{other, untilCancelled})
}
