package bustest

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// die lets the leases of everything that consumers hold run out and a claim meet
// them, which hands nothing of it out yet.
func (b bench) die(consumers ...string) {
	b.Helper()
	b.log.Elapse(2 * b.log.LeaseTime())
	var c bus.Claim
	for _, consumer := range consumers {
		c.Wants = append(c.Wants, bus.Want{Consumer: consumer, Limit: 1000})
	}
	if claimed, err := b.log.Claim(b.Context(), c); err != nil || len(claimed) != 0 {
		b.Errorf("Claim() = %d deliveries, %v when it meets leases that have run out, want none", len(claimed), err)
	}
}

func crashOfManyCountsNothing(b bench) {
	const events = 10
	ids := b.log.Emit(b.typ, events)
	held := b.claim(b.consumer, events)
	b.die(b.consumer)
	for _, id := range ids {
		b.want(id, b.consumer, State{Status: "pending"})
	}
	leases := make([]bus.Lease, len(held))
	for i := range held {
		leases[i] = held[i].Lease()
	}
	if lost := b.extend(leases...); len(lost) != events {
		b.Errorf("Extend() lost %d of the dead process's %d leases, want all", len(lost), events)
	}
	if lost := b.trySettle(all(held, bus.VerdictDone)...); len(lost) != events {
		b.Errorf("Settle() lost %d of the dead process's %d leases, want all", len(lost), events)
	}
	for range events {
		d := b.claimOne(b.consumer)
		if !d.Suspect || d.Attempt != 1 || d.Budgeted != 1 {
			b.Errorf("claimed attempt %d (%d of the budget), suspect %t, want a suspect at its first", d.Attempt, d.Budgeted, d.Suspect)
		}
		b.settle(settlement(d, bus.VerdictDone, ""))
		b.want(d.Event.ID, b.consumer, State{Status: "done", Attempts: 1})
	}
	b.claimNone(b.consumer, "after the last suspect")
}

func loneCrashCounts(b bench) {
	event := b.emit()
	first := b.claimOne(b.consumer)
	if first.Suspect {
		b.Error("a delivery that no process died of is a suspect")
	}
	b.die(b.consumer)
	crashed := func(attempts int) {
		b.Helper()
		d := b.claimOne(b.consumer)
		if !d.Suspect || d.Attempt != attempts || d.Token <= first.Token || d.ID != first.ID {
			b.Errorf("claimed %+v, want the suspect at attempt %d under a later token", d, attempts)
		}
		b.die(b.consumer)
		b.want(event, b.consumer, State{Status: "pending", Attempts: attempts, LastError: bus.ErrCrashed.Error()})
	}
	crashed(1)
	crashed(2) // due at once after the first
	b.log.Elapse(step * 9 / 10)
	b.claimNone(b.consumer, "before the step of a second crash has passed")
	b.log.Elapse(step * 2 / 10)
	last := b.claimOne(b.consumer)
	b.die(b.consumer)
	b.wantEnded(last, State{Status: "dead", Attempts: 3, LastError: bus.ErrCrashed.Error()})
}

// A verdict shows that the handler comes to an end.
func verdictClearsASuspect(b bench) {
	for _, verdict := range []bus.Verdict{bus.VerdictRetry, bus.VerdictPostpone} {
		consumer := b.register(bus.Ladder(nil)) // one attempt
		if verdict == bus.VerdictRetry {
			consumer = b.register(bus.RetryPolicy{Steps: []time.Duration{step}, MaxAttempts: 2})
		}
		event := b.emit()
		b.claimOne(consumer)
		b.die(consumer)
		b.settle(settlement(b.claimOne(consumer), verdict, "later"))
		before := b.log.State(event, consumer)
		b.log.Elapse(2 * step)
		if d := b.claimOne(consumer); d.Suspect {
			b.Errorf("still a suspect after it was %s", verdict)
		}
		b.die(consumer)
		b.want(event, consumer, before) // this crash is a first one again
		b.settle(settlement(b.claimOne(consumer), bus.VerdictDone, ""))
	}
}

