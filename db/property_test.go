package db_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// actions are what may happen to the bus, in any order. One for which there is
// nothing to do at the moment does nothing. Whoever gives the bus an act of its
// own gives it a line here, and the model what it means.
func (m *machine) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"":                        m.compare,
		"emit":                    m.emit,
		"emit more":               m.emit,
		"emit at once":            m.emitAtOnce,
		"emit more at once":       m.emitAtOnce,
		"commit":                  m.commit,
		"roll back":               m.rollBack,
		"relay":                   m.relaySome,
		"relay all":               m.relayAll,
		"relay what was relayed":  seldom(m.restoreOutbox),
		"claim":                   m.claimSome,
		"claim more":              m.claimSome,
		"claim yet more":          m.claimSome,
		"claim with shares":       m.claimByShares,
		"settle":                  m.settleSome,
		"settle more":             m.settleSome,
		"settle what may be lost": m.settleAny,
		"have a local effect":     m.inDelivery,
		"extend":                  m.extend,
		"begin an effect":         m.beginEffect,
		"begin another effect":    m.beginEffect,
		"let time pass":           m.elapse,
		"let more time pass":      m.elapse,
		"replay":                  m.replay,
		"replay more":             m.replay,
		"discard":                 seldom(m.discard),
		"confirm":                 m.confirm,
		"suspend or reactivate":   seldom(m.suspend),
		"subscribe":               m.subscribe,
		"unsubscribe":             seldom(m.unsubscribe),
		"disable or enable":       seldom(m.disable),
		"register another reader": seldom(m.register),
		"register a reader again": seldom(m.registerAgain),
		"pause or resume a lane":  m.pauseLane,
		"pause or resume reading": seldom(m.pauseConsumer),
		"retry a head":            m.retryHead,
		"skip a head":             seldom(m.skipHead),
		"park a head":             m.parkHead,
		"backfill":                seldom(m.backfill),
		"enqueue":                 seldom(m.enqueue),
		"cancel a job":            seldom(m.cancel),
	}
}

// seldom makes an act less frequent than its line would.
func seldom(act func(*rapid.T)) func(*rapid.T) {
	return func(rt *rapid.T) {
		if rapid.IntRange(0, 2).Draw(rt, "seldom") == 0 {
			act(rt)
		}
	}
}

// Whatever happens in which order: there is one delivery for each event, reader
// and destination, in exactly one state, and that of the model; nothing is left
// of what was rolled back; places are dense; only who holds a lease changes
// anything; of what is in order one at a time has its turn, the first.
func TestPropertyTheBusFollowsItsModel(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{Lease: modelLease, MaxConns: 8})
	w := world{T: t, db: d, url: url}
	conn, orgs := dbtest.Conn(t, url), []uuid.UUID{dbtest.Org(t, d), dbtest.Org(t, d)}
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(w, rt, conn, orgs)
		defer m.close()
		rt.Repeat(m.actions())
		for len(m.open) > 0 {
			m.end(rt, 0, errRolledBack)
		}
		m.compare(rt)
	})
}

const modelLease = 2 * time.Hour

// machine is the database and its model.
type machine struct {
	world
	conn  *pgx.Conn
	orgs  []uuid.UUID
	model *bustest.Model

	acts      int // grows with each emission, registration and subscription
	consumers []modelConsumer
	subs      []*modelSubscription
	open      []*openTx
	log       []*modelEvent // committed
	outbox    []*modelEvent // not relayed, in the order of emission but for what was restored
	places    []uuid.UUID
	lastTurn  uuid.UUID // whose it was when more organizations waited than were relayed
	claimed   []bus.Delivery
	suspended map[uuid.UUID]bool
	stopped   map[string]bool // consumers
	jobs      []*modelEvent
	early     []*modelEvent // jobs whose time has not come
	now       time.Duration
}

type modelConsumer struct {
	bus.Consumer
	since int
}

type modelSubscription struct {
	id       uuid.UUID
	org      uuid.UUID
	pattern  string
	ordering bus.Ordering
	since    int
	disabled bool
	deleted  bool
}

type modelEvent struct {
	id  uuid.UUID
	org uuid.UUID
	typ bus.Type
	key string // its order_key
	at  int

	notBefore time.Duration // in the time of the machine
	late      time.Duration // after that it came into the outbox
	cancelled bool
}

// openTx is a transaction on behalf of an organization that is held open.
type openTx struct {
	org  uuid.UUID
	do   chan func(*db.OrgTx) error
	did  chan error
	end  chan error // nil commits
	done chan error
	made []*modelEvent
}

