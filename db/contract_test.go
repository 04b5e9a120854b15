package db_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// sqlEvent is what claim_events says of an event beside the event itself.
type sqlEvent struct {
	ID         uuid.UUID
	EventType  string
	Attempts   int
	DeliveryID uuid.UUID
	LeaseToken int64
}

func workerName() string {
	return "t" + strings.ReplaceAll(uuid.NewString(), "-", "")[:20] + "-worker"
}

// worker registers a reader by the SQL contract.
func (w world) worker(types ...bus.Type) string {
	w.Helper()
	name := workerName()
	w.exec("select register_consumer($1, $2)", name, types)
	return name
}

func (w world) claimEvents(worker string, types []bus.Type, limit int) []sqlEvent {
	w.Helper()
	conn := dbtest.Conn(w.T, w.url)
	rows, err := conn.Query(w.Context(), "select id, event_type, attempts, delivery_id, lease_token from claim_events($1, $2, $3)", worker, types, limit)
	if err != nil {
		w.Fatal(err)
	}
	events, err := pgx.CollectRows(rows, pgx.RowToStructByName[sqlEvent])
	if err != nil {
		w.Fatal(err)
	}
	return events
}

// claimOne emits an event of a type and claims it.
func (w world) claimOne(worker string, typ bus.Type) sqlEvent {
	w.Helper()
	id := w.emit(typ)
	w.relay()
	events := w.claimEvents(worker, nil, 10)
	if len(events) != 1 || events[0].ID != id {
		w.Fatalf("claimed %+v, want the event just emitted", events)
	}
	return events[0]
}

// refusal runs a statement and returns the code and the text of its refusal.
func (w world) refusal(sql string, args ...any) string {
	w.Helper()
	_, err := dbtest.Exec(w.T, w.url, sql, args...)
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		w.Fatalf("%s %v = %v, want a refusal", sql, args, err)
	}
	return pg.Code + " " + pg.Message
}

// bus is everything that the bus keeps of the organization, to see that it is left alone.
func (w world) bus() string {
	w.Helper()
	var kept string
	err := dbtest.Row(w.T, w.url, `
		select concat_ws(E'\n', (select string_agg(d::text, E'\n' order by d::text) from delivery d where organization_id = $1),
		       (select string_agg(d::text, E'\n' order by d::text) from dead_delivery d where organization_id = $1),
		       (select string_agg(r::text, E'\n' order by r::text) from receipt r where organization_id = $1),
		       (select string_agg(a::text, E'\n' order by a::text) from audit_log a where organization_id = $1))`, []any{w.org}, &kept)
	if err != nil {
		w.Fatal(err)
	}
	return kept
}

// status is an event's line in event_log_status, in short.
func (w world) status(event uuid.UUID) string {
	w.Helper()
	var line string
	err := dbtest.Row(w.T, w.url, `
		select concat_ws(' ', status, attempts, cardinality(consumed_by), coalesce(last_error, '-'), next_attempt_at is not null)
		  from event_log_status where id = $1`, []any{event}, &line)
	if err != nil {
		w.Fatal(err)
	}
	return line
}

func TestRegisteredWorkerHasTheDefaultLadder(t *testing.T) {
	t.Parallel()
	w := setup(t)
	name := w.worker(ownType())
	var got bus.RetryPolicy
	var effect bus.Effect
	err := dbtest.Row(t, w.url, "select retry_steps, retry_jitter, max_attempts, effect from consumers where name = $1", []any{name},
		&got.Steps, &got.Jitter, &got.MaxAttempts, &effect)
	if err != nil {
		t.Fatal(err)
	}
	got.Jitter = float64(int(got.Jitter*1000+0.5)) / 1000 // the column is a real
	if diff := cmp.Diff(bus.DefaultRetry(), got); diff != "" || effect != bus.EffectAtLeastOnce {
		t.Errorf("the worker's effect is %s and its ladder is not the default one (-want +got):\n%s", effect, diff)
	}
}

