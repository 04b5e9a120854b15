package bustest

import (
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// LaneName is a lane of a Model: what of a consumer is handled one at a time.
type LaneName struct {
	Consumer    string
	Destination uuid.UUID
	Org         uuid.UUID
	Lane        string
}

// never is when a delivery is due that waits behind another.
const never = math.MaxInt64

// LaneName is the lane of r. Without one it has an empty Lane.
func (r *Row) LaneName() LaneName { return LaneName{r.Consumer, r.Destination, r.Org, r.Lane} }

// Waits reports whether r waits behind another of its lane, or for the lane.
func (r *Row) Waits() bool { return r.Status == "pending" && r.dueAt == never }

// DueIn is how long it takes until an unfinished delivery is due, or may be due
// once it is its turn.
func (m *Model) DueIn(r *Row) time.Duration {
	if r.Waits() {
		return max(r.notBefore-m.now, 0)
	}
	return r.dueAt - m.now
}

// Unfinished reports whether r has not ended.
func (r *Row) Unfinished() bool { return r.Status == "pending" || r.Status == "processing" }

// LanePlace is where a delivery stands among the others of its lane, and since
// when it would be due outside of one: Late before now.
type LanePlace struct {
	LaneName
	Seq  int
	Late time.Duration
}

// AddInLane puts a delivery into a lane. With an empty one it is Add.
func (m *Model) AddInLane(p LanePlace, n Name, c bus.Consumer) {
	m.Add(n, p.Org, c)
	r := m.rows[n]
	r.Lane, r.seq, r.dueAt = p.Lane, p.Seq, m.now-p.Late
	m.queue(r)
}

// Cancelled ends what waits of an event.
func (m *Model) Cancelled(event uuid.UUID, reason string) {
	for _, r := range m.rows {
		if r.Event == event && r.Status == "pending" && !r.Begun {
			r.Dropped, r.State = true, State{Status: "discarded", Attempts: r.Attempts, LastError: reason}
			m.advance(r.LaneName())
		}
	}
}

// queue lets what has come into a lane wait for its turn.
func (m *Model) queue(r *Row) {
	if r.Lane != "" {
		r.dueAt, r.notBefore = never, 0
		m.advance(r.LaneName())
	}
}

// Has reports whether there is, or has been, a delivery of this name.
func (m *Model) Has(n Name) bool { return m.rows[n] != nil }

// PauseLane lets nothing more of a lane be claimed.
func (m *Model) PauseLane(l LaneName) {
	m.paused[l] = true
	m.advance(l)
}

// ResumeLane ends a PauseLane.
func (m *Model) ResumeLane(l LaneName) {
	delete(m.paused, l)
	m.advance(l)
}

// LanePaused reports whether a lane is paused.
func (m *Model) LanePaused(l LaneName) bool { return m.paused[l] }

// Head is what a person acts on in a lane: what is in hand or next, or else the
// first; nil when nothing is left.
func (m *Model) Head(l LaneName) *Row {
	first, current := m.ends(l)
	if current != nil {
		return current
	}
	return first
}

// ends returns the first of a lane and the one that has its turn.
func (m *Model) ends(l LaneName) (first, current *Row) {
	for _, r := range m.rows {
		if !r.Unfinished() || r.LaneName() != l {
			continue
		}
		if first == nil || r.seq < first.seq {
			first = r
		}
		if r.dueAt != never {
			current = r
		}
	}
	return first, current
}

// advance gives the turn to the first of a lane, unless one is in hand. Nobody has
// it while the lane is paused. Whoever loses it keeps the time it was due at.
func (m *Model) advance(l LaneName) {
	first, current := m.ends(l)
	if l.Lane == "" || first == nil || current != nil && current.leased() {
		return
	}
	if current != nil && (current != first || m.paused[l]) {
		current.dueAt, current.notBefore = never, max(current.notBefore, current.dueAt)
		current = nil
	}
	if current == nil && !m.paused[l] {
		first.dueAt = max(m.now, first.notBefore)
	}
}

// HeadRetried makes the head of a lane due at once.
func (m *Model) HeadRetried(r *Row) { r.dueAt, r.notBefore = m.now, 0 }

// HeadSkipped ends the head of a lane without a try.
func (m *Model) HeadSkipped(r *Row, reason string) {
	r.Status, r.LastError = "skipped", reason
	m.advance(r.LaneName())
}

// HeadParked puts the head of a lane with the dead.
func (m *Model) HeadParked(r *Row) {
	if r.LastError == "" {
		r.LastError = "not tried yet"
	}
	m.bury(r)
	m.advance(r.LaneName())
}
