package bustest

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/deskcomm/deskcomm/bus"
)

// dealCase is a want and the due rows that it is dealt out of.
type dealCase struct {
	want bus.Want
	rows []*row
}

func drawDeal(t *rapid.T) dealCase {
	ids := func(n int) (list []uuid.UUID) {
		for i := range n {
			list = append(list, uuid.UUID{15: byte(i + 1)})
		}
		return list
	}
	orgs, destinations := ids(4), append(ids(3), uuid.Nil)
	small := func(name string, most int) int { return rapid.IntRange(0, most).Draw(t, name) }
	c := dealCase{want: bus.Want{
		Limit: small("limit", 12), Express: small("express", 4), Overflow: small("overflow", 6), Share: rapid.IntRange(1, 8).Draw(t, "share"),
		Bulk: small("bulk", 3), After: rapid.SampledFrom(orgs).Draw(t, "after"), AfterInteractive: rapid.SampledFrom(orgs).Draw(t, "after, interactive"),
	}}
	c.want.Side = small("side", c.want.Overflow)
	for _, org := range orgs {
		for _, to := range destinations {
			if n := small("in hand", 6); n > 3 {
				c.want.InHand = append(c.want.InHand, bus.InHand{OrgID: org, Destination: to, Count: n - 3})
			}
		}
	}
	// Which of two destinations with the same in hand comes first, is not the rule; that both have work of both classes would make
	// what comes after depend on it.
	mixed := rapid.Bool().Draw(t, "an organization has both classes")
	class, only := make(map[uuid.UUID]bool), make(map[uuid.UUID]uuid.UUID)
	for _, org := range orgs {
		class[org], only[org] = rapid.Bool().Draw(t, "class"), rapid.SampledFrom(destinations).Draw(t, "only destination")
	}
	at := time.Unix(1_700_000_000, 0)
	for range rapid.IntRange(0, 8).Draw(t, "flows") {
		org, to := rapid.SampledFrom(orgs).Draw(t, "organization"), rapid.SampledFrom(destinations).Draw(t, "destination")
		interactive := class[org]
		if mixed {
			to, interactive = only[org], rapid.Bool().Draw(t, "interactive")
		}
		for range small("due", 10) {
			at = at.Add(time.Second) // the fake takes what is equal in this order
			c.rows = append(c.rows, &row{key: bus.Key{OrgID: org, Destination: to, Seq: int64(len(c.rows))}, interactive: interactive, dueAt: at})
		}
	}
	return c
}

// part is a flow of one class.
type part struct {
	flow
	interactive bool
}

// Deal gives in numbers what the fake gives row by row, whose rules are those of
// the conformance tests.
func TestDealGivesEachFlowWhatTakingOneByOneGives(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := drawDeal(t)
		waiting, first := make(map[part]int), make(map[part]time.Time)
		var order []part
		for _, r := range c.rows {
			p := part{r.flow(), r.interactive}
			if waiting[p]++; waiting[p] == 1 {
				first[p], order = r.dueAt, append(order, p)
			}
		}
		var flows []bus.Flow
		for _, p := range order {
			flows = append(flows, bus.Flow{OrgID: p.org, Destination: p.destination, Interactive: p.interactive, DueAt: first[p], Waiting: waiting[p]})
		}
		got, want := make(map[part]int), make(map[part]int)
		for i, n := range bus.Deal(c.want, flows) {
			if n > 0 {
				got[order[i]] = n
			}
		}
		for _, r := range share(c.want, slices.Clone(c.rows), nil) {
			want[part{r.flow(), r.interactive}]++
		}
		if !maps.Equal(totals(got), totals(want)) {
			t.Fatalf("Deal() gives %v, want %v", got, want)
		}
	})
}

// totals are what an organization gets of each class.
func totals(parts map[part]int) map[part]int {
	n := make(map[part]int)
	for p, count := range parts {
		n[part{flow{org: p.org}, p.interactive}] += count
	}
	return n
}