func TestRegisterConsumerRefusesWhatIsMalformedOrTaken(t *testing.T) {
	t.Parallel()
	w := setup(t)
	taken := w.consumer(ownType())
	good := []string{"custom.x"}
	cases := map[string]struct {
		name  any
		types []string
		since any
		want  string
	}{
		"no name":             {nil, good, time.Now(), "22023 p_worker: "},
		"a name without end":  {"crm", good, time.Now(), "22023 p_worker: "},
		"a name in capitals":  {"Crm-worker", good, time.Now(), "22023 p_worker: "},
		"a name too long":     {strings.Repeat("a", 60) + "-worker", good, time.Now(), "22023 p_worker: "},
		"a handler's name":    {taken, good, time.Now(), "42501 p_worker: "},
		"the webhooks' name":  {bus.WebhookDispatch, good, time.Now(), "42501 p_worker: "},
		"no types":            {workerName(), nil, time.Now(), "22023 p_event_types: "},
		"an empty list":       {workerName(), []string{}, time.Now(), "22023 p_event_types: "},
		"a pattern of types":  {workerName(), []string{"custom.*"}, time.Now(), "22023 p_event_types: "},
		"one type of two bad": {workerName(), []string{"custom.x", "CustomX"}, time.Now(), "22023 p_event_types: "},
		"no instant":          {workerName(), good, nil, "22023 p_since: "},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := world{T: t, db: w.db, url: w.url, org: w.org}
			const kept = "select count(*) from consumers where name = $1 and (external or event_types = $2)"
			before := w.count(kept, tt.name, tt.types)
			if got := w.refusal("select register_consumer($1, $2, $3)", tt.name, tt.types, tt.since); !strings.HasPrefix(got, tt.want) {
				t.Errorf("refused by %q, want %q", got, tt.want)
			}
			if after := w.count(kept, tt.name, tt.types); after != before {
				t.Errorf("%d rows of the name, %d before", after, before)
			}
		})
	}
}

func TestWorkerReceivesWhatIsEmittedFromItsInstantOn(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ, later := ownType(), ownType()
	w.emit(typ)
	var between time.Time
	if err := dbtest.Row(t, w.url, "select clock_timestamp()", nil, &between); err != nil {
		t.Fatal(err)
	}
	second := w.emit(typ)
	w.emit(later)
	w.relay()
	fromNow, fromThen := w.worker(typ), workerName()
	w.exec("select register_consumer($1, $2, $3)", fromThen, []bus.Type{typ}, between)
	third := w.emit(typ)
	w.relay()
	if got := w.claimEvents(fromNow, nil, 10); len(got) != 1 || got[0].ID != third {
		t.Errorf("registered now: claimed %+v, want only what came after", got)
	}
	if got := w.claimEvents(fromThen, nil, 10); len(got) != 2 || got[0].ID != second || got[1].ID != third {
		t.Errorf("registered from between: claimed %+v, want the second and the third event", got)
	}

	w.exec("select register_consumer($1, $2, $3)", fromThen, []bus.Type{later}, between)
	w.emit(typ)
	last := w.emit(later)
	w.relay()
	if got := w.claimEvents(fromThen, nil, 10); len(got) != 1 || got[0].ID != last {
		t.Errorf("with other types: claimed %+v, want only an event of them and nothing twice", got)
	}
}

func TestClaimEventsNarrowsByTypeAndTellsTheIdentity(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a, b := ownType(), ownType()
	worker := w.worker(a, b)
	setup(t).emit(a) // whose turn it would be, with another type
	first, second := w.emit(a), w.emit(b)
	w.relay()
	got := w.claimEvents(worker, []bus.Type{b}, 1)
	if len(got) != 1 || got[0].ID != second || got[0].DeliveryID != bus.DeliveryID(second, worker, uuid.Nil) || got[0].Attempts != 1 || got[0].LeaseToken == 0 {
		t.Fatalf("claimed %+v, want the event of the type, under its delivery's id", got)
	}
	if again := w.claimEvents(worker, nil, 10); len(again) != 2 || again[1].ID != first {
		t.Errorf("claimed %+v, want what is left", again)
	}
	if n := w.count("select count(*) from delivery where organization_id = $1 and due_at between now() + interval '4 min' and now() + interval '5 min'", w.org); n != 2 {
		t.Errorf("%d leases of five minutes, want 2", n)
	}
}

// A crashed batch comes back one by one, whatever its types.
func TestClaimEventsHandsSuspectsOutAlone(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a, b := ownType(), ownType()
	worker := w.worker(a, b)
	w.emit(a)
	w.emit(a)
	second := w.emit(b)
	w.relay()
	w.claimEvents(worker, nil, 10)
	w.later(time.Hour)
	w.claimEvents(worker, nil, 10) // finds the crash
	fresh := w.emit(b)
	w.relay()
	got := w.claimEvents(worker, []bus.Type{b}, 10)
	if len(got) != 1 || got[0].ID != second || got[0].Attempts != 1 {
		t.Fatalf("claimed %+v, want the suspect of the type alone and its crash not counted", got)
	}
	if got := w.claimEvents(worker, nil, 10); len(got) != 1 || got[0].ID != fresh {
		t.Errorf("claimed %+v, want no second suspect while one is in hand", got)
	}
	w.exec("select ack_event($1, $2)", second, worker)
	third := w.claimEvents(worker, nil, 10)
	if len(third) != 1 {
		t.Fatalf("claimed %+v, want one suspect", third)
	}
	w.exec("select nack_event($1, $2, 'broken')", third[0].ID, worker)
	if n := w.count("select count(*) from delivery where organization_id = $1 and suspect", w.org); n != 1 {
		t.Errorf("%d suspects, want only the one that has not been tried", n)
	}
}