// newMachine empties the database.
func newMachine(w world, rt *rapid.T, conn *pgx.Conn, orgs []uuid.UUID) *machine {
	m := &machine{world: w, conn: conn, orgs: orgs, model: bustest.NewModel(modelLease), suspended: make(map[uuid.UUID]bool), stopped: make(map[string]bool)}
	for _, table := range []string{
		"event_log", "outbox", "event_position", "delivery", "receipt", "dead_delivery", "frozen_body", "paused_lane", "waiting_job", "discarded_job", "webhook_subscriptions", "consumers", "audit_log",
	} {
		m.must(rt, m.try("delete from "+table))
	}
	m.must(rt, m.try("update relay_state set last_seq = 0, last_organization = default"), m.try("update organizations set status = 'active', suspended_at = null"))
	m.add(rt, bus.WebhookDispatch, bus.OrderingNone)
	m.add(rt, "first-worker", bus.OrderingNone, "custom.a", "custom.b", jobCommand)
	m.add(rt, "keyed-worker", bus.OrderingKey, "custom.a", "lead.won", jobCommand)
	m.add(rt, "strict-worker", bus.OrderingStrict, "custom.a", "custom.b", jobCommand)
	return m
}

func (m *machine) close() {
	for _, tx := range m.open {
		tx.end <- errRolledBack
		if err := <-tx.done; !errors.Is(err, errRolledBack) {
			m.Error(err)
		}
	}
}

func (m *machine) must(rt *rapid.T, errs ...error) {
	rt.Helper()
	if err := errors.Join(errs...); err != nil {
		rt.Fatal(err)
	}
}

func (m *machine) try(sql string, args ...any) error {
	_, err := m.conn.Exec(m.Context(), sql, args...)
	return err
}

func (m *machine) inOrg(org uuid.UUID, fn func(tx *db.OrgTx) error) error {
	return m.db.InOrg(m.Context(), org, dbtest.Actor(), fn)
}

// choice draws one of several, or false when there is none.
func choice[T any](rt *rapid.T, label string, of []T) (T, bool) {
	if len(of) == 0 {
		var none T
		return none, false
	}
	return rapid.SampledFrom(of).Draw(rt, label), true
}

// compareSQL is everything there is of the bus, one line each.
const compareSQL = `
	with known as (
	    select consumer_id, destination, event_id, case when lease_token is null then 'pending' else 'processing' end as state, attempts, earlier_attempts as earlier,
	           suspect, crashes, effect_at is not null as begun, due_at = 'infinity' as waits, coalesce(last_error, '') as error,
	           round(extract(epoch from case when due_at < 'infinity' then due_at - now() else greatest(not_before - now(), interval '0') end) / 1800) as due
	      from delivery
	    union all
	    select consumer_id, destination, event_id, state, attempts, earlier_attempts, false, 0, false, false, last_error, 0
	      from dead_delivery where state in ('dead', 'uncertain', 'discarded')
	    union all
	    select r.consumer_id, u.destination, u.event_id, r.outcome, u.attempts, 0, false, 0, false, false, coalesce(r.reason, ''), 0
	      from receipt r cross join lateral unnest(r.event_ids, r.destinations, r.attempts) as u (event_id, destination, attempts)
	)
	select 'logged ' || id from event_log
	union all select 'outbox ' || row_number() over (order by emit_no) || ' ' || event_id from outbox
	union all select 'place ' || seq || ' ' || event_id from event_position
	union all
	select format('%s for %s at %s: %s %s+%s %s %s %s %s %s %s', k.event_id, c.name, k.destination, k.state, k.attempts, k.earlier, k.suspect, k.crashes, k.begun, k.waits, k.due, k.error)
	  from known k join consumers c on c.id = k.consumer_id`

// compare fails when the database and the model differ in anything, or there is
// disorder.
func (m *machine) compare(rt *rapid.T) {
	rows, _ := m.conn.Query(m.Context(), compareSQL+` union all `+disorderSQL, m.orgs) // its error comes back from rows
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	m.must(rt, err)
	want := []string{}
	for _, ev := range m.log {
		want = append(want, "logged "+ev.id.String())
	}
	for i, ev := range m.outbox {
		want = append(want, fmt.Sprintf("outbox %d %s", i+1, ev.id))
	}
	for i, id := range m.places {
		want = append(want, fmt.Sprintf("place %d %s", i+1, id))
	}
	for _, r := range m.model.Rows() {
		want = append(want, m.line(r))
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		rt.Fatalf("the database is not as the model (-model +database):\n%s", diff)
	}
}

// line is a delivery as compareSQL prints it. What has ended has no more to tell
// than its attempts. Times are in half hours: the test itself takes seconds.
func (m *machine) line(r *bustest.Row) string {
	earlier, suspect, crashes, begun, due := r.Earlier, r.Suspect, r.Crashes, r.Begun, m.model.DueIn(r)/(30*time.Minute)
	if !r.Unfinished() {
		suspect, crashes, begun, due = false, 0, false, 0
	}
	if r.Status == "done" || r.Status == "skipped" || r.Dropped {
		earlier = 0
	}
	flag := map[bool]string{true: "t", false: "f"}
	return fmt.Sprintf("%s for %s at %s: %s %d+%d %s %d %s %s %d %s", r.Event, r.Consumer, r.Destination, r.Status, r.Attempts, earlier,
		flag[suspect], crashes, flag[begun], flag[r.Waits()], due, r.LastError)
}

