package bustest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// Model is what becomes of deliveries by the rules, said in the plainest way: a
// log is held to it action by action, in any order of actions. It has no clock:
// its time stands still but for Elapse, so leases and steps must be long against
// the run of a test.
type Model struct {
	lease  time.Duration
	now    time.Duration
	token  int64        // the largest so far
	paused map[any]bool // organizations, destinations, consumers by name, and lanes
	rows   map[Name]*Row
}

// Name is what there is one delivery of.
type Name struct {
	Event       uuid.UUID
	Consumer    string
	Destination uuid.UUID
}

// Row is one delivery of a Model.
type Row struct {
	Name
	State
	Org     uuid.UUID
	Earlier int  // attempts before the last replay
	Dropped bool // its destination was deleted
	Suspect bool
	Crashes int
	Begun   bool
	Lane    string // in order with the others of its consumer, destination and organization that have the same; none when empty

	consumer  bus.Consumer
	seq       int
	dueAt     time.Duration // never when it waits behind another
	notBefore time.Duration // when it may be due once it is its turn
	token     int64         // of the last claim
}

// NewModel returns a Model of a log whose leases last this long.
func NewModel(lease time.Duration) *Model {
	return &Model{lease: lease, paused: make(map[any]bool), rows: make(map[Name]*Row)}
}

// Add makes a delivery due.
func (m *Model) Add(n Name, org uuid.UUID, c bus.Consumer) {
	m.rows[n] = &Row{Name: n, State: State{Status: "pending"}, Org: org, consumer: c, dueAt: m.now}
}

// Rows returns all deliveries there have been.
func (m *Model) Rows() []*Row { return slices.Collect(maps.Values(m.rows)) }

// Elapse makes everything as though d had passed.
func (m *Model) Elapse(d time.Duration) { m.now += d }

// Pause makes the deliveries of an organization, or for a destination, wait.
func (m *Model) Pause(id uuid.UUID) { m.paused[id] = true }

// Resume ends a Pause.
func (m *Model) Resume(id uuid.UUID) { delete(m.paused, id) }

// PauseConsumer makes the deliveries of a consumer wait.
func (m *Model) PauseConsumer(name string) { m.paused[name] = true }

// ResumeConsumer ends a PauseConsumer.
func (m *Model) ResumeConsumer(name string) { delete(m.paused, name) }

// stopped reports whether a pause keeps r from being claimed. That of a lane takes
// its time from what waits in it instead.
func (m *Model) stopped(r *Row) bool {
	return m.paused[r.Org] || m.paused[r.Destination] || m.paused[r.Consumer]
}

func (r *Row) leased() bool { return r.Status == "processing" }

// eligible lists what of a consumer may be claimed, the longest due first.
func (m *Model) eligible(consumer string, suspect bool) []*Row {
	var rows []*Row
	for _, r := range m.rows {
		if r.Consumer == consumer && r.Status == "pending" && r.Suspect == suspect && r.dueAt <= m.now && !m.stopped(r) {
			rows = append(rows, r)
		}
	}
	slices.SortFunc(rows, func(a, b *Row) int { return int(a.dueAt - b.dueAt) })
	return rows
}

// Claimed takes what a claim has given and says what is wrong with it.
func (m *Model) Claimed(c bus.Claim, got []bus.Delivery) error {
	var lapsed, suspects []*Row
	for _, w := range c.Wants {
		suspects = append(suspects, m.eligible(w.Consumer, true)...)
		for _, r := range m.rows {
			if r.Consumer == w.Consumer && r.leased() && r.dueAt <= m.now {
				lapsed = append(lapsed, r)
			}
		}
	}
	alone, errs := m.checkAlone(c, suspects, got)
	for _, w := range c.Wants {
		errs = append(errs, m.checkWant(w, alone, got))
	}
	newest := m.token
	for _, d := range got {
		errs = append(errs, m.grant(d))
		newest = max(newest, d.Token)
	}
	m.token = newest
	for _, r := range lapsed {
		m.crash(r)
		m.advance(r.LaneName())
	}
	return errors.Join(errs...)
}

