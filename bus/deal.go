package bus

import (
	"bytes"
	"container/heap"
	"math"
	"time"

	"github.com/google/uuid"
)

// Flow is the due work of one class that a consumer has for one destination of
// an organization.
type Flow struct {
	OrgID       uuid.UUID
	Destination uuid.UUID
	Interactive bool
	DueAt       time.Time // since when the first of it is due
	Waiting     int       // how much there is
}

// Deal returns how much of each flow a claim is to take, by the rules of Want.
// Of destinations that are equal, the one comes first whose work is due longest.
func Deal(w Want, flows []Flow) []int {
	d := newDeal(w, flows)
	within := [...]*line{d.line(true, (*dealtTo).within), d.line(false, (*dealtTo).within)}
	within[1].take(w.Bulk)
	within[0].take(math.MaxInt)
	within[1].take(math.MaxInt)
	d.line(true, (*dealtTo).aside).take(math.MaxInt)
	d.line(false, (*dealtTo).aside).take(math.MaxInt)
	if d.withWork() == 1 {
		interactive, bulk := d.line(true, (*dealtTo).spare), d.line(false, (*dealtTo).spare)
		bulk.take(w.Bulk - (d.taken - d.interactives))
		interactive.take(math.MaxInt)
		bulk.take(math.MaxInt)
	}
	return d.given
}

// deal is a Deal on its way.
type deal struct {
	Want
	half         int // what one destination gets of a share while another has due work
	given        []int
	taken        int
	interactives int // of those taken
	side         int // of those taken, beyond the shares
	orgs         []*dealtOrg
}

// dealtOrg is an organization with due work.
type dealtOrg struct {
	id           uuid.UUID
	held         int  // in hand and taken
	greedy       bool // a destination has more than half of the share in hand
	destinations []*dealtTo
}

// dealtTo is a destination with due work, some of it perhaps interactive.
type dealtTo struct {
	org               *dealtOrg
	id                uuid.UUID
	held              int
	interactive, bulk dealtFlow
}

type dealtFlow struct {
	dueAt time.Time
	left  int
	given *int
}

func (t *dealtTo) flow(interactive bool) *dealtFlow {
	if interactive {
		return &t.interactive
	}
	return &t.bulk
}

func newDeal(w Want, flows []Flow) *deal {
	d := &deal{Want: w, half: max(w.Share/2, 1), given: make([]int, len(flows))}
	orgs, destinations := make(map[uuid.UUID]*dealtOrg), make(map[flow]*dealtTo)
	for i, f := range flows {
		org, ok := orgs[f.OrgID]
		if !ok {
			org = &dealtOrg{id: f.OrgID}
			orgs[f.OrgID], d.orgs = org, append(d.orgs, org)
		}
		to, ok := destinations[flow{f.OrgID, f.Destination}]
		if !ok {
			to = &dealtTo{org: org, id: f.Destination}
			destinations[flow{f.OrgID, f.Destination}], org.destinations = to, append(org.destinations, to)
		}
		*to.flow(f.Interactive) = dealtFlow{dueAt: f.DueAt, left: f.Waiting, given: &d.given[i]}
	}
	for _, h := range w.InHand {
		if org, ok := orgs[h.OrgID]; ok {
			org.held += h.Count
			org.greedy = org.greedy || h.Count > d.half
		}
		if to, ok := destinations[flow{h.OrgID, h.Destination}]; ok {
			to.held += h.Count
		}
	}
	return d
}

// withWork is how many organizations have work that is left.
func (d *deal) withWork() (n int) {
	for _, org := range d.orgs {
		for _, to := range org.destinations {
			if to.interactive.left+to.bulk.left > 0 {
				n++
				break
			}
		}
	}
	return n
}

// room reports whether there is a slot for one more, of n beside the express
// slots.
func (d *deal) room(interactive bool, n int) bool {
	express := d.interactives
	if interactive {
		express++
	}
	return d.taken+1-min(express, d.Express) <= n
}

// within is the rule of the shares.
func (t *dealtTo) within(d *deal, interactive bool) bool {
	return d.room(interactive, d.Limit+d.Overflow) && t.org.held < d.Share && (len(t.org.destinations) == 1 || t.held < d.half)
}

// aside is the rule for a destination whose organization has its share used up by
// a greedy one.
func (t *dealtTo) aside(d *deal, interactive bool) bool {
	return d.room(interactive, d.Limit+d.Overflow) && t.org.greedy && d.side < d.Side && t.id != uuid.Nil && t.held < d.half
}

// spare is the rule for what is free when all have had their share, for the one
// who has more.
func (t *dealtTo) spare(d *deal, interactive bool) bool { return d.room(interactive, d.Limit) }

// line is the organizations that may have work of a class by a rule, as a heap:
// the one whose turn it is comes first.
type line struct {
	*deal
	interactive bool
	rule        func(*dealtTo, *deal, bool) bool
	after       uuid.UUID
	orgs        []*dealtOrg
}

func (d *deal) line(interactive bool, rule func(*dealtTo, *deal, bool) bool) *line {
	l := &line{deal: d, interactive: interactive, rule: rule, after: d.After, orgs: append([]*dealtOrg(nil), d.orgs...)}
	if interactive {
		l.after = d.AfterInteractive
	}
	return l
}

// take takes up to n, one at a time, each for whoever is most entitled to it.
// Who may have nothing now will not later: whatever is taken makes it less.
func (l *line) take(n int) {
	heap.Init(l)
	for ; n > 0 && len(l.orgs) > 0; heap.Fix(l, 0) {
		to := l.first(l.orgs[0])
		if to == nil {
			heap.Pop(l)
			if len(l.orgs) == 0 {
				return
			}
			continue
		}
		l.give(to)
		n--
	}
}

// first is the destination of an organization that has least in hand of those
// that may have more, nil when there is none.
func (l *line) first(org *dealtOrg) (first *dealtTo) {
	for _, to := range org.destinations {
		work := to.flow(l.interactive)
		if work.left == 0 || !l.rule(to, l.deal, l.interactive) {
			continue
		}
		if first == nil || to.held < first.held || to.held == first.held && work.dueAt.Before(first.flow(l.interactive).dueAt) {
			first = to
		}
	}
	return first
}

func (l *line) give(to *dealtTo) {
	work := to.flow(l.interactive)
	work.left--
	*work.given++
	if to.org.held >= l.Share {
		l.side++
	}
	if l.interactive {
		l.interactives++
	}
	l.taken++
	to.org.held++
	to.held++
}

// Len is how many organizations are in line.
func (l *line) Len() int { return len(l.orgs) }

// Less reports whether one comes before another: who has less in hand, then who is
// next on the way around the circle.
func (l *line) Less(i, k int) bool {
	a, b := l.orgs[i], l.orgs[k]
	if a.held != b.held {
		return a.held < b.held
	}
	if pa, pb := l.passed(a), l.passed(b); pa != pb {
		return pb
	}
	return bytes.Compare(a.id[:], b.id[:]) < 0
}

func (l *line) passed(org *dealtOrg) bool { return bytes.Compare(org.id[:], l.after[:]) <= 0 }

// Swap swaps two places.
func (l *line) Swap(i, k int) { l.orgs[i], l.orgs[k] = l.orgs[k], l.orgs[i] }

// Push is not used: nobody joins a line.
func (l *line) Push(any) {}

// Pop takes the last one out.
func (l *line) Pop() any {
	last := l.orgs[len(l.orgs)-1]
	l.orgs = l.orgs[:len(l.orgs)-1]
	return last
}