// emit emits in a transaction that is open, or in a new one.
func (m *machine) emit(rt *rapid.T) {
	n := rapid.IntRange(0, 2).Draw(rt, "transaction")
	for len(m.open) <= n && len(m.open) < 3 {
		m.open = append(m.open, m.begin(rapid.SampledFrom(m.orgs).Draw(rt, "organization")))
	}
	m.write(rt, m.open[min(n, len(m.open)-1)])
}

// emitAtOnce emits in a transaction of its own.
func (m *machine) emitAtOnce(rt *rapid.T) {
	tx := m.begin(rapid.SampledFrom(m.orgs).Draw(rt, "organization"))
	m.open = append(m.open, tx)
	m.write(rt, tx)
	m.end(rt, len(m.open)-1, nil)
}

func (m *machine) write(rt *rapid.T, tx *openTx) {
	m.acts++
	ev := &modelEvent{org: tx.org, at: m.acts}
	ev.typ = rapid.SampledFrom([]bus.Type{"custom.a", "custom.a", "custom.b", "lead.won", "message.received"}).Draw(rt, "type")
	ev.key = rapid.SampledFrom(orderKeys).Draw(rt, "key")
	tx.do <- func(t *db.OrgTx) error {
		made, err := t.Emit(m.Context(), db.NewEvent{Type: ev.typ, EntityKind: "thing", Metadata: ev.metadata()})
		ev.id = made.ID
		return err
	}
	m.must(rt, <-tx.did)
	tx.made = append(tx.made, ev)
}

func (m *machine) begin(org uuid.UUID) *openTx {
	tx := &openTx{org: org, do: make(chan func(*db.OrgTx) error), did: make(chan error), end: make(chan error), done: make(chan error)}
	go func() {
		tx.done <- m.inOrg(org, func(t *db.OrgTx) error {
			for {
				select {
				case f := <-tx.do:
					tx.did <- f(t)
				case err := <-tx.end:
					return err
				}
			}
		})
	}()
	return tx
}

// end ends an open transaction.
func (m *machine) end(rt *rapid.T, i int, how error) {
	tx := m.open[i]
	m.open = slices.Delete(m.open, i, i+1)
	tx.end <- how
	if err := <-tx.done; !errors.Is(err, how) {
		rt.Fatal(err)
	}
	if how == nil {
		m.log, m.outbox = append(m.log, tx.made...), append(m.outbox, tx.made...)
		slices.SortStableFunc(m.outbox, func(a, b *modelEvent) int { return a.at - b.at })
	}
}

func (m *machine) endOne(rt *rapid.T, how error) {
	if len(m.open) > 0 {
		m.end(rt, rapid.IntRange(0, len(m.open)-1).Draw(rt, "transaction"), how)
	}
}

func (m *machine) commit(rt *rapid.T) { m.endOne(rt, nil) }

var errRolledBack = errors.New("rolled back")

func (m *machine) rollBack(rt *rapid.T) { m.endOne(rt, errRolledBack) }

func (m *machine) relaySome(rt *rapid.T) { m.relayed(rt, rapid.IntRange(1, 3).Draw(rt, "events")) }

func (m *machine) relayAll(rt *rapid.T) { m.relayed(rt, 1000) }

func (m *machine) relayed(rt *rapid.T, limit int) {
	m.startJobs(limit)
	var n int
	m.must(rt, m.conn.QueryRow(m.Context(), "select relay_events($1)", limit).Scan(&n))
	if want := min(limit, len(m.outbox)); n != want {
		rt.Fatalf("relayed %d events, want %d", n, want)
	}
	for _, ev := range m.takeTurns(limit) {
		if !slices.Contains(m.places, ev.id) {
			m.places = append(m.places, ev.id)
			m.deliver(ev)
			if ev.cancelled {
				m.model.Cancelled(ev.id, cancelReason)
			}
		}
	}
}

// deliver adds what the relay makes of an event.
func (m *machine) deliver(ev *modelEvent) {
	for _, r := range m.readers() {
		if r.reads(ev) && *r.began < ev.at {
			m.addDelivery(r, ev, ev.late)
		}
	}
}

// restoreOutbox puts an event into the outbox that has its place already.
func (m *machine) restoreOutbox(rt *rapid.T) {
	id, ok := choice(rt, "event", m.places)
	if !ok {
		return
	}
	m.must(rt, m.try(`insert into outbox (event_id, organization_id, event_type, created_at)
		select id, organization_id, event_type, created_at from event_log where id = $1`, id))
	m.acts++
	first := m.log[slices.IndexFunc(m.log, func(ev *modelEvent) bool { return ev.id == id })]
	m.outbox = append(m.outbox, &modelEvent{id: id, org: first.org, typ: first.typ, at: m.acts})
}
