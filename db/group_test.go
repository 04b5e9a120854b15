package db_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// crowd is callers that emit at the same time. While its gate is closed both
// writers wait with one event each, and who comes then is gathered behind them.
type crowd struct {
	world
	gate  pgx.Tx
	calls sync.WaitGroup
}

// call is one emission of a crowd.
type call struct {
	org     uuid.UUID
	ev      db.NewEvent
	emitted db.Emitted
	err     error
}

func newCrowd(t *testing.T) *crowd {
	t.Helper()
	address := dbtest.Fresh(t)
	return crowdThrough(t, address, address)
}

// crowdThrough is a crowd whose callers reach the database at another address than
// the test.
func crowdThrough(t *testing.T, through, address string) *crowd {
	t.Helper()
	u, err := url.Parse(through)
	if err != nil {
		t.Fatal(err)
	}
	u.RawQuery += "&lock_timeout=0" // the gate may stay closed for long
	d := dbtest.Open(t, u.String(), db.Options{})
	return &crowd{world: world{T: t, db: d, url: address, org: dbtest.Org(t, d)}}
}

// shut closes the gate and lets one event arrive at it for each writer.
func (c *crowd) shut() {
	c.Helper()
	conn := dbtest.Conn(c.T, c.url)
	tx, err := conn.Begin(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	if _, err := tx.Exec(c.Context(), "lock table outbox in exclusive mode"); err != nil {
		c.Fatal(err)
	}
	c.gate = tx
	for n := 1; n <= 2; n++ {
		c.start(&call{org: c.org, ev: db.NewEvent{Type: "custom.first", EntityKind: "thing"}})
		dbtest.Eventually(c.T, "a writer is at the gate", func() bool { return c.waiting(conn.PgConn().PID(), "event_log") == n })
	}
}

// start makes calls in the background.
func (c *crowd) start(calls ...*call) {
	for _, one := range calls {
		c.calls.Go(func() { one.emitted, one.err = c.db.EmitGrouped(c.Context(), one.org, dbtest.Actor(), one.ev) })
	}
}

// gather makes calls and returns when all of them wait behind the gate.
func (c *crowd) gather(calls ...*call) {
	c.Helper()
	before := db.GroupWaiting(c.db)
	c.start(calls...)
	dbtest.Eventually(c.T, "all wait", func() bool { return db.GroupWaiting(c.db) == before+len(calls) })
}

// open opens the gate and returns when all calls have.
func (c *crowd) open() {
	c.Helper()
	if err := c.gate.Rollback(c.Context()); err != nil {
		c.Fatal(err)
	}
	c.calls.Wait()
}

func (c *crowd) good(n int) []*call {
	calls := make([]*call, n)
	for i := range calls {
		calls[i] = &call{org: c.org, ev: db.NewEvent{
			Type: "custom.grouped", EntityKind: "thing", EntityID: uuid.NullUUID{UUID: uuid.New(), Valid: true}, Payload: json.RawMessage(`{"n":1}`),
		}}
	}
	return calls
}

// wantEmitted fails the test unless each call was answered and its event stands
// once in the log and the outbox, as it was given.
func (c *crowd) wantEmitted(calls ...*call) {
	c.Helper()
	for i, one := range calls {
		if one.err != nil {
			c.Errorf("call %d = %v, want it emitted", i, one.err)
			continue
		}
		n := c.count(`
			select count(*) from event_log e join outbox o on o.event_id = e.id and o.organization_id = e.organization_id and o.event_type = e.event_type
			 where e.id = $1 and e.organization_id = $2 and e.entity_id = $3 and e.created_at = $4 and e.metadata ->> 'actor_kind' = 'system'`,
			one.emitted.ID, one.org, one.ev.EntityID, one.emitted.CreatedAt)
		if n != 1 {
			c.Errorf("call %d: %d rows of its event, want 1", i, n)
		}
	}
}

func TestWhoEmitsAtTheSameTimeSharesACommit(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	c.shut()
	calls := c.good(50)
	c.gather(calls...)
	c.open()
	c.wantEmitted(calls...)
	if n := c.count("select count(distinct xmin::text) from event_log where event_type = 'custom.grouped'"); n != 1 {
		t.Errorf("%d commits for who has gathered, want 1", n)
	}
}

// While writers are free nobody waits for others to come.
func TestALoneEmissionGoesAtOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for range 3 {
		ev, err := w.db.EmitGrouped(t.Context(), w.org, dbtest.Actor(), db.NewEvent{Type: "custom.alone", EntityKind: "thing"})
		if err != nil {
			t.Fatal(err)
		}
		if n := w.count("select count(*) from event_log where id = $1", ev.ID); n != 1 {
			t.Errorf("%d events, want 1", n)
		}
	}
}

