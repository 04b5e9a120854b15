package db_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

func TestTheTypeOfAnEventDecidesOverItsClass(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.url = dbtest.Fresh(t) // whoever reads these types on the shared clone would get them
	w.db = dbtest.Open(t, w.url, db.Options{})
	w.org = dbtest.Org(t, w.db)
	want := map[bus.Type]bool{
		"message.received": true, "message.send_requested": true, "ai.handoff_triggered": true,
		"message.sent": false, "contact.created": false, "custom.happened": false,
	}
	var types []bus.Type
	for typ := range want {
		types = append(types, typ)
	}
	consumer := w.consumer(types...)
	for _, typ := range types {
		w.emit(typ)
	}
	w.relay()
	claimed := w.claim(consumer, len(want)+1)
	for _, d := range claimed {
		if d.Interactive != want[d.Event.Type] {
			t.Errorf("%s is interactive: %t, want %t", d.Event.Type, d.Interactive, want[d.Event.Type])
		}
	}
	if len(claimed) != len(want) {
		t.Errorf("claimed %d deliveries, want %d", len(claimed), len(want))
	}
}

// patient keeps bulk until it is told to end, and tells of what is interactive.
type patient struct {
	started chan struct{}
	handled chan uuid.UUID
}

func (patient) Consumer() bus.Consumer {
	return bus.Consumer{
		Name: "patient-worker", Types: []bus.Type{bus.MessageReceived}, Effect: bus.EffectAtLeastOnce,
		Retry: bus.Ladder([]time.Duration{time.Hour}), Concurrency: 8, Timeout: time.Hour,
	}
}

func (h patient) Handle(ctx context.Context, d *bus.Delivery) error {
	if d.Interactive {
		h.handled <- d.Event.ID
		return nil
	}
	h.started <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

func TestAnInteractiveEventIsHandledWhileAHundredThousandOfItsOrganizationHang(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	w := world{T: t, db: d, url: url, org: dbtest.Org(t, d)}
	h := patient{started: make(chan struct{}, 100), handled: make(chan uuid.UUID, 100)}
	if err := d.RegisterConsumers(t.Context(), []bus.Consumer{h.Consumer()}); err != nil {
		t.Fatal(err)
	}
	w.exec(backlogSQL, h.Consumer().Name, w.org, w.emit("custom.other"), 100_000)

	wake := make(chan struct{}, 1)
	drainer := bus.Drainer{
		Log: d, Handlers: []bus.Handler{h}, Poll: time.Hour, Wake: wake, Logger: slog.New(slog.DiscardHandler),
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- drainer.Run(ctx) }()
	dbtest.Eventually(t, "all slots are taken by bulk", func() bool { return len(h.started) == h.Consumer().Concurrency })
	for range 3 {
		want := w.emit(bus.MessageReceived)
		w.relay()
		wake <- struct{}{}
		dbtest.Eventually(t, "the interactive event is handled", func() bool { return len(h.handled) > 0 })
		if got := <-h.handled; got != want {
			t.Errorf("handled %s, want %s", got, want)
		}
	}
	if held := w.count("select count(*) from delivery where lease_token is not null and not interactive"); held != h.Consumer().Concurrency {
		t.Errorf("%d bulk deliveries are in hand, want the %d slots of the concurrency", held, h.Consumer().Concurrency)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run() = %v", err)
	}
}

func TestContractClaimsInteractiveFirstAndOneOfEightIsBulk(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	worker := w.worker(typ)
	var bulk, interactive []uuid.UUID
	for range 10 {
		bulk = append(bulk, w.emit(typ))
	}
	for range 60 {
		interactive = append(interactive, w.emit(typ))
	}
	w.relay()
	w.exec("update delivery set interactive = true where event_id = any ($1)", interactive)

	var got []uuid.UUID
	for _, e := range w.claimEvents(worker, nil, 8) {
		got = append(got, e.ID)
	}
	want := slices.Concat(interactive[:7], bulk[:1])
	if !slices.Equal(got, want) {
		t.Errorf("claimed %v, want seven interactive ones and then one of bulk: %v", got, want)
	}
	narrowed := w.claimEvents(worker, []bus.Type{typ}, 8)
	if len(narrowed) != 8 || !slices.Contains(bulk, narrowed[7].ID) || !slices.Contains(interactive, narrowed[6].ID) {
		t.Errorf("claimed %v by type, want the same of them", narrowed)
	}
	first := 0
	for n := 1; n <= 40 && first == 0; n++ {
		if e := w.claimEvents(worker, nil, 1); len(e) == 1 && slices.Contains(bulk, e[0].ID) {
			first = n
		}
	}
	if first == 0 { // by chance once in two hundred
		t.Error("forty claims of one event gave no bulk")
	}
}

// lockSQL are the functions that find what a claim takes, each as the claim calls
// it when many slots are free and when only express slots are.
func lockSQL() map[string]string {
	const none = "'00000000-0000-0000-0000-000000000000'"
	fitting := "select lock_fitting(array[c.name], '{%d}', '{4}', '{%d}', '{4}', array[c.name], array[o], array[" + none + "::uuid], '{%d}', true) from consumers c"
	return map[string]string{
		"all slots":          fmt.Sprintf(fitting, 16, 4, 0),
		"one slot":           fmt.Sprintf(fitting, 1, 4, 15),
		"express slots only": fmt.Sprintf(fitting, 0, 0, 20),
		"who has work": "select count(f) from consumers c cross join waiting_flows(array[c.name], array[" + none +
			"::uuid], array[gen_random_uuid()], '{24}', '{0}', 1) f",
		"of one flow":  "select lock_flows(array[c.id], '{false}', array[o], array[" + none + "::uuid], '{16}') from consumers c",
		"by due time":  "select lock_due(c.id, 16) from consumers c",
		"by turns":     "select lock_by_turns(c.id, 16, '{*}') from consumers c",
		"of a suspect": "select lock_suspect(array[c.name], '{16}', '{4}', '{4}', '{}', '{}', '{}', '{*}') from consumers c",
	}
}

// Whatever the planner believes of the table, a claim must read as little of a
// large backlog as of a small one, on its way to what is interactive too.
func TestLocksOfAClaimReadNoMoreOfALargerBacklog(t *testing.T) {
	t.Parallel()
	for name, analyzeLast := range map[string]bool{"statistics of an empty table": false, "statistics of a full table": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			small, large := lockWorld(t, 500, analyzeLast), lockWorld(t, 50_000, analyzeLast)
			for lock, sql := range lockSQL() {
				few, many := small.blocksRead(sql), large.blocksRead(sql)
				if many > few+few/2+20 {
					t.Errorf("%s: reads %d blocks of a large backlog, and %d of a small one", lock, many, few)
				}
			}
		})
	}
}