func TestClaimEventsGivesOrganizationsTurns(t *testing.T) {
	t.Parallel()
	a, b := setup(t), setup(t)
	typ, other := ownType(), ownType()
	worker := a.worker(typ, other)
	for range 6 {
		a.emit(typ)
	}
	b.emit(other)
	quiet := b.emit(typ)
	a.relay()
	for _, types := range [][]bus.Type{{typ}, nil} {
		got := a.claimEvents(worker, types, 2)
		if len(got) != 2 || got[0].ID == quiet == (got[1].ID == quiet) && types != nil {
			t.Errorf("claimed %+v of %v, want one of each organization", got, types)
		}
	}
	if n := a.count("select count(*) from delivery where organization_id = $1 and lease_token is not null", b.org); n != 2 {
		t.Errorf("%d of the quiet organization's events were claimed, want both", n)
	}
	b.exec("update organizations set status = 'suspended', suspended_at = now() where id = $1", a.org)
	if got := a.claimEvents(worker, []bus.Type{typ}, 10); len(got) != 0 {
		t.Errorf("claimed %+v of a suspended organization", got)
	}
}

// What is refused changes nothing: not the delivery, its lease or its attempts.
func TestContractRefusesWhatIsNotHeld(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ, goType := ownType(), ownType()
	worker, other, goConsumer := w.worker(typ), w.worker(typ), w.consumer(goType)
	waiting := w.emit(typ)
	ofGo := w.emit(goType)
	w.relay()
	held := w.claimEvents(worker, nil, 10)[0]
	w.claim(goConsumer, 10)
	expired := w.worker(goType)
	w.exec("select register_consumer($1, $2)", expired, []bus.Type{goType})
	lapsed := w.claimOne(expired, goType)
	w.exec(`update delivery set due_at = clock_timestamp() - interval '1 second'
		where organization_id = $1 and consumer_id = (select id from consumers where name = $2)`, w.org, expired)

	cases := map[string]struct {
		event  any
		worker any
		token  any
		want   string
	}{
		"a stale token":                    {held.ID, worker, held.LeaseToken - 1, "55000 p_token: "},
		"another worker's lease":           {waiting, other, nil, "55000 p_event_id: "},
		"another worker's token":           {held.ID, other, held.LeaseToken, "55000 p_event_id: "},
		"an expired lease without a token": {lapsed.ID, expired, nil, "55000 p_event_id: "},
		"an event that there is not":       {uuid.New(), worker, nil, "55000 p_event_id: "},
		"no event":                         {nil, worker, nil, "55000 p_event_id: "},
		"a worker that there is not":       {held.ID, workerName(), nil, "P0002 p_worker: "},
		"no worker":                        {held.ID, nil, nil, "P0002 p_worker: "},
		"a handler's delivery":             {ofGo, goConsumer, nil, "42501 p_worker: "},
	}
	before := w.bus()
	for name, tt := range cases {
		for _, call := range []string{"select ack_event($1, $2, $3)", "select nack_event($1, $2, 'broken', $3)"} {
			if got := w.refusal(call, tt.event, tt.worker, tt.token); !strings.HasPrefix(got, tt.want) {
				t.Errorf("%s: %s: refused by %q, want %q", name, call, got, tt.want)
			}
		}
	}
	for call, want := range map[string]string{
		fmt.Sprintf("select claim_events('%s')", goConsumer):                  "42501 p_worker: ",
		fmt.Sprintf("select claim_events('%s', null, 0)", worker):             "22023 p_limit: ",
		fmt.Sprintf("select extend_lease('%s')", goConsumer):                  "42501 p_worker: ",
		fmt.Sprintf("select reprocess_event('%s', '%s')", held.ID, worker):    "55000 p_event_id: ",
		"select reprocess_event(null)":                                        "22023 p_event_id: ",
		fmt.Sprintf("select reprocess_event('%s')", held.ID):                  "55000 p_event_id: ",
		fmt.Sprintf("select reprocess_event('%s', 'no-worker')", held.ID):     "P0002 p_worker: ",
		fmt.Sprintf("select discard_event('%s', '%s', 'x')", held.ID, worker): "55000 p_event_id: ",
		fmt.Sprintf("select discard_event('%s', '%s', ' ')", held.ID, worker): "22023 p_reason: ",
		fmt.Sprintf("select discard_event('%s', null, 'x')", held.ID):         "22023 p_worker: ",
	} {
		if got := w.refusal(call); !strings.HasPrefix(got, want) {
			t.Errorf("%s: refused by %q, want %q", call, got, want)
		}
	}
	if diff := cmp.Diff(before, w.bus()); diff != "" {
		t.Errorf("what was refused has changed rows (-before +after):\n%s", diff)
	}
	w.exec("select ack_event($1, $2, $3)", lapsed.ID, expired, lapsed.LeaseToken) // nobody else has it
}