func TestWhatIsAnsweredIsVisibleToOthers(t *testing.T) {
	t.Parallel()
	w := setup(t)
	other := dbtest.Conn(t, w.url)
	var turn sync.Mutex
	var callers sync.WaitGroup
	for range 64 {
		callers.Go(func() {
			for range 5 {
				ev, err := w.db.EmitGrouped(t.Context(), w.org, dbtest.Actor(), db.NewEvent{Type: "custom.visible", EntityKind: "thing"})
				if err != nil {
					t.Error(err)
					return
				}
				turn.Lock()
				var n int
				err = other.QueryRow(t.Context(), "select count(*) from event_log e join outbox o on o.event_id = e.id where e.id = $1", ev.ID).Scan(&n)
				turn.Unlock()
				if err != nil || n != 1 {
					t.Errorf("an answered event is seen %d times, %v", n, err)
				}
			}
		})
	}
	callers.Wait()
}

func TestOneBadEventAmongFiftyIsRefusedAloneAndAsByItself(t *testing.T) {
	t.Parallel()
	text := func(s string) map[string]json.RawMessage {
		return map[string]json.RawMessage{"order_key": json.RawMessage(s)}
	}
	for name, change := range map[string]func(*call){
		"a type in camel case":         func(c *call) { c.ev.Type = "LeadCreated" },
		"an entity kind with spaces":   func(c *call) { c.ev.EntityKind = "a lead" },
		"a payload that is a list":     func(c *call) { c.ev.Payload = json.RawMessage(`[]`) },
		"an order key that is no text": func(c *call) { c.ev.Metadata = text(`7`) },
		"an unknown organization":      func(c *call) { c.org = uuid.New() },
		"no organization":              func(c *call) { c.org = uuid.Nil },
		"a number beyond jsonb":        func(c *call) { c.ev.Payload = json.RawMessage(`{"a":1e200000}`) },
		"text that is no text":         func(c *call) { c.ev.Payload = json.RawMessage(`{"a":"\u0000"}`) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t)
			calls := c.good(50)
			bad := calls[31]
			change(bad)
			_, alone := c.db.Emit(t.Context(), bad.org, dbtest.Actor(), bad.ev)
			c.shut()
			c.gather(calls...)
			c.open()
			c.wantEmitted(slices.Concat(calls[:31], calls[32:])...)
			want, isField := errors.AsType[*bus.FieldError](alone)
			got, _ := errors.AsType[*bus.FieldError](bad.err)
			if diff := cmp.Diff(want, got); diff != "" || !isField {
				t.Errorf("refused with %v, and by itself with %v", bad.err, alone)
			}
			if n := c.count("select count(*) from event_log where entity_id = $1", bad.ev.EntityID); n != 0 {
				t.Errorf("%d events were refused and emitted", n)
			}
		})
	}
}

