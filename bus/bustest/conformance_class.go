package bustest

import (
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// emitInteractive is EmitTo of events for which somebody waits.
func (b bench) emitInteractive(org, destination uuid.UUID, n int) {
	b.Helper()
	b.log.MakeInteractive(b.log.EmitTo(org, destination, b.typ, n)...)
}

// express is a want of a consumer with sixteen slots, four to a share and four
// express.
func (b bench) express(limit, overflow, express int, inHand ...bus.InHand) bus.Want {
	w := b.sharing(limit, overflow, inHand...)
	w.Express = express
	return w
}

// classes counts what of a claim is of each class.
type classes struct{ Interactive, Bulk int }

func classesOf(claimed []bus.Delivery) (n classes) {
	for _, d := range claimed {
		if d.Interactive {
			n.Interactive++
		} else {
			n.Bulk++
		}
	}
	return n
}

// wantClasses claims and returns what was claimed.
func (b bench) wantClasses(what string, w bus.Want, want classes) []bus.Delivery {
	b.Helper()
	claimed := b.claimWant(w)
	if got := classesOf(claimed); got != want {
		b.Errorf("Claim() gives %+v %s, want %+v", got, what, want)
	}
	return claimed
}

func interactiveComesFirst(b bench) {
	one, other := b.log.NewOrg(), b.log.NewOrg()
	b.log.EmitTo(one, uuid.Nil, b.typ, 3)
	b.log.EmitTo(other, uuid.Nil, b.typ, 3)
	b.emitInteractive(one, uuid.Nil, 1)
	b.emitInteractive(other, uuid.Nil, 1)
	b.wantClasses("in two slots", b.sharing(2, 0), classes{Interactive: 2})
	b.emitInteractive(other, uuid.Nil, 2)
	b.wantClasses("without shares", bus.Want{Consumer: b.consumer, Limit: 3}, classes{2, 1})
	b.emitInteractive(other, uuid.Nil, 1)
	b.wantClasses("when all fits", b.sharing(16, 4), classes{1, 5})
}

func interactiveBesideABacklog(b bench) {
	org, destination := b.log.NewOrg(), uuid.New()
	b.log.EmitTo(org, destination, b.typ, 1000)
	b.emitInteractive(org, destination, 3)
	b.wantClasses("in two slots", b.sharing(2, 0), classes{Interactive: 2})
	b.wantClasses("in a claim of all slots", b.sharing(16, 4), classes{1, 15})
	hanging := bus.InHand{OrgID: org, Destination: destination, Count: 10}
	b.emitInteractive(org, destination, 2)
	b.wantClasses("to one that has most slots", b.sharing(6, 4, hanging), classes{2, 4})
}

func bulkLeavesExpressSlots(b bench) {
	org, other := b.log.NewOrg(), b.log.NewOrg()
	destination := uuid.New()
	b.log.EmitTo(org, destination, b.typ, 100)
	b.wantClasses("alone", b.express(16, 4, 4), classes{Bulk: 16})
	hanging := bus.InHand{OrgID: org, Destination: destination, Count: 16}
	b.wantClasses("to bulk in all slots", b.express(0, 4, 4, hanging), classes{})
	b.emitInteractive(org, destination, 1)
	b.wantClasses("of one beside bulk of the same", b.express(0, 4, 4, hanging), classes{Interactive: 1})
	b.emitInteractive(org, destination, 10)
	b.wantClasses("of many beside bulk of the same", b.express(0, 4, 3, hanging), classes{Interactive: 3})
	b.wantClasses("without a slot but the overflow", b.express(0, 4, 0, hanging), classes{})

	b.log.Suspend(org)
	b.log.EmitTo(other, uuid.Nil, b.typ, 10)
	b.wantClasses("to bulk below its share", b.express(0, 0, 4, hanging), classes{})
	b.emitInteractive(other, uuid.Nil, 1)
	b.wantClasses("to interactive below its share", b.express(0, 0, 4, hanging), classes{Interactive: 1})
	b.emitInteractive(other, uuid.Nil, 1)
	b.wantClasses("of what fits but for the class", b.express(0, 1, 4, hanging), classes{1, 1})
}

func interactiveAloneGetsAll(b bench) {
	org := b.log.NewOrg()
	b.emitInteractive(org, uuid.Nil, 100)
	b.wantClasses("alone", b.express(16, 4, 4), classes{Interactive: 20})
	b.wantClasses("to one that holds most", b.express(2, 4, 0, bus.InHand{OrgID: org, Count: 18}), classes{Interactive: 2})
	b.log.EmitTo(org, uuid.Nil, b.typ, 100)
	b.wantClasses("beside bulk of the same", b.express(16, 4, 4), classes{Interactive: 20})
}

func bulkIsNotStarved(b bench) {
	org, other := b.log.NewOrg(), b.log.NewOrg()
	b.emitInteractive(org, uuid.Nil, 100)
	b.log.EmitTo(org, uuid.Nil, b.typ, 20)
	w := b.express(16, 4, 4)
	w.Bulk = 2
	b.wantClasses("of one with both", w, classes{18, 2})
	last := b.express(1, 4, 0, bus.InHand{OrgID: org, Count: 19})
	last.Bulk = 1
	b.wantClasses("of one with both in the last slot", last, classes{0, 1})
	onlyExpress := b.express(0, 0, 1, bus.InHand{OrgID: org, Count: 19})
	onlyExpress.Bulk = 2
	b.wantClasses("in an express slot", onlyExpress, classes{1, 0})

	b.emitInteractive(other, uuid.Nil, 100)
	w = b.express(16, 4, 4)
	w.Bulk = 1
	claimed := b.wantClasses("of two", w, classes{7, 1})
	b.wantShares("to two", count(claimed, func(d bus.Delivery) uuid.UUID { return d.OrgID }), map[uuid.UUID]int{org: 4, other: 4})
	w = b.express(1, 0, 0, bus.InHand{OrgID: org, Count: 3}, bus.InHand{OrgID: other, Count: 3})
	b.wantClasses("when bulk has its slots", w, classes{1, 0})
	w.Bulk = 1
	b.wantClasses("when bulk has none", w, classes{0, 1})
}

func sharesHoldAcrossClasses(b bench) {
	org, other := b.log.NewOrg(), b.log.NewOrg()
	x, y := uuid.New(), uuid.New()
	b.emitInteractive(org, uuid.Nil, 100)
	b.log.EmitTo(other, uuid.Nil, b.typ, 100)
	b.wantShares("of interactive work and another's bulk", b.share(b.express(16, 4, 4)), map[uuid.UUID]int{org: 4, other: 4})
	b.log.EmitTo(org, uuid.Nil, b.typ, 100)
	held := []bus.InHand{{OrgID: org, Count: 3}, {OrgID: other, Count: 4}}
	b.wantShares("beside three in hand", b.share(b.express(9, 4, 4, held...)), map[uuid.UUID]int{org: 1})
	held[0].Count = 4
	b.wantShares("beside a whole share", b.share(b.express(8, 4, 4, held...)), map[uuid.UUID]int{})

	b.log.Suspend(org)
	b.emitInteractive(other, x, 20)
	b.log.EmitTo(other, x, b.typ, 20)
	b.log.EmitTo(other, y, b.typ, 20)
	third := b.log.NewOrg()
	b.log.EmitTo(third, uuid.Nil, b.typ, 20)
	claimed := b.claimWant(b.express(16, 4, 4, bus.InHand{OrgID: other, Count: 0}))
	got := count(claimed, func(d bus.Delivery) uuid.UUID { return d.Destination })
	if got[x] != 2 || classesOf(claimed).Interactive != 2 {
		b.Errorf("Claim() gives %d to a destination with work of both classes, %+v in all, want the half of a share, interactive", got[x], classesOf(claimed))
	}
	b.wantShares("of destinations of both classes", count(claimed, func(d bus.Delivery) uuid.UUID { return d.OrgID }), map[uuid.UUID]int{other: 4, third: 4})
}

func classesTakeTurnsApart(b bench) {
	const organizations = 10
	busy := b.log.NewOrg()
	b.emitInteractive(busy, uuid.Nil, 100)
	for range organizations {
		b.log.EmitTo(b.log.NewOrg(), uuid.Nil, b.typ, 3)
	}
	turns := make(map[uuid.UUID]int)
	w := b.express(1, 0, 1)
	w.Bulk = 1
	for range organizations {
		claimed := b.wantClasses("in a slot for each", w, classes{1, 1})
		var interactive, bulk []bus.Key
		for _, d := range claimed {
			if d.Interactive {
				interactive = append(interactive, d.Key)
			} else {
				bulk = append(bulk, d.Key)
				turns[d.OrgID]++
			}
		}
		w.After, w.AfterInteractive = bus.LastTurn(w.After, bulk), bus.LastTurn(w.AfterInteractive, interactive)
		b.settle(all(claimed, bus.VerdictDone)...)
	}
	if len(turns) != organizations {
		b.Errorf("%d organizations had a turn, want all %d", len(turns), organizations)
	}
}