// Looking at a share of each of many organizations costs as much as they have
// waiting, for a few of each that are taken.
func TestAClaimOfManyOrganizationsLooksAtFewOfEach(t *testing.T) {
	t.Parallel()
	crowd := func(each int) world {
		t.Helper()
		w := lockWorld(t, each, false)
		name, event := w.text("select max(name) from consumers"), w.emit(ownType())
		for range 60 {
			w.exec(backlogSQL, name, dbtest.Org(t, w.db), event, each)
		}
		return w
	}
	const sql = `
		select count(f) from waiting_flows((select array[max(name)] from consumers), array['00000000-0000-0000-0000-000000000000'::uuid],
			array['00000000-0000-0000-0000-000000000000'::uuid], '{400}', '{0}', 1) f`
	small, large := crowd(20), crowd(1000)
	visited := func(w world) (n int) {
		t.Helper()
		err := pgx.BeginFunc(t.Context(), dbtest.Conn(t, w.url), func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), visitedSQL, "delivery").Scan(&n)
		})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if few, many := visited(small), visited(large); many > 2*few {
		t.Errorf("visits %d rows where each has 1000 waiting, and %d where each has 20", many, few)
	}
}

// lockWorld has one consumer with a backlog of bulk and a few interactive
// deliveries, all of one organization and destination.
func lockWorld(t *testing.T, backlog int, analyzeLast bool) world {
	t.Helper()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	w := world{T: t, db: d, url: url, org: dbtest.Org(t, d)}
	name := w.consumer(ownType())
	w.exec("alter table delivery set (autovacuum_enabled = off)")
	w.exec("vacuum analyze delivery")
	event := w.emit(ownType())
	w.exec(backlogSQL, name, w.org, event, 10)
	w.exec("update delivery set interactive = true, seq = 2000000000 + seq, due_at = clock_timestamp()")
	w.exec(backlogSQL, name, w.org, event, backlog)
	if analyzeLast {
		w.exec("vacuum analyze delivery")
	}
	return w
}

// blocksRead is how many blocks a call reads that is not the first of its session.
func (w world) blocksRead(sql string) (blocks int) {
	w.Helper()
	conn := dbtest.Conn(w.T, w.url)
	sql = strings.ReplaceAll(sql, "array[o]", "array['"+w.org.String()+"'::uuid]")
	for range 3 {
		tx, err := conn.Begin(w.Context())
		if err != nil {
			w.Fatal(err)
		}
		for _, setting := range []string{"enable_sort", "enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit"} {
			if _, err := tx.Exec(w.Context(), "set local "+setting+" = off"); err != nil {
				w.Fatal(err)
			}
		}
		var plan []struct {
			Plan struct {
				Hit  int `json:"Shared Hit Blocks"`
				Read int `json:"Shared Read Blocks"`
			}
		}
		if err := tx.QueryRow(w.Context(), "explain (analyze, buffers, format json) "+sql).Scan(&plan); err != nil {
			w.Fatal(err)
		}
		if err := tx.Rollback(w.Context()); err != nil {
			w.Fatal(err)
		}
		blocks = plan[0].Plan.Hit + plan[0].Plan.Read
	}
	return blocks
}
