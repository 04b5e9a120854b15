package bus

import (
	"bytes"
	"slices"

	"github.com/google/uuid"
)

// turns is the organization of each class whose turn was the last. The classes
// have circles of their own, or one that comes first at every claim would hold
// the other at the same place.
type turns struct{ interactive, bulk uuid.UUID }

// granted is what a claim has given to one consumer.
type granted struct{ interactive, bulk []Key }

func (g granted) with(d *Delivery) granted {
	if d.Interactive {
		g.interactive = append(g.interactive, d.Key)
	} else {
		g.bulk = append(g.bulk, d.Key)
	}
	return g
}

// bounded reports whether somebody has in hand what a share allows, so that the
// claim may have left out due work of theirs.
func bounded(w Want, got granted) bool {
	orgs, destinations := make(map[uuid.UUID]int), make(map[flow]int)
	for _, h := range w.InHand {
		orgs[h.OrgID] += h.Count
		destinations[flow{h.OrgID, h.Destination}] += h.Count
	}
	for _, k := range slices.Concat(got.interactive, got.bulk) {
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

// LastTurn is the last of the organizations of what a claim gave of one class, on
// the way around the circle from after. The next claim goes on from there.
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
