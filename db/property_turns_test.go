package db_test

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// takeTurns takes what the relay takes out of the outbox: all of it, or when that
// is more than limit one event of each organization in turn, until there are so
// many. They come in the order of emission.
func (m *machine) takeTurns(limit int) []*modelEvent {
	taken := m.outbox
	if len(taken) > limit {
		taken = m.pickByTurns(limit)
	}
	m.outbox = slices.DeleteFunc(slices.Clone(m.outbox), func(ev *modelEvent) bool { return slices.Contains(taken, ev) })
	return taken
}

func (m *machine) pickByTurns(limit int) []*modelEvent {
	circle := m.circle()
	if len(circle) >= limit {
		circle = circle[:limit]
		m.lastTurn = circle[limit-1]
	}
	type place struct{ round, class, turn int }
	places := make(map[*modelEvent]place)
	rounds := make(map[uuid.UUID]int)
	var picked []*modelEvent
	for _, ev := range m.outbox {
		turn := slices.Index(circle, ev.org)
		if turn < 0 {
			continue
		}
		class := 1
		if slices.Contains([]bus.Type{"message.received", "message.send_requested", "ai.handoff_triggered"}, ev.typ) {
			class = 0
		}
		places[ev] = place{rounds[ev.org], class, turn}
		rounds[ev.org]++
		picked = append(picked, ev)
	}
	slices.SortFunc(picked, func(a, b *modelEvent) int {
		p, q := places[a], places[b]
		return cmp.Or(p.round-q.round, p.class-q.class, p.turn-q.turn)
	})
	picked = picked[:limit]
	slices.SortFunc(picked, func(a, b *modelEvent) int { return a.at - b.at })
	return picked
}

// circle is whose events wait, from the one after the last whose turn it was.
func (m *machine) circle() []uuid.UUID {
	var orgs []uuid.UUID
	for _, ev := range m.outbox {
		if !slices.Contains(orgs, ev.org) {
			orgs = append(orgs, ev.org)
		}
	}
	compare := func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }
	slices.SortFunc(orgs, compare)
	after := slices.IndexFunc(orgs, func(o uuid.UUID) bool { return compare(o, m.lastTurn) > 0 })
	if after > 0 {
		orgs = slices.Concat(orgs[after:], orgs[:after])
	}
	return orgs
}
