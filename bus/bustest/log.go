package bustest

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// Log is a bus.Log in memory. It is safe for use by many goroutines; its exported
// fields are set before that.
type Log struct {
	Lease time.Duration // how long a claim lasts; NewLog sets 30 s
	Hooks Hooks

	mu        sync.Mutex
	elapsed   time.Duration
	org       uuid.UUID          // of what is emitted without one
	paused    map[uuid.UUID]bool // organizations that are suspended and destinations that are disabled
	token     int64
	seq       int64
	consumers []bus.Consumer // the id of a consumer is its place, from 1
	rows      []*row         // in the order of seq; what is finished stays
	byKey     map[bus.Key]*row
}

// row is a delivery, finished or not.
type row struct {
	key         bus.Key
	consumer    bus.Consumer
	event       bus.Event
	interactive bool
	dueAt       time.Time // from then on it may be claimed: a lease moves it to its end
	leased      bool
	token       int64
	attempts    int
	suspect     bool        // a process died with it in hand
	crashes     int         // of processes that had it as their suspect
	begun       bool        // the effect of the attempt in hand, or of one whose process died
	outcome     bus.Verdict // empty while unfinished
	lastError   string
}

// NewLog returns a Log with consumers registered.
func NewLog(consumers ...bus.Consumer) *Log {
	l := &Log{Lease: 30 * time.Second, org: uuid.New(), paused: make(map[uuid.UUID]bool), byKey: make(map[bus.Key]*row)}
	l.Register(consumers...)
	return l
}

// Register adds consumers; they read what is emitted from then on.
func (l *Log) Register(consumers ...bus.Consumer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.consumers = append(l.consumers, consumers...)
}

// Emit appends n events of one organization, always the same, and makes a
// delivery due for each consumer that reads their type.
func (l *Log) Emit(typ bus.Type, n int) []uuid.UUID { return l.EmitTo(l.org, uuid.Nil, typ, n) }

// EmitTo appends n events of an organization whose deliveries are for a
// destination.
func (l *Log) EmitTo(org, destination uuid.UUID, typ bus.Type, n int) []uuid.UUID {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := make([]uuid.UUID, n)
	for i := range ids {
		l.seq++
		ids[i] = uuid.New()
		ev := bus.Event{
			ID: ids[i], OrgID: org, Type: typ, EntityKind: "thing",
			Payload: []byte(`{}`), Metadata: []byte(`{}`), CreatedAt: l.now(),
		}
		for id, c := range l.consumers {
			if slices.Contains(c.Types, typ) {
				key := bus.Key{ConsumerID: int16(id + 1), Destination: destination, OrgID: org, Seq: l.seq} //nolint:gosec // a few consumers
				l.byKey[key] = &row{key: key, consumer: c, event: ev, dueAt: l.now()}
				l.rows = append(l.rows, l.byKey[key])
			}
		}
	}
	return ids
}

// LeaseTime is how long a claim or an extension lasts.
func (l *Log) LeaseTime() time.Duration { return l.Lease }

// Claim leases due deliveries, interactive ones and then those that are due
// longest first.
func (l *Log) Claim(ctx context.Context, c bus.Claim) ([]bus.Delivery, error) {
	if err := ask(ctx, l.Hooks.Claim, c); err != nil {
		return nil, err
	}
	claimed := l.claim(c)
	if err := ask(ctx, l.Hooks.Claimed, claimed); err != nil {
		return nil, err
	}
	return claimed, nil
}

func (l *Log) claim(c bus.Claim) []bus.Delivery {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.token++
	alone := l.alone(c)
	var claimed []bus.Delivery
	for _, w := range c.Wants {
		due := l.due(w.Consumer, func(r *row) bool { return !r.leased && !r.suspect })
		taken := []*row{}
		if alone != nil && alone.consumer.Name == w.Consumer {
			taken = append(taken, alone)
		}
		// Before any is granted: what is freed here is for a later claim.
		for _, r := range l.due(w.Consumer, func(r *row) bool { return r.leased }) {
			r.crash(l.now())
		}
		for _, r := range share(w, due, taken) {
			l.grant(r)
			claimed = append(claimed, bus.Delivery{
				Key: r.key, ID: bus.DeliveryID(r.event.ID, w.Consumer, r.key.Destination), Token: r.token,
				Consumer: w.Consumer, Event: r.event, Suspect: r.suspect, Unknown: r.begun, Interactive: r.interactive,
				Attempt: r.attempts + 1, Budgeted: r.attempts + 1, MaxAttempts: r.consumer.Retry.MaxAttempts,
			})
		}
	}
	return claimed
}

// alone is the suspect of all wanted consumers that has been due longest, nil
// when there is none or none is asked for.
func (l *Log) alone(c bus.Claim) (first *row) {
	if !c.Suspect {
		return nil
	}
	for _, w := range c.Wants {
		due := l.due(w.Consumer, func(r *row) bool { return !r.leased && r.suspect && mayStart(w, r) })
		if len(due) > 0 && (first == nil || due[0].dueAt.Before(first.dueAt)) {
			first = due[0]
		}
	}
	return first
}

