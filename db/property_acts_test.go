package db_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
	"github.com/deskcomm/deskcomm/db"
)

func (m *machine) claimSome(rt *rapid.T) {
	c := bus.Claim{Suspect: rapid.Bool().Draw(rt, "suspect")}
	for _, consumer := range m.consumers {
		if n := rapid.IntRange(0, 6).Draw(rt, "limit"); n > 0 {
			c.Wants = append(c.Wants, bus.Want{Consumer: consumer.Name, Limit: n})
		}
	}
	m.claims(rt, c)
}

func (m *machine) claimByShares(rt *rapid.T) {
	c := bus.Claim{Suspect: rapid.Bool().Draw(rt, "suspect")}
	for _, consumer := range m.consumers {
		after := rapid.SampledFrom(append(m.orgs, uuid.Nil)).Draw(rt, "after")
		c.Wants = append(c.Wants, bus.Want{Consumer: consumer.Name, Limit: rapid.IntRange(1, 4).Draw(rt, "limit"), Overflow: 2, Side: 1, Share: 1, After: after})
	}
	m.claims(rt, c)
}

func (m *machine) claims(rt *rapid.T, c bus.Claim) {
	got, err := m.db.Claim(m.Context(), c)
	m.must(rt, err, m.model.Claimed(c, got))
	slices.SortFunc(got, func(a, b bus.Delivery) int { return cmp.Compare(m.order(nameOf(a)), m.order(nameOf(b))) })
	m.claimed = append(m.claimed, got...)
}

func nameOf(d bus.Delivery) bustest.Name {
	return bustest.Name{Event: d.Event.ID, Consumer: d.Consumer, Destination: d.Destination}
}

// order is where a delivery stands among the others: the same in each run of the
// same choices, in which the ids differ.
func (m *machine) order(n bustest.Name) string {
	sub := slices.IndexFunc(m.subs, func(s *modelSubscription) bool { return s.id == n.Destination })
	return fmt.Sprintf("%04d %s %d", slices.Index(m.places, n.Event), n.Consumer, sub)
}

// settleSome settles what was claimed lately, each of it once.
func (m *machine) settleSome(rt *rapid.T) {
	var batch []bus.Settlement
	var keys []bus.Key
	for i := len(m.claimed) - 1; i >= 0 && len(batch) < 4; i-- {
		if d := &m.claimed[i]; !slices.Contains(keys, d.Key) && rapid.Bool().Draw(rt, "settle it") {
			batch, keys = append(batch, m.verdict(rt, d)), append(keys, d.Key)
		}
	}
	m.settles(rt, batch)
}

// settleAny settles anything that was ever claimed.
func (m *machine) settleAny(rt *rapid.T) {
	if d := m.held(rt); d != nil {
		m.settles(rt, []bus.Settlement{m.verdict(rt, d)})
	}
}

func (m *machine) verdict(rt *rapid.T, d *bus.Delivery) bus.Settlement {
	return bustest.DrawnSettlement(d, func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "choice") })
}

func (m *machine) settles(rt *rapid.T, batch []bus.Settlement) {
	if len(batch) == 0 {
		return
	}
	lost, err := m.db.Settle(m.Context(), batch)
	m.must(rt, err, m.model.Settled(batch, lost))
}

// held draws a delivery that was claimed once, and may be anybody's by now.
func (m *machine) held(rt *rapid.T) *bus.Delivery {
	if len(m.claimed) == 0 {
		return nil
	}
	return &m.claimed[len(m.claimed)-1-rapid.IntRange(0, len(m.claimed)-1).Draw(rt, "claim from the last")]
}

// inDelivery settles a delivery in the transaction of an effect.
func (m *machine) inDelivery(rt *rapid.T) {
	d := m.held(rt)
	if d == nil {
		return
	}
	settlement := []bus.Settlement{{Delivery: d, Verdict: bus.VerdictDone}}
	id := uuid.New()
	err := m.db.InDelivery(m.Context(), d, func(t *db.OrgTx) error { return t.Record(m.Context(), "test.effect", "event", id) })
	var lost []bus.Lease
	if errors.Is(err, bus.ErrLeaseLost) {
		lost, err = append(lost, d.Lease()), nil
	}
	var effects int
	m.must(rt, err, m.model.Settled(settlement, lost),
		m.conn.QueryRow(m.Context(), "select count(*) from audit_log where resource_id = $1", id).Scan(&effects))
	if effects+len(lost) != 1 {
		rt.Fatalf("%d effects of a delivery whose lease was lost %d times", effects, len(lost))
	}
}

