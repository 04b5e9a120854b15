package bustest

import (
	"bytes"
	"slices"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// flow is whom a delivery is for.
type flow struct{ org, destination uuid.UUID }

func (r *row) flow() flow { return flow{r.key.OrgID, r.key.Destination} }

// sharing is one consumer's part of a claim, as it is filled.
type sharing struct {
	bus.Want
	left         []*row
	taken        []*row
	interactive  int // of those taken
	side         int
	orgs         map[uuid.UUID]int // in hand and taken
	flows        map[flow]int
	destinations map[uuid.UUID]map[uuid.UUID]bool // those with due work, of each organization
}

// share adds to taken what of the due deliveries the want is to get: one at a
// time, each for whoever is most entitled to it.
func share(w bus.Want, due, taken []*row) []*row {
	if w.Share == 0 {
		slices.SortStableFunc(due, byClass)
		return append(taken, due[:min(max(w.Limit-len(taken), 0), len(due))]...)
	}
	s := sharing{
		Want: w, left: due, taken: taken, orgs: make(map[uuid.UUID]int), flows: make(map[flow]int),
		destinations: destinations(due),
	}
	for _, h := range w.InHand {
		s.orgs[h.OrgID] += h.Count
		s.flows[flow{h.OrgID, h.Destination}] += h.Count
	}
	for range min(s.Bulk, s.Limit+s.Overflow) {
		s.take(func(r *row) bool { return !r.interactive && s.within(r) })
	}
	for _, rule := range []func(*row) bool{s.within, s.aside} {
		for s.take(rule) {
		}
	}
	for range s.Bulk - (len(s.taken) - s.interactive) {
		s.take(func(r *row) bool { return !r.interactive && s.spare(r) })
	}
	for s.take(s.spare) {
	}
	return s.taken
}

// byClass is negative when a is interactive and b is not.
func byClass(a, b *row) int {
	switch {
	case a.interactive == b.interactive:
		return 0
	case a.interactive:
		return -1
	default:
		return 1
	}
}

func destinations(due []*row) map[uuid.UUID]map[uuid.UUID]bool {
	of := make(map[uuid.UUID]map[uuid.UUID]bool)
	for _, r := range due {
		if of[r.key.OrgID] == nil {
			of[r.key.OrgID] = make(map[uuid.UUID]bool)
		}
		of[r.key.OrgID][r.key.Destination] = true
	}
	return of
}

// take takes the first in turn of those that a rule allows, if there is one.
func (s *sharing) take(rule func(*row) bool) bool {
	best := -1
	for i, r := range s.left {
		if (best < 0 || s.compare(r, s.left[best]) < 0) && rule(r) {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	r := s.left[best]
	if s.orgs[r.key.OrgID] >= s.Share {
		s.side++
	}
	if r.interactive {
		s.interactive++
	}
	s.orgs[r.key.OrgID]++
	s.flows[r.flow()]++
	s.taken, s.left = append(s.taken, r), slices.Delete(s.left, best, best+1)
	return true
}

// room reports whether there is a slot for r, of n beside the express slots.
func (s *sharing) room(r *row, n int) bool {
	interactive := s.interactive
	if r.interactive {
		interactive++
	}
	return len(s.taken)+1-min(interactive, s.Express) <= n
}

// compare is negative when a comes before b: the interactive one, then that of
// the organization with less in hand, then of the next after the last turn, then
// for the destination with less. What is equal is in the order in which it became
// due.
func (s *sharing) compare(a, b *row) int {
	if n := byClass(a, b); n != 0 {
		return n
	}
	if n := s.orgs[a.key.OrgID] - s.orgs[b.key.OrgID]; n != 0 {
		return n
	}
	if n := bytes.Compare(a.key.OrgID[:], b.key.OrgID[:]); n != 0 {
		if s.passed(a) != s.passed(b) {
			return -n
		}
		return n
	}
	return s.flows[a.flow()] - s.flows[b.flow()]
}

func (s *sharing) passed(r *row) bool {
	after := s.After
	if r.interactive {
		after = s.AfterInteractive
	}
	return bytes.Compare(r.key.OrgID[:], after[:]) <= 0
}

// half is what one destination gets of n while another has due work.
func half(n int) int { return max(n/2, 1) }

// within is the rule of the shares.
func (s *sharing) within(r *row) bool {
	return s.room(r, s.Limit+s.Overflow) && s.orgs[r.key.OrgID] < s.Share && (len(s.destinations[r.key.OrgID]) == 1 || s.flows[r.flow()] < half(s.Share))
}

// aside is the rule for a destination whose organization has its share used up by
// a greedy one.
func (s *sharing) aside(r *row) bool {
	greedy := slices.ContainsFunc(s.InHand, func(h bus.InHand) bool { return h.OrgID == r.key.OrgID && h.Count > half(s.Share) })
	return s.room(r, s.Limit+s.Overflow) && greedy && s.side < s.Side && r.key.Destination != uuid.Nil && s.flows[r.flow()] < half(s.Share)
}

// spare is the rule for what is free when all have had their share: it is for who
// alone has more.
func (s *sharing) spare(r *row) bool { return s.room(r, s.Limit) && len(destinations(s.left)) == 1 }

// mayStart reports whether there is a slot for r, if there is one for anybody of
// its organization.
func mayStart(w bus.Want, r *row) bool {
	n := 0
	for _, h := range w.InHand {
		if h.OrgID == r.key.OrgID {
			n += h.Count
		}
	}
	return w.Limit > 0 || w.Overflow > 0 && n < w.Share
}
