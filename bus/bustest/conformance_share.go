package bustest

import (
	"maps"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// sharing is a want of a consumer with sixteen slots, four to a share.
func (b bench) sharing(limit, overflow int, inHand ...bus.InHand) bus.Want {
	return bus.Want{Consumer: b.consumer, Limit: limit, Overflow: overflow, Side: max(overflow-2, 0), Share: 4, InHand: inHand}
}

// share claims and counts what each organization got.
func (b bench) share(w bus.Want) map[uuid.UUID]int {
	b.Helper()
	return count(b.claimWant(w), func(d bus.Delivery) uuid.UUID { return d.OrgID })
}

func (b bench) claimWant(w bus.Want) []bus.Delivery {
	b.Helper()
	claimed, err := b.log.Claim(b.Context(), bus.Claim{Wants: []bus.Want{w}, Suspect: true})
	if err != nil {
		b.Fatalf("Claim() = %v", err)
	}
	return claimed
}

func count(claimed []bus.Delivery, of func(bus.Delivery) uuid.UUID) map[uuid.UUID]int {
	n := make(map[uuid.UUID]int)
	for _, d := range claimed {
		n[of(d)]++
	}
	return n
}

func (b bench) wantShares(what string, got, want map[uuid.UUID]int) {
	b.Helper()
	if !maps.Equal(got, want) {
		b.Errorf("Claim() gives %v %s, want %v", got, what, want)
	}
}

func aloneGetsAll(b bench) {
	org := b.log.NewOrg()
	b.log.EmitTo(org, uuid.Nil, b.typ, 100)
	b.wantShares("to one that is alone", b.share(b.sharing(16, 4)), map[uuid.UUID]int{org: 16})
	b.wantShares("to one that holds all slots", b.share(b.sharing(0, 4, bus.InHand{OrgID: org, Count: 16})), map[uuid.UUID]int{})
	b.wantShares("to one that has most slots", b.share(b.sharing(3, 4, bus.InHand{OrgID: org, Count: 13})), map[uuid.UUID]int{org: 3})
	toOne := b.log.NewOrg()
	destination := uuid.New()
	b.log.Suspend(org)
	b.log.EmitTo(toOne, destination, b.typ, 100)
	b.wantShares("to one with one destination", b.share(b.sharing(16, 4)), map[uuid.UUID]int{toOne: 16})
}

func oneBesideAThousand(b bench) {
	noisy, quiet := b.log.NewOrg(), b.log.NewOrg()
	b.log.EmitTo(noisy, uuid.Nil, b.typ, 1000)
	b.log.EmitTo(quiet, uuid.Nil, b.typ, 1)
	b.wantShares("of 1000 and 1", b.share(b.sharing(16, 4)), map[uuid.UUID]int{noisy: 15, quiet: 1})
}

func twoHaveTheirShares(b bench) {
	one, other := b.log.NewOrg(), b.log.NewOrg()
	b.log.EmitTo(one, uuid.Nil, b.typ, 50)
	b.log.EmitTo(other, uuid.Nil, b.typ, 50)
	b.wantShares("of 50 and 50", b.share(b.sharing(16, 4)), map[uuid.UUID]int{one: 4, other: 4})
	b.wantShares("with three slots free", b.share(b.sharing(3, 3)), map[uuid.UUID]int{one: 3, other: 3})
}

func inHandCounts(b bench) {
	one, other := b.log.NewOrg(), b.log.NewOrg()
	b.log.EmitTo(one, uuid.Nil, b.typ, 20)
	b.log.EmitTo(other, uuid.Nil, b.typ, 20)
	held := []bus.InHand{{OrgID: one, Count: 3}, {OrgID: other, Destination: uuid.New(), Count: 1}}
	b.wantShares("beside three in hand", b.share(b.sharing(12, 4, held...)), map[uuid.UUID]int{one: 1, other: 3})
	held[1].Count = 5
	b.wantShares("beside more than the share", b.share(b.sharing(8, 4, held...)), map[uuid.UUID]int{one: 1})
	b.wantShares("to the one with less in hand", b.share(b.sharing(1, 0, bus.InHand{OrgID: one, Count: 1})), map[uuid.UUID]int{other: 1})
}

func overflowIsForOthers(b bench) {
	noisy, quiet, third := b.log.NewOrg(), b.log.NewOrg(), b.log.NewOrg()
	held := bus.InHand{OrgID: noisy, Count: 16}
	b.log.EmitTo(noisy, uuid.Nil, b.typ, 2)
	b.log.EmitTo(quiet, uuid.Nil, b.typ, 1)
	b.wantShares("of three", b.share(b.sharing(0, 4, held)), map[uuid.UUID]int{quiet: 1})
	b.log.EmitTo(noisy, uuid.Nil, b.typ, 100)
	b.log.EmitTo(quiet, uuid.Nil, b.typ, 3)
	b.wantShares("beside one that fills all slots", b.share(b.sharing(0, 4, held)), map[uuid.UUID]int{quiet: 3})
	b.log.EmitTo(third, uuid.Nil, b.typ, 3)
	quietHeld := bus.InHand{OrgID: quiet, Count: 3}
	b.wantShares("with one overflow slot left", b.share(b.sharing(0, 1, held, quietHeld)), map[uuid.UUID]int{third: 1})
	b.wantShares("without a slot", b.share(b.sharing(0, 0, held)), map[uuid.UUID]int{})
}

func destinationsHaveHalf(b bench) {
	org, other := b.log.NewOrg(), b.log.NewOrg()
	x, y := uuid.New(), uuid.New()
	b.log.EmitTo(org, x, b.typ, 100)
	b.log.EmitTo(org, y, b.typ, 30)
	to := func(d bus.Delivery) uuid.UUID { return d.Destination }
	b.wantShares("of two destinations of one that is alone", count(b.claimWant(b.sharing(16, 4)), to), map[uuid.UUID]int{x: 8, y: 8})
	b.log.EmitTo(other, uuid.Nil, b.typ, 10)
	b.wantShares("of two destinations and another organization", count(b.claimWant(b.sharing(16, 4)), to), map[uuid.UUID]int{x: 2, y: 2, uuid.Nil: 4})
}

func destinationHasHalfInTheOverflow(b bench) {
	org, few, many := b.log.NewOrg(), uuid.New(), uuid.New()
	b.log.EmitTo(org, few, b.typ, 1)
	b.log.EmitTo(org, many, b.typ, 3)
	held := bus.InHand{OrgID: b.log.NewOrg(), Count: 16}
	to := func(d bus.Delivery) uuid.UUID { return d.Destination }
	b.wantShares("of a few in the overflow", count(b.claimWant(b.sharing(0, 5, held)), to), map[uuid.UUID]int{few: 1, many: 2})
}

func destinationHasHalfOfTheShare(b bench) {
	org, other := b.log.NewOrg(), b.log.NewOrg()
	x, y := uuid.New(), uuid.New()
	b.log.EmitTo(org, x, b.typ, 20)
	b.log.EmitTo(org, y, b.typ, 1)
	b.log.EmitTo(other, uuid.Nil, b.typ, 20)
	to := func(d bus.Delivery) uuid.UUID { return d.Destination }
	b.wantShares("of 20 beside 1", count(b.claimWant(b.sharing(16, 4)), to), map[uuid.UUID]int{x: 2, y: 1, uuid.Nil: 4})
	b.log.EmitTo(org, y, b.typ, 20)
	held := bus.InHand{OrgID: org, Destination: x, Count: 2}
	b.wantShares("beside a destination with its half", count(b.claimWant(b.sharing(14, 4, held)), to), map[uuid.UUID]int{y: 2, uuid.Nil: 4})
}

func destinationBesideAGreedyOne(b bench) {
	org, other := b.log.NewOrg(), b.log.NewOrg()
	hanging, x, y, z := uuid.New(), uuid.New(), uuid.New(), uuid.New()
	held := bus.InHand{OrgID: org, Destination: hanging, Count: 16}
	b.log.EmitTo(org, hanging, b.typ, 100)
	for _, destination := range []uuid.UUID{x, y, z} {
		b.log.EmitTo(org, destination, b.typ, 1)
	}
	to := func(d bus.Delivery) uuid.UUID { return d.Destination }
	b.wantShares("beside a destination that fills all slots", count(b.claimWant(b.sharing(0, 4, held)), to), map[uuid.UUID]int{x: 1, y: 1})
	more := []bus.InHand{held, {OrgID: org, Destination: x, Count: 1}, {OrgID: org, Destination: y, Count: 1}}
	b.log.EmitTo(other, uuid.Nil, b.typ, 5)
	b.wantShares("of what is kept for organizations", count(b.claimWant(b.sharing(0, 2, more...)), to), map[uuid.UUID]int{uuid.Nil: 2})
	b.log.EmitTo(org, uuid.New(), b.typ, 1)
	got := count(b.claimWant(b.sharing(0, 4, more...)), to)
	if others := got[uuid.Nil]; others != 3 || len(got) != 2 {
		b.Errorf("Claim() gives %v of four slots, want 3 to the organization below its share and 1 more", got)
	}
}

func organizationsTakeTurns(b bench) {
	const organizations, each = 100, 10
	for range organizations {
		b.log.EmitTo(b.log.NewOrg(), uuid.Nil, b.typ, each)
	}
	got := make(map[uuid.UUID]int)
	w := b.sharing(20, 0)
	for round := 1; round <= each; round++ {
		for range organizations / w.Limit {
			claimed := b.claimWant(w)
			keys := make([]bus.Key, len(claimed))
			for i, d := range claimed {
				keys[i] = d.Key
				got[d.OrgID]++
			}
			w.After = bus.LastTurn(w.After, keys)
			b.settle(all(claimed, bus.VerdictDone)...)
		}
		for org, n := range got {
			if n != round {
				b.Fatalf("organization %s had its turn %d times in %d rounds", org, n, round)
			}
		}
		if len(got) != organizations {
			b.Fatalf("%d organizations had a turn, want all %d", len(got), organizations)
		}
	}
}

func pausedHidesNothing(b bench) {
	suspended, org := b.log.NewOrg(), b.log.NewOrg()
	disabled, enabled := uuid.New(), uuid.New()
	b.log.EmitTo(suspended, uuid.Nil, b.typ, 5000)
	b.log.EmitTo(org, disabled, b.typ, 5000)
	b.log.Suspend(suspended)
	b.log.Disable(org, disabled)
	b.log.EmitTo(org, enabled, b.typ, 20)
	to := func(d bus.Delivery) uuid.UUID { return d.Destination }
	b.wantShares("behind what is paused", count(b.claimWant(b.sharing(16, 4)), to), map[uuid.UUID]int{enabled: 16})
	b.wantShares("in the overflow behind what is paused", count(b.claimWant(b.sharing(0, 4, bus.InHand{OrgID: org, Count: 2})), to), map[uuid.UUID]int{enabled: 2})
}
