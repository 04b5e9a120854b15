package bus

import (
	"sync"

	"github.com/google/uuid"
)

// consumerSlots is one consumer's handler and its slots. Beside those of its
// concurrency it has a few that only organizations below their share get, so
// that one whose work hangs in all the others keeps nobody waiting, and a few
// that only interactive deliveries get, the express slots.
type consumerSlots struct {
	handler     Handler
	consumer    Consumer
	mu          sync.Mutex
	bulk        int // how many are in hand of each class
	interactive int
	inHand      map[flow]int
	last        turns
	hungry      bool // the last claim left out what its limits did not allow, so more may be due
	released    bool // a slot became free since the last claim was asked for
}

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

// express is how many slots more there are for interactive deliveries: a quarter.
func (s *consumerSlots) express() int { return s.share() }

// bulkFirst is how many slots are for bulk while interactive deliveries are due
// too: an eighth.
func (s *consumerSlots) bulkFirst() int { return max(s.consumer.Concurrency/8, 1) }

func (s *consumerSlots) all() int { return s.consumer.Concurrency + s.overflow() + s.express() }

// busy is how many slots are in use of the concurrency and the overflow:
// interactive deliveries fill the express slots before those.
func (s *consumerSlots) busy() int { return s.bulk + max(s.interactive-s.express(), 0) }

// want is what to ask of a claim, and false when no slot is free.
func (s *consumerSlots) want() (Want, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = false
	overflow := min(s.overflow(), max(s.consumer.Concurrency+s.overflow()-s.busy(), 0))
	express := max(s.express()-s.interactive, 0)
	if overflow+express == 0 {
		return Want{}, false
	}
	w := Want{
		Consumer:         s.consumer.Name,
		Limit:            min(max(s.consumer.Concurrency-s.busy(), 0), claimBatch),
		Express:          express,
		Overflow:         overflow,
		Side:             max(overflow-(s.overflow()+1)/2, 0),
		Share:            s.share(),
		Bulk:             max(s.bulkFirst()-s.bulk, 0),
		After:            s.last.bulk,
		AfterInteractive: s.last.interactive,
		InHand:           make([]InHand, 0, len(s.inHand)),
	}
	for f, n := range s.inHand {
		w.InHand = append(w.InHand, InHand{OrgID: f.org, Destination: f.destination, Count: n})
	}
	return w, true
}

func (s *consumerSlots) take(d *Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(d, 1)
}

// give frees the slot of d and reports whether a claim is worth it.
func (s *consumerSlots) give(d *Delivery) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(d, -1)
	s.released = true
	return s.hungry
}

func (s *consumerSlots) count(d *Delivery, n int) {
	if d.Interactive {
		s.interactive += n
	} else {
		s.bulk += n
	}
	f := flow{d.OrgID, d.Destination}
	if s.inHand[f] += n; s.inHand[f] == 0 {
		delete(s.inHand, f)
	}
}

// claimed records what a claim has given of what was wanted, and reports whether
// more may be due for which there are slots right now.
func (s *consumerSlots) claimed(w Want, got granted) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = turns{interactive: LastTurn(w.AfterInteractive, got.interactive), bulk: LastTurn(w.After, got.bulk)}
	some := len(got.bulk)+len(got.interactive) > 0
	used := len(got.bulk) + max(len(got.interactive)-w.Express, 0) // not counting express slots
	full := some && used >= w.Limit
	s.hungry = full || bounded(w, got) || w.Overflow == 0 // then nothing but interactive ones was asked for
	switch {
	case s.hungry && s.released:
		return true
	case full && used == w.Limit+w.Overflow:
		return s.busy() < s.consumer.Concurrency+s.overflow()
	default:
		return full && s.busy() < s.consumer.Concurrency
	}
}

// flow is whom a delivery is for.
type flow struct{ org, destination uuid.UUID }