// Its handling has stopped; what it tells is kept until it goes on.
func TestASuspendedOrganizationsEventIsTakenAmongOthersAsByItself(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	suspended := dbtest.Org(t, c.db)
	if _, err := c.db.SuspendOrganization(t.Context(), dbtest.Actor(), suspended, "unpaid"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.db.Emit(t.Context(), suspended, dbtest.Actor(), db.NewEvent{Type: "custom.by_itself", EntityKind: "thing"}); err != nil {
		t.Fatalf("by itself: %v", err)
	}
	calls := c.good(10)
	calls[4].org = suspended
	c.shut()
	c.gather(calls...)
	c.open()
	c.wantEmitted(calls...)
}

func TestOrganizationsThatShareACommitSeeTheirOwn(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	calls := c.good(40)
	orgs := []uuid.UUID{c.org, dbtest.Org(t, c.db), dbtest.Org(t, c.db)}
	for i := range calls {
		calls[i].org = orgs[i%len(orgs)]
	}
	c.shut()
	c.gather(calls...)
	c.open()
	c.wantEmitted(calls...)
	for _, org := range orgs {
		err := c.db.InOrg(t.Context(), org, dbtest.Actor(), func(tx *db.OrgTx) error {
			for _, one := range calls {
				_, err := tx.Event(t.Context(), one.emitted.ID)
				if own := one.org == org; own && err != nil || !own && !errors.Is(err, bus.ErrNotFound) {
					t.Errorf("own %t: Event() = %v", own, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestWhoLeavesBeforeTheCommitEmitsNothingAndTakesNobodyAlong(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	c.shut()
	calls := c.good(20)
	c.gather(calls[:10]...)
	ctx, leave := context.WithCancel(t.Context())
	gone := c.good(1)[0]
	left := make(chan error)
	go func() {
		_, err := c.db.EmitGrouped(ctx, gone.org, dbtest.Actor(), gone.ev)
		left <- err
	}()
	dbtest.Eventually(t, "it waits", func() bool { return db.GroupWaiting(c.db) == 11 })
	c.gather(calls[10:]...)
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("who left got %v, want %v", err, context.Canceled)
	}
	c.open()
	c.wantEmitted(calls...)
	if n := c.count("select count(*) from event_log where entity_id = $1", gone.ev.EntityID); n != 0 {
		t.Errorf("%d events of who left before", n)
	}
}

func TestClosingAnswersWhoWaitsAndRefusesWhoComesLater(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	c.shut()
	calls := c.good(30)
	c.gather(calls...)
	closed := make(chan struct{})
	go func() {
		c.db.Close()
		close(closed)
	}()
	dbtest.Eventually(t, "nobody more is taken", func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := c.db.EmitGrouped(ctx, c.org, dbtest.Actor(), db.NewEvent{Type: "custom.late", EntityKind: "thing"})
		return errors.Is(err, bus.ErrUnavailable)
	})
	select {
	case <-closed:
		t.Error("closed while callers waited")
	default:
	}
	c.open()
	<-closed
	c.wantEmitted(calls...)
}

// A batch that loses a deadlock is tried again, and one that always does fails alone.
func TestWhatIsRolledBackForAnothersSakeIsTriedAgain(t *testing.T) {
	t.Parallel()
	for code, tries := range map[string]int{"40P01": 1, "40001": 2} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t)
			c.exec("create sequence tries")
			c.exec(fmt.Sprintf(`create function provoke() returns trigger language plpgsql as $$
				begin
				    if new.event_type = 'custom.always' or new.event_type = 'custom.grouped' and nextval('tries') <= %d then
				        raise exception 'provoked' using errcode = '%s';
				    end if;
				    return new;
				end $$`, tries, code))
			c.exec("create trigger provoke before insert on outbox for each row execute function provoke()")
			calls := c.good(21)
			calls[7].ev.Type = "custom.always"
			c.shut()
			c.gather(calls...)
			c.open()
			c.wantEmitted(slices.Concat(calls[:7], calls[8:])...)
			if !errors.Is(calls[7].err, bus.ErrUnavailable) {
				t.Errorf("what always fails = %v, want %v", calls[7].err, bus.ErrUnavailable)
			}
		})
	}
}

// What the server cannot do it is not asked for again for each event.
func TestATroubleOfTheServerIsToldToAllAtOnce(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	c.exec("create sequence tries")
	c.exec(`create function provoke() returns trigger language plpgsql as $$
		begin
		    if new.event_type = 'custom.grouped' then
		        perform nextval('tries');
		        raise exception 'provoked' using errcode = '53100';
		    end if;
		    return new;
		end $$`)
	c.exec("create trigger provoke before insert on outbox for each row execute function provoke()")
	calls := c.good(20)
	c.shut()
	c.gather(calls...)
	c.open()
	for _, one := range calls {
		if !errors.Is(one.err, db.ErrDiskFull) {
			t.Errorf("got %v, want %v", one.err, db.ErrDiskFull)
		}
	}
	if n := c.count("select last_value from tries"); n != 1 {
		t.Errorf("%d tries, want 1", n)
	}
}

// once is an emission under a key; its answer is the event's id.
func (c *crowd) once(org uuid.UUID, key, hash string) (answer string, again bool, err error) {
	a, again, err := c.db.EmitOnce(c.Context(), org, dbtest.Actor(), db.NewEvent{Type: "custom.once", EntityKind: "thing"}, db.Once{
		Endpoint: "POST /test", Key: key, Hash: []byte(hash),
		Answer: func(e db.Emitted) (db.Answer, error) {
			if strings.HasPrefix(key, "unanswerable") {
				return db.Answer{}, errors.New("there is no answer")
			}
			return db.Answer{Status: 201, Body: []byte(e.ID.String())}, nil
		},
	})
	return string(a.Body), again, err
}

func TestKeysOfOneCommitHaveTheSameEffectAsThoseOfMany(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	elsewhere := dbtest.Org(t, c.db)
	known, _, err := c.once(c.org, "known", "a")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.once(c.org, "of another", "a"); err != nil {
		t.Fatal(err)
	}
	c.exec("insert into idempotency_keys (organization_id, endpoint, key, request_hash, status_code, response, expires_at) values ($1, 'POST /test', 'expired', 'a', 201, 'x', now())", c.org)
	c.shut()
	var first, again, inFlight atomic.Int32
	fresh := make(chan string, 1)
	for range 8 {
		c.calls.Go(func() {
			switch answer, repeated, err := c.once(c.org, "same", "a"); {
			case errors.Is(err, db.ErrInFlight):
				inFlight.Add(1)
			case err != nil:
				t.Error(err)
			case repeated:
				again.Add(1)
			default:
				first.Add(1)
				fresh <- answer
			}
		})
	}
	want := func(org uuid.UUID, key, hash, answer string, repeated bool, refusal string) {
		c.calls.Go(func() {
			got, again, err := c.once(org, key, hash)
			if refusal != "" {
				if err == nil || !strings.Contains(err.Error(), refusal) {
					t.Errorf("%s: %v, want %q", key, err, refusal)
				}
				return
			}
			if err != nil || again != repeated || answer != "" && got != answer || uuid.Validate(got) != nil {
				t.Errorf("%s: answer %q, again %t, %v; want %q, %t", key, got, again, err, answer, repeated)
			}
		})
	}
	want(c.org, "known", "a", known, true, "")
	want(c.org, "of another", "b", "", false, "was used with another request")
	want(c.org, "expired", "a", "", false, "")
	want(elsewhere, "known", "a", "", false, "")
	want(c.org, "unanswerable", "a", "", false, "there is no answer")
	want(c.org, "", "a", "", false, "must have 1 to 255 characters")
	calls := c.good(5)
	c.start(calls...)
	dbtest.Eventually(t, "all wait", func() bool { return db.GroupWaiting(c.db) == 8+5+5 })
	c.open()
	c.wantEmitted(calls...)
	if first.Load() != 1 || again.Load()+inFlight.Load() != 7 {
		t.Errorf("%d first answers, %d repeated, %d in flight; want 1 and 7 others", first.Load(), again.Load(), inFlight.Load())
	}
	want(c.org, "same", "a", <-fresh, true, "")
	c.calls.Wait()
	if n := c.count("select count(*) from event_log where event_type = 'custom.once'"); n != 5 {
		t.Errorf("%d events, want 5: known in two organizations, of another, expired and same", n)
	}
	if n := c.count("select count(*) from idempotency_keys where expires_at > now() + interval '23 hours'"); n != 5 {
		t.Errorf("%d keys, want 5", n)
	}
}
