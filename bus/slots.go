package bus

import (
	"bytes"
	"sync"

	"github.com/google/uuid"
)

// consumerSlots is one consumer's handler and its slots. Beside those of its
// concurrency it has a few that only organizations below their share get, so
// that one whose work hangs in all the others keeps nobody waiting.
type consumerSlots struct {
	handler  Handler
	consumer Consumer
	mu       sync.Mutex
	busy     int
	inHand   map[flow]int
	after    uuid.UUID // the organization whose turn was the last
	hungry   bool      // the last claim left out what its limits did not allow, so more may be due
	released bool      // a slot became free since the last claim was asked for
}

// flow is whom a delivery is for.
type flow struct{ org, destination uuid.UUID }

func newSlots(h Handler) *consumerSlots {
	return &consumerSlots{handler: h, consumer: h.Consumer(), inHand: make(map[flow]int)}
}

// unknown reports whether d may have had an effect that must not be repeated.
func (s *consumerSlots) unknown(d *Delivery) bool {
	return d.Unknown && s.consumer.Effect == EffectOnce
}

// share is how many slots an organization has while others have due work: a
// quarter.
func (s *consumerSlots) share() int { return (s.consumer.Concurrency + 3) / 4 }

// overflow is how many slots there are beside those of the concurrency. One at
// least is never for a destination beside a greedy one, so that there are two.
func (s *consumerSlots) overflow() int { return max(s.share(), 2) }

func (s *consumerSlots) all() int { return s.consumer.Concurrency + s.overflow() }

// want is what to ask of a claim, and false when no slot is free.
func (s *consumerSlots) want() (Want, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = false
	overflow := min(s.overflow(), s.all()-s.busy)
	if overflow <= 0 {
		return Want{}, false
	}
	w := Want{
		Consumer: s.consumer.Name,
		Limit:    min(max(s.consumer.Concurrency-s.busy, 0), claimBatch),
		Overflow: overflow,
		Side:     max(overflow-(s.overflow()+1)/2, 0),
		Share:    s.share(),
		After:    s.after,
		InHand:   make([]InHand, 0, len(s.inHand)),
	}
	for f, n := range s.inHand {
		w.InHand = append(w.InHand, InHand{OrgID: f.org, Destination: f.destination, Count: n})
	}
	return w, true
}

func (s *consumerSlots) take(d *Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy++
	s.inHand[flow{d.OrgID, d.Destination}]++
}

// give frees the slot of d and reports whether a claim is worth it.
func (s *consumerSlots) give(d *Delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	s.released = true
	f := flow{d.OrgID, d.Destination}
	if s.inHand[f]--; s.inHand[f] == 0 {
		delete(s.inHand, f)
	}
	return s.hungry
}

// claimed records what a claim has given of what was wanted, and reports whether
// more may be due for which there are slots right now.
func (s *consumerSlots) claimed(w Want, got []Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.after = LastTurn(w.After, got)
	full := len(got) > 0 && len(got) >= w.Limit
	s.hungry = full || bounded(w, got)
	switch {
	case s.hungry && s.released:
		return true
	case full && len(got) == w.Limit+w.Overflow:
		return s.busy < s.all()
	default:
		return full && s.busy < s.consumer.Concurrency
	}
}

// bounded reports whether somebody has in hand what a share allows, so that the
// claim may have left out due work of theirs.
func bounded(w Want, got []Key) bool {
	orgs, destinations := make(map[uuid.UUID]int), make(map[flow]int)
	for _, h := range w.InHand {
		orgs[h.OrgID] += h.Count
		destinations[flow{h.OrgID, h.Destination}] += h.Count
	}
	for _, k := range got {
		orgs[k.OrgID]++
		destinations[flow{k.OrgID, k.Destination}]++
	}
	for _, n := range orgs {
		if n >= w.Share {
			return true
		}
	}
	for f, n := range destinations {
		if f.destination != uuid.Nil && n >= max(w.Share/2, 1) {
			return true
		}
	}
	return false
}

// LastTurn is the last of the organizations of what a claim gave, on the way
// around the circle from after. The next claim goes on from there.
func LastTurn(after uuid.UUID, claimed []Key) uuid.UUID {
	last, wrapped := after, false
	for _, k := range claimed {
		org := k.OrgID
		over := bytes.Compare(org[:], after[:]) <= 0
		if over && !wrapped || over == wrapped && bytes.Compare(org[:], last[:]) > 0 {
			last, wrapped = org, over
		}
	}
	return last
}