func TestExtendLeaseRenewsWhatHasNotRunOut(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	worker := w.worker(typ)
	first := w.claimOne(worker, typ)
	w.later(time.Hour)
	second := w.emit(typ)
	w.relay()
	w.claimEvents(worker, nil, 1) // frees the first
	w.exec("update delivery set due_at = clock_timestamp() + interval '1 second' where event_id = $1", second)
	if n := w.count("select extend_lease($1)", worker); n != 1 {
		t.Errorf("extended %d leases, want the one that runs", n)
	}
	if n := w.count("select count(*) from delivery where event_id = any ($1) and due_at > now() + interval '4 min'", []uuid.UUID{first.ID, second}); n != 1 {
		t.Errorf("%d leases are long, want 1", n)
	}
	w.later(time.Hour)
	if n := w.count("select extend_lease($1)", worker); n != 0 {
		t.Errorf("extended %d leases that had run out", n)
	}
}

func TestNackClimbsTheLadderOfTheRowAndBuries(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	worker := w.worker(typ)
	w.exec("update consumers set retry_steps = '{1 hour,3 hours}', retry_jitter = 0, max_attempts = 3 where name = $1", worker)
	ev := w.claimOne(worker, typ)
	for i, want := range []int{1, 3} {
		w.exec("select nack_event($1, $2, $3)", ev.ID, worker, strings.Repeat("é", 5000))
		if got := w.count("select round(extract(epoch from due_at - updated_at) / 3600)::int from delivery where event_id = $1 and lease_token is null", ev.ID); got != want {
			t.Errorf("attempt %d waits %d hours, want %d", i+1, got, want)
		}
		w.later(4 * time.Hour)
		if got := w.claimEvents(worker, nil, 1); len(got) != 1 || got[0].Attempts != i+2 {
			t.Fatalf("claimed %+v, want attempt %d", got, i+2)
		}
	}
	w.exec("select nack_event($1, $2, null)", ev.ID, worker)
	if got := w.status(ev.ID); got != "dead 3 0 the worker gave no reason f" {
		t.Errorf("status = %q", got)
	}
	if n := w.count(`select count(*) from dead_delivery where delivery_id = $1 and payload = '{"n":1}' and event_type = $2 and state = 'dead'`, ev.DeliveryID, typ); n != 1 {
		t.Error("the dead delivery has no copy of its event")
	}
}

func TestProgramTakesANameOver(t *testing.T) {
	t.Parallel()
	w := setup(t)
	name := w.worker(ownType())
	c := bus.Consumer{Name: name, Types: []bus.Type{ownType()}, Effect: bus.EffectOnce, Retry: bus.DefaultRetry()}
	if err := w.db.RegisterConsumers(t.Context(), []bus.Consumer{c}); err != nil {
		t.Fatal(err)
	}
	if got := w.refusal("select claim_events($1)", name); !strings.HasPrefix(got, "42501 p_worker: ") {
		t.Errorf("refused by %q, want that the name is the program's", got)
	}
}

func TestContractIsForWhoWasGrantedIt(t *testing.T) {
	t.Parallel()
	conn := dbtest.Conn(t, dbtest.Fresh(t))
	var open []string
	err := conn.QueryRow(t.Context(), `
		select coalesce(array_agg(p.proname::text), '{}') from pg_proc p
		 where p.pronamespace = 'public'::regnamespace
		   and p.proname in ('external_worker', 'register_consumer', 'claim_events', 'held_delivery', 'ack_event', 'nack_event', 'extend_lease',
		                     'decide_dead', 'reprocess_event', 'discard_event', 'lock_by_turns', 'lock_fitting', 'lock_flows', 'lock_suspect',
		                     'lease_deliveries', 'free_lapsed', 'waiting_flows', 'due_flows', 'flows_between', 'fits')
		   and has_function_privilege('deskcomm_api', p.oid, 'execute')`).Scan(&open)
	if err != nil || len(open) > 0 {
		t.Errorf("the role of the API may call %v, %v, want none", open, err)
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"grant execute on function register_consumer, claim_events to deskcomm_api", // as any role without a right to the tables
		"set local role deskcomm_api",
		"select register_consumer('granted-worker', '{custom.x}')",
		"select claim_events('granted-worker')",
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Errorf("%s: %v, want it to be enough", sql, err)
		}
	}
}