// due lists those of a consumer's deliveries whose time has come, in its order.
func (l *Log) due(consumer string, which func(*row) bool) []*row {
	var due []*row
	for _, r := range l.rows {
		if r.consumer.Name == consumer && r.outcome == "" && !r.dueAt.After(l.now()) && !l.stopped(r) && which(r) {
			due = append(due, r)
		}
	}
	slices.SortStableFunc(due, func(a, b *row) int { return a.dueAt.Compare(b.dueAt) })
	return due
}

// stopped reports whether r is of a suspended organization or for a disabled
// destination. What of it is held already is not.
func (l *Log) stopped(r *row) bool {
	return !r.leased && (l.paused[r.key.OrgID] || l.paused[r.key.Destination])
}

// crash frees what was in the hands of a process that died. It counts for a
// suspect, which was in hand alone.
func (r *row) crash(now time.Time) {
	r.leased, r.dueAt = false, now
	if !r.suspect {
		r.suspect = true
		return
	}
	r.attempts++
	r.lastError = bus.ErrCrashed.Error()
	switch {
	case r.attempts >= r.consumer.Retry.MaxAttempts && r.begun:
		r.outcome = bus.VerdictUncertain
	case r.attempts >= r.consumer.Retry.MaxAttempts:
		r.outcome = bus.VerdictDead
	case r.crashes > 0:
		r.dueAt = now.Add(delay(r.consumer.Retry, r.attempts))
	}
	r.crashes++
}

// grant gives r to the holder of the newest token.
func (l *Log) grant(r *row) {
	r.leased, r.token, r.dueAt = true, l.token, l.now().Add(l.Lease)
}

// Settle brings deliveries to their verdicts and returns the leases that were
// not valid any more.
func (l *Log) Settle(ctx context.Context, settlements []bus.Settlement) ([]bus.Lease, error) {
	if err := ask(ctx, l.Hooks.Settle, settlements); err != nil {
		return nil, err
	}
	lost := l.settle(settlements)
	if err := ask(ctx, l.Hooks.Settled, settlements); err != nil {
		return nil, err
	}
	return lost, nil
}

func (l *Log) settle(settlements []bus.Settlement) (lost []bus.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range settlements {
		r := l.held(s.Delivery.Lease())
		if r == nil {
			lost = append(lost, s.Delivery.Lease())
			continue
		}
		r.leased = false
		r.end(s, l.now())
	}
	return lost
}

// end brings the attempt in hand to its verdict.
func (r *row) end(s bus.Settlement, now time.Time) {
	if !s.Delivery.Unknown {
		r.suspect, r.crashes = false, 0
	}
	r.begun = s.Unknown && r.begun
	if s.Error != "" || s.Verdict != bus.VerdictPostpone {
		r.lastError = s.Error
	}
	if s.Verdict == bus.VerdictPostpone {
		r.dueAt = now.Add(max(s.NotUntil, 0))
		return
	}
	r.attempts++
	switch {
	case s.Verdict != bus.VerdictRetry:
		r.outcome = s.Verdict
	case r.attempts >= r.consumer.Retry.MaxAttempts && r.begun:
		r.outcome = bus.VerdictUncertain
	case r.attempts >= r.consumer.Retry.MaxAttempts:
		r.outcome = bus.VerdictDead
	default:
		r.dueAt = now.Add(max(delay(r.consumer.Retry, r.attempts), s.NotUntil))
	}
}

// Extend renews leases and returns those that are lost.
func (l *Log) Extend(ctx context.Context, leases []bus.Lease) ([]bus.Lease, error) {
	if err := ask(ctx, l.Hooks.Extend, leases); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var lost []bus.Lease
	for _, lease := range leases {
		if r := l.held(lease); r != nil {
			r.dueAt = l.now().Add(l.Lease)
		} else {
			lost = append(lost, lease)
		}
	}
	return lost, nil
}

// BeginEffect records that an effect may happen from now on.
func (l *Log) BeginEffect(ctx context.Context, lease bus.Lease) error {
	if err := ask(ctx, l.Hooks.Begin, lease); err != nil {
		return err
	}
	if !l.begin(lease) {
		return bus.ErrLeaseLost
	}
	return ask(ctx, l.Hooks.Begun, lease)
}

func (l *Log) begin(lease bus.Lease) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.held(lease)
	if r == nil {
		return false
	}
	r.begun, r.dueAt = true, l.now().Add(l.Lease)
	return true
}

// held returns the row that is held under exactly this lease, or nil. A lease
// that has run out is held until somebody else claims.
func (l *Log) held(lease bus.Lease) *row {
	if r := l.byKey[lease.Key]; r != nil && r.leased && r.token == lease.Token {
		return r
	}
	return nil
}

// delay is the wait after the given number of attempts.
func delay(p bus.RetryPolicy, attempts int) time.Duration {
	step := p.Steps[min(attempts, len(p.Steps))-1]
	return step + time.Duration(rand.Float64()*p.Jitter*float64(step)) //nolint:gosec // spreads load, hides nothing
}

func (l *Log) now() time.Time { return time.Now().Add(l.elapsed) }