// checkAlone returns the suspect of a claim.
func (m *Model) checkAlone(c bus.Claim, suspects []*Row, got []bus.Delivery) (alone *bus.Delivery, errs []error) {
	first := slices.MinFunc(append(suspects, &Row{dueAt: m.now + 1}), func(a, b *Row) int { return int(a.dueAt - b.dueAt) })
	for i, d := range got {
		if !d.Suspect {
			continue
		}
		if alone != nil || !c.Suspect {
			errs = append(errs, errors.New("a claim gives a suspect too many"))
		}
		alone = &got[i]
		if r := m.row(d); r != nil && r.dueAt > first.dueAt {
			errs = append(errs, errors.New("a claim gives a suspect before one that is due longer"))
		}
	}
	if alone == nil && c.Suspect && len(suspects) > 0 {
		errs = append(errs, errors.New("a claim gives no suspect and one is due"))
	}
	return alone, errs
}

// checkWant compares what one consumer gets with what it is to get: as much as
// there is, within its limit and in the order of the due times; with shares, of
// which the conformance suite has the rules, something.
func (m *Model) checkWant(w bus.Want, alone *bus.Delivery, got []bus.Delivery) error {
	due := m.eligible(w.Consumer, false)
	limit, n := w.Limit, 0
	if alone != nil && alone.Consumer == w.Consumer {
		limit--
	}
	want := min(limit, len(due))
	for _, d := range got {
		if d.Consumer != w.Consumer || d.Suspect {
			continue
		}
		if n++; w.Share == 0 && n <= want {
			if r := m.row(d); r != nil && r.dueAt > due[want-1].dueAt {
				return errors.New("a claim gives a delivery before one that is due longer")
			}
		}
	}
	switch {
	case w.Share == 0 && n != want:
		return fmt.Errorf("a claim gives %d deliveries, want %d", n, want)
	case w.Share > 0 && (n > limit+w.Overflow || n == 0 && want > 0):
		return fmt.Errorf("a claim with shares gives %d deliveries of %d", n, len(due))
	}
	return nil
}

func (m *Model) row(d bus.Delivery) *Row { return m.rows[Name{d.Event.ID, d.Consumer, d.Destination}] }

// grant gives a delivery to the holder of its token.
func (m *Model) grant(d bus.Delivery) error {
	r := m.row(d)
	switch {
	case r == nil:
		return errors.New("a claim gives what is nobody's")
	case r.Status != "pending" || r.dueAt > m.now || m.stopped(r):
		return fmt.Errorf("a claim gives a delivery that is %s, due in %s, or waits for a pause", r.Status, r.dueAt-m.now)
	case d.Token <= m.token:
		return fmt.Errorf("token %d after %d, want it larger", d.Token, m.token)
	case d.OrgID != r.Org || d.ID != bus.DeliveryID(r.Event, r.Consumer, r.Destination):
		return errors.New("a claim gives a delivery of another organization or under another id")
	case d.Attempt != r.Attempts+r.Earlier+1 || d.Budgeted != r.Attempts+1 || d.Suspect != r.Suspect || d.Unknown != r.Begun:
		return fmt.Errorf("claimed attempt %d (%d), suspect %t, unknown %t, want %+v", d.Attempt, d.Budgeted, d.Suspect, d.Unknown, *r)
	}
	r.Status, r.token, r.dueAt = "processing", d.Token, m.now+m.lease
	return nil
}

// crash is the end of the process that held r.
func (m *Model) crash(r *Row) {
	r.Status, r.dueAt = "pending", m.now
	if !r.Suspect {
		r.Suspect, r.Crashes = true, 0
		return
	}
	r.Attempts++
	r.LastError = bus.ErrCrashed.Error()
	if r.Attempts >= r.consumer.Retry.MaxAttempts {
		m.bury(r)
		return
	}
	if r.Crashes > 0 {
		r.dueAt += r.step()
	}
	r.Crashes++
}

func (m *Model) bury(r *Row) {
	r.Status = "dead"
	if r.Begun {
		r.Status = "uncertain"
	}
}

// step is the wait after the attempts there have been.
func (r *Row) step() time.Duration {
	steps := r.consumer.Retry.Steps
	return steps[min(r.Attempts, len(steps))-1]
}