func oneSuspectAtATime(b bench) {
	other := b.register(bus.Ladder([]time.Duration{step}))
	b.log.Emit(b.typ, 3)
	for _, consumer := range []string{b.consumer, other} {
		if n := len(b.claim(consumer, 10)); n != 3 {
			b.Fatalf("Claim() = %d deliveries, want 3", n)
		}
	}
	b.die(b.consumer, other)
	fresh := b.log.Emit(b.typ, 3)
	claim := func(suspect bool, limit int) (suspects, normal int) {
		b.Helper()
		claimed, err := b.log.Claim(b.Context(), bus.Claim{
			Wants: []bus.Want{{Consumer: b.consumer, Limit: limit}, {Consumer: other, Limit: limit}}, Suspect: suspect,
		})
		if err != nil {
			b.Fatal(err)
		}
		per := make(map[string]int)
		for _, d := range claimed {
			per[d.Consumer]++
			if d.Suspect == slices.Contains(fresh, d.Event.ID) {
				b.Errorf("suspect is %t for event %s", d.Suspect, d.Event.ID)
			}
			if d.Suspect {
				suspects++
			} else {
				normal++
			}
		}
		if per[b.consumer] > limit || per[other] > limit {
			b.Errorf("claimed %v, want at most %d of each, the suspect among them", per, limit)
		}
		return suspects, normal
	}
	for _, want := range []struct {
		suspect          bool
		limit            int
		suspects, normal int
	}{
		{true, 1, 1, 1},
		{false, 1, 0, 2},
		{true, 10, 1, 3},
		{false, 10, 0, 0},
		{true, 10, 1, 0},
	} {
		if suspects, normal := claim(want.suspect, want.limit); suspects != want.suspects || normal != want.normal {
			b.Errorf("Claim(suspect %t, limit %d) = %d suspects and %d others, want %d and %d",
				want.suspect, want.limit, suspects, normal, want.suspects, want.normal)
		}
	}
}

// A process claims all it can, handles it in any order and dies of the poison;
// the next takes over. What it had finished before is settled.
func poisonEndsAlone(b bench) {
	const events = 101
	ids := b.log.Emit(b.typ, events)
	poison := ids[events/2]
	deaths := 0
	for left := events; left > 0; {
		claimed := b.claim(b.consumer, events)
		if len(claimed) == 0 || deaths > events {
			break
		}
		if slices.ContainsFunc(claimed, func(d bus.Delivery) bool { return d.Event.ID == poison }) {
			deaths++
			b.die(b.consumer)
			b.log.Elapse(2 * step)
			continue
		}
		for i := range claimed {
			b.settle(settlement(&claimed[i], bus.VerdictDone, ""))
		}
		left -= len(claimed)
	}
	b.want(poison, b.consumer, State{Status: "dead", Attempts: 3, LastError: bus.ErrCrashed.Error()})
	for _, id := range ids {
		if id != poison {
			b.want(id, b.consumer, State{Status: "done", Attempts: 1})
		}
	}
	if deaths != 4 {
		b.Errorf("%d processes died of it, want the one that had all in hand and three more", deaths)
	}
}

func fourKillsBuryNobody(b bench) {
	const events = 100
	var ids []uuid.UUID
	for kill := range 4 {
		fresh := events - min(kill, 1) // one in hand is a suspect, after the first
		ids = append(ids, b.log.Emit(b.typ, fresh)...)
		if n := len(b.claim(b.consumer, events)); n != events {
			b.Fatalf("%d in hand at the kill, want %d", n, events)
		}
		b.die(b.consumer)
	}
	for claimed := b.claim(b.consumer, events); len(claimed) > 0; claimed = b.claim(b.consumer, events) {
		b.settle(all(claimed, bus.VerdictDone)...)
	}
	for _, id := range ids {
		if got := b.log.State(id, b.consumer); got.Status != "done" || got.Attempts > 2 {
			b.Errorf("State() = %+v after four kills, want done at the first attempt or the second", got)
		}
	}
}