func (m *machine) extend(rt *rapid.T) {
	if d := m.held(rt); d != nil {
		lost, err := m.db.Extend(m.Context(), []bus.Lease{d.Lease()})
		m.must(rt, err, m.model.Extended([]bus.Delivery{*d}, lost))
	}
}

func (m *machine) beginEffect(rt *rapid.T) {
	if d := m.held(rt); d != nil {
		m.must(rt, m.model.BegunEffect(*d, m.db.BeginEffect(m.Context(), d.Lease())))
	}
}

// elapse moves rows in time. Leases and steps are whole hours, so that the moments
// that the test itself takes decide nothing.
func (m *machine) elapse(rt *rapid.T) {
	d := time.Duration(rapid.IntRange(1, 6).Draw(rt, "half hours")) * 30 * time.Minute
	m.must(rt, m.try("update delivery set due_at = due_at - $1::interval, not_before = not_before - $1::interval", d),
		m.try("update waiting_job set not_before = not_before - $1::interval", d), m.try("update outbox set not_before = not_before - $1::interval", d))
	m.now += d
	m.model.Elapse(d)
}

// decide lets a person decide about a delivery that has ended, and fails when it
// is refused or accepted against the rules.
func (m *machine) decide(rt *rapid.T, may func(*bustest.Row) bool, act func(t *db.OrgTx, id uuid.UUID) error) *bustest.Row {
	var ended []*bustest.Row
	for _, r := range m.model.Rows() {
		if r.Status != "pending" && r.Status != "processing" {
			ended = append(ended, r)
		}
	}
	slices.SortFunc(ended, func(a, b *bustest.Row) int { return cmp.Compare(m.order(a.Name), m.order(b.Name)) })
	r, ok := choice(rt, "delivery", ended)
	if !ok {
		return nil
	}
	err := m.inOrg(r.Org, func(t *db.OrgTx) error { return act(t, bus.DeliveryID(r.Event, r.Consumer, r.Destination)) })
	switch {
	case may(r):
		m.must(rt, err)
		return r
	case !errors.Is(err, bus.ErrConflict) && !errors.Is(err, bus.ErrNotFound):
		rt.Fatalf("a decision over a delivery that is %s = %v, want a refusal", r.Status, err)
	}
	return nil
}

func waits(r *bustest.Row) bool { return r.Status == "dead" || r.Status == "uncertain" }

func (m *machine) replay(rt *rapid.T) {
	may := func(r *bustest.Row) bool {
		return waits(r) && !slices.ContainsFunc(m.subs, func(s *modelSubscription) bool { return s.id == r.Destination && s.deleted })
	}
	if r := m.decide(rt, may, func(t *db.OrgTx, id uuid.UUID) error { return t.Replay(m.Context(), id, "") }); r != nil {
		m.model.Replayed(r)
	}
}

func (m *machine) discard(rt *rapid.T) {
	if r := m.decide(rt, waits, func(t *db.OrgTx, id uuid.UUID) error { return t.Discard(m.Context(), id, "no") }); r != nil {
		r.Status = "discarded"
	}
}

func (m *machine) confirm(rt *rapid.T) {
	may := func(r *bustest.Row) bool { return r.Status == "uncertain" }
	if r := m.decide(rt, may, func(t *db.OrgTx, id uuid.UUID) error { return t.ConfirmDone(m.Context(), id, "") }); r != nil {
		r.State = bustest.State{Status: "done", Attempts: r.Attempts}
	}
}