// held returns the row that is held under a lease, or nil.
func (m *Model) held(l bus.Lease, d bus.Delivery) *Row {
	if r := m.row(d); r != nil && r.leased() && r.token == l.Token {
		return r
	}
	return nil
}

// Settled takes verdicts and says what is wrong with which of them were refused.
func (m *Model) Settled(settlements []bus.Settlement, lost []bus.Lease) error {
	var want []bus.Lease
	for _, s := range settlements {
		if r := m.held(s.Delivery.Lease(), *s.Delivery); r != nil {
			m.end(r, s)
			m.advance(r.LaneName())
		} else {
			want = append(want, s.Delivery.Lease())
		}
	}
	return sameLeases("settle", lost, want)
}

func (m *Model) end(r *Row, s bus.Settlement) {
	if !s.Delivery.Unknown {
		r.Suspect, r.Crashes = false, 0
	}
	r.Begun = r.Begun && s.Unknown
	r.Status, r.dueAt = "pending", m.now+s.NotUntil
	if s.Verdict == bus.VerdictPostpone {
		if s.Error != "" {
			r.LastError = s.Error
		}
		return
	}
	r.Attempts++
	r.LastError = s.Error
	switch {
	case s.Verdict != bus.VerdictRetry:
		r.Status = string(s.Verdict)
	case r.Attempts >= r.consumer.Retry.MaxAttempts:
		m.bury(r)
	default:
		r.dueAt = m.now + max(r.step(), s.NotUntil)
	}
}

// Extended takes a renewal of the leases of deliveries and says what is wrong with
// which were lost.
func (m *Model) Extended(deliveries []bus.Delivery, lost []bus.Lease) error {
	var want []bus.Lease
	for _, d := range deliveries {
		if r := m.held(d.Lease(), d); r != nil {
			r.dueAt = m.now + m.lease
		} else {
			want = append(want, d.Lease())
		}
	}
	return sameLeases("extend", lost, want)
}

// BegunEffect takes the answer to the beginning of an effect and says whether it
// is wrong.
func (m *Model) BegunEffect(d bus.Delivery, answer error) error {
	r := m.held(d.Lease(), d)
	if r == nil {
		if !errors.Is(answer, bus.ErrLeaseLost) {
			return fmt.Errorf("an effect began without a lease: %w", answer)
		}
		return nil
	}
	r.Begun, r.dueAt = true, m.now+m.lease
	return answer
}

// Replayed makes a dead or uncertain delivery due again.
func (m *Model) Replayed(r *Row) {
	r.Status, r.dueAt = "pending", m.now
	r.Earlier, r.Attempts = r.Earlier+r.Attempts, 0
	r.Suspect, r.Crashes, r.Begun = false, 0, false
	m.queue(r)
}

func sameLeases(what string, got, want []bus.Lease) error {
	count := make(map[bus.Lease]int)
	for _, l := range got {
		count[l]++
	}
	for _, l := range want {
		count[l]--
	}
	for l, n := range count {
		if n != 0 {
			return fmt.Errorf("%s: lease %+v was lost or kept against the rules", what, l)
		}
	}
	return nil
}

// DrawnSettlement is a verdict over a delivery, as a handler may come to it; choose
// draws a number below n.
func DrawnSettlement(d *bus.Delivery, choose func(n int) int) bus.Settlement {
	verdicts := []bus.Verdict{
		bus.VerdictDone, bus.VerdictRetry, bus.VerdictRetry, bus.VerdictPostpone, bus.VerdictDead, bus.VerdictSkip, bus.VerdictUncertain,
	}
	if d.Unknown { // else it would seldom be so for the whole budget
		verdicts = append(verdicts, bus.VerdictRetry, bus.VerdictRetry, bus.VerdictRetry)
	}
	s := bus.Settlement{Delivery: d, Verdict: verdicts[choose(len(verdicts))]}
	switch s.Verdict {
	case bus.VerdictDone:
		return s
	case bus.VerdictRetry, bus.VerdictPostpone:
		s.NotUntil = time.Duration(choose(5)) * 30 * time.Minute
		s.Unknown = d.Unknown && choose(4) > 0
	default:
	}
	s.Error = fmt.Sprintf("%s %d", s.Verdict, choose(3))
	return s
}