func (m *machine) suspend(rt *rapid.T) {
	org := rapid.SampledFrom(m.orgs).Draw(rt, "organization")
	if m.suspended[org] = !m.suspended[org]; m.suspended[org] {
		m.must(rt, m.try("update organizations set status = 'suspended', suspended_at = clock_timestamp() where id = $1", org))
		m.model.Pause(org)
		return
	}
	m.must(rt, m.try("update organizations set status = 'active', suspended_at = null where id = $1", org))
	m.model.Resume(org)
}

func (m *machine) subscribe(rt *rapid.T) {
	if len(m.subs) == 4 {
		return
	}
	m.acts++
	s := &modelSubscription{
		org: rapid.SampledFrom(m.orgs).Draw(rt, "organization"), since: m.acts,
		pattern:  rapid.SampledFrom([]string{"*", "custom.*", "custom.a", "lead.*"}).Draw(rt, "pattern"),
		ordering: rapid.SampledFrom([]bus.Ordering{bus.OrderingNone, bus.OrderingKey, bus.OrderingStrict}).Draw(rt, "ordering"),
	}
	m.must(rt, m.inOrg(s.org, func(t *db.OrgTx) error {
		sub, err := t.CreateSubscription(m.Context(), db.NewSubscription{URL: "https://receiver.example/", EventTypes: []string{s.pattern}, Ordering: s.ordering})
		s.id = sub.ID
		return err
	}))
	m.subs = append(m.subs, s)
}

func (m *machine) existing(rt *rapid.T) (*modelSubscription, bool) {
	return choice(rt, "subscription", slices.DeleteFunc(slices.Clone(m.subs), func(s *modelSubscription) bool { return s.deleted }))
}

// unsubscribe ends a subscription and what waits for it, in hand or not.
func (m *machine) unsubscribe(rt *rapid.T) {
	s, ok := m.existing(rt)
	if !ok {
		return
	}
	m.must(rt, m.inOrg(s.org, func(t *db.OrgTx) error { return t.DeleteSubscription(m.Context(), s.id) }))
	s.deleted = true
	for _, r := range m.model.Rows() {
		if r.Destination == s.id && (r.Status == "pending" || r.Status == "processing") {
			r.Dropped, r.State = true, bustest.State{Status: "discarded", Attempts: r.Attempts, LastError: "the subscription was deleted"}
		}
	}
	m.model.Resume(s.id)
}

func (m *machine) disable(rt *rapid.T) {
	s, ok := m.existing(rt)
	if !ok {
		return
	}
	s.disabled = !s.disabled
	m.must(rt, m.try("update webhook_subscriptions set enabled = $2 where id = $1", s.id, !s.disabled))
	if s.disabled {
		m.model.Pause(s.id)
	} else {
		m.model.Resume(s.id)
	}
}

// add registers a reader of what is emitted from now on.
func (m *machine) add(rt *rapid.T, name string, ordering bus.Ordering, types ...bus.Type) {
	m.acts++
	steps := []time.Duration{time.Hour, 2 * time.Hour}
	if name == "first-worker" {
		steps = steps[:1]
	}
	c := bus.Consumer{Name: name, Types: types, Ordering: ordering, Effect: bus.EffectOnce, Retry: bus.Ladder(steps)}
	m.must(rt, m.db.RegisterConsumers(m.Context(), []bus.Consumer{c}))
	m.consumers = append(m.consumers, modelConsumer{Consumer: c, since: m.acts})
}

func (m *machine) register(rt *rapid.T) {
	names := []string{"second-worker", "third-worker"}
	if n := len(m.consumers) - 4; n < len(names) {
		ordering := rapid.SampledFrom([]bus.Ordering{bus.OrderingNone, bus.OrderingKey, bus.OrderingStrict}).Draw(rt, "ordering")
		m.add(rt, names[n], ordering, rapid.SampledFrom([]bus.Type{"custom.a", "custom.b", "lead.won"}).Draw(rt, "type"))
	}
}

// registerAgain is what each start of a process does. Nothing is younger for it.
func (m *machine) registerAgain(rt *rapid.T) {
	c := rapid.SampledFrom(m.consumers).Draw(rt, "consumer")
	m.must(rt, m.db.RegisterConsumers(m.Context(), []bus.Consumer{c.Consumer}))
}
