package db_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// What Postgres says of itself reaches the emitter as a trouble that passes, with
// its name where it has one; only what was rolled back for another's sake is tried
// again at once, and not for ever.
func TestWhatTheServerLacksIsTroubleThatPassesAndHasAName(t *testing.T) {
	t.Parallel()
	address := dbtest.Fresh(t)
	store := dbtest.Open(t, address, db.Options{})
	fresh := world{T: t, db: store, url: address}
	fresh.exec("create table provoked (organization_id uuid primary key, code text)")
	fresh.exec(`create function provoke() returns trigger language plpgsql security definer as $$
		declare v_code text := (select code from provoked where organization_id = new.organization_id);
		begin perform nextval(quote_ident('tries_' || v_code)::regclass); raise exception 'provoked' using errcode = v_code; end $$`)
	fresh.exec("create trigger provoke before insert on webhook_subscriptions for each row execute function provoke()")
	for code, tt := range map[string]struct {
		known  error
		reason string
		tries  int
	}{
		"53100": {db.ErrDiskFull, "the database's disk is full", 1},
		"53200": {db.ErrOutOfMemory, "the database is out of memory", 1},
		"53300": {db.ErrTooManyConnections, "the database has no connection left", 1},
		"25006": {db.ErrReadOnly, "the database takes no writes", 1},
		"40P01": {bus.ErrUnavailable, "the database cannot do it now, SQLSTATE 40P01", 3},
		"40001": {bus.ErrUnavailable, "the database cannot do it now, SQLSTATE 40001", 3},
		"55P03": {bus.ErrUnavailable, "the database cannot do it now, SQLSTATE 55P03", 1},
		"57014": {bus.ErrUnavailable, "the database cannot do it now, SQLSTATE 57014", 1},
		"25P03": {bus.ErrUnavailable, "the database cannot do it now, SQLSTATE 25P03", 1},
		"58030": {bus.ErrUnavailable, "the database cannot do it now, SQLSTATE 58030", 1},
		"57P01": {bus.ErrUnavailable, "the database does not answer", 1},
		"57P03": {bus.ErrUnavailable, "the database does not answer", 1},
		"P0001": {nil, "the database refuses it, SQLSTATE P0001", 1},
	} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			w := world{T: t, db: store, url: address, org: dbtest.Org(t, store)}
			w.exec("insert into provoked values ($1, $2)", w.org, code)
			w.exec(fmt.Sprintf("create sequence %q", "tries_"+code))
			err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
				_, err := tx.CreateSubscription(t.Context(), db.NewSubscription{URL: "https://example.com", EventTypes: []string{"*"}})
				return err
			})
			if err == nil || tt.known != nil && (!errors.Is(err, tt.known) || !errors.Is(err, bus.ErrUnavailable)) {
				t.Errorf("error = %v, want %v", err, tt.known)
			}
			if tt.known == nil && errors.Is(err, bus.ErrUnavailable) {
				t.Errorf("error = %v, want one that does not pass", err)
			}
			if got := db.Reason(err); got != tt.reason {
				t.Errorf("reason = %q, want %q", got, tt.reason)
			}
			if n := w.count(fmt.Sprintf("select last_value from %q", "tries_"+code)); n != tt.tries {
				t.Errorf("%d tries, want %d", n, tt.tries)
			}
		})
	}
}

// Two sessions lock two deliveries crosswise, and one of them settles.
func TestASettlementThatLosesADeadlockIsSettledByItsNextTry(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.consumer(typ)
	for range 2 {
		w.emit(typ)
	}
	w.relay()
	claimed := w.claim(consumer, 2)
	if len(claimed) != 2 {
		t.Fatalf("%d claimed, want 2", len(claimed))
	}
	if claimed[0].Seq > claimed[1].Seq {
		claimed[0], claimed[1] = claimed[1], claimed[0]
	}
	other, err := pgx.Connect(t.Context(), w.url)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(t.Context()) //nolint:errcheck // the test is over
	const lockDeliverySQL = "select 1 from delivery where consumer_id = $1 and organization_id = $2 and seq = $3 for update"
	lock := func(d bus.Delivery) error {
		_, err := other.Exec(t.Context(), lockDeliverySQL, d.ConsumerID, w.org, d.Seq)
		return err
	}
	for _, sql := range []string{"set deadlock_timeout = '1min'", "begin"} { // the settlement finds it first, and loses
		if _, err := other.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if err := lock(claimed[1]); err != nil {
		t.Fatal(err)
	}
	verdicts := []bus.Settlement{{Delivery: &claimed[0], Verdict: bus.VerdictDone}, {Delivery: &claimed[1], Verdict: bus.VerdictDone}}
	settled := make(chan error, 1)
	go func() {
		_, err := w.db.Settle(t.Context(), verdicts)
		settled <- err
	}()
	dbtest.Eventually(t, "the settlement waits for the other's lock", func() bool {
		return w.count("select count(*) from pg_stat_activity where $1 = any (pg_blocking_pids(pid))", other.PgConn().PID()) == 1
	})
	if err := lock(claimed[0]); err != nil {
		t.Errorf("the other session = %v, want the settlement to lose", err)
	}
	if err := <-settled; !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("Settle() = %v, want %v", err, bus.ErrUnavailable)
	}
	if _, err := other.Exec(t.Context(), "rollback"); err != nil {
		t.Fatal(err)
	}
	lost, err := w.db.Settle(t.Context(), verdicts)
	if err != nil || len(lost) != 0 {
		t.Errorf("the next try lost %v: %v", lost, err)
	}
	if n := w.count("select count(*) from receipt r, unnest(r.event_ids) e where r.organization_id = $1", w.org); n != 2 {
		t.Errorf("%d receipts, want 2", n)
	}
}

// The settler asks again for a whole batch only when the database was away.
func TestASettlementThatCannotBeginSaysThatTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for name, lane := range map[string]int64{"outside of lanes": 0, "in a lane": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 0)
			defer cancel()
			d := bus.Delivery{Key: bus.Key{OrgID: w.org, Lane: lane}}
			if _, err := w.db.Settle(ctx, []bus.Settlement{{Delivery: &d, Verdict: bus.VerdictDone}}); !errors.Is(err, bus.ErrUnavailable) {
				t.Errorf("Settle() = %v, want %v", err, bus.ErrUnavailable)
			}
		})
	}
}

func TestATransactionThatCannotBeginSaysOnceThatTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	w := setup(t)
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	err := w.db.InOrg(ctx, w.org, dbtest.Actor(), func(*db.OrgTx) error { return nil })
	if err == nil || strings.Count(err.Error(), bus.ErrUnavailable.Error()) != 1 {
		t.Errorf("InOrg() = %v, want %q once in it", err, bus.ErrUnavailable)
	}
}

// A connection to a server that has turned read-only stays so for good: the next
// one may lead to the server that has taken over.
func TestAConnectionThatTakesNoWritesIsNotUsedAgain(t *testing.T) {
	t.Parallel()
	address := dbtest.Fresh(t)
	org := dbtest.Org(t, dbtest.Open(t, address, db.Options{}))
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	alter := func(change string) {
		t.Helper()
		sql := "alter database " + strings.TrimPrefix(u.Path, "/") + " " + change
		if _, err := dbtest.Exec(t, dbtest.URL(t), sql); err != nil { // from another one: this one takes no writes
			t.Fatal(err)
		}
	}
	alter("set default_transaction_read_only = on")
	d := dbtest.Open(t, address, db.Options{MaxConns: 1})
	emit := func() error {
		return d.InOrg(t.Context(), org, dbtest.Actor(), func(tx *db.OrgTx) error {
			_, err := tx.Emit(t.Context(), db.NewEvent{Type: ownType(), EntityKind: "thing"})
			return err
		})
	}
	if err := emit(); !errors.Is(err, db.ErrReadOnly) {
		t.Errorf("emission = %v, want %v", err, db.ErrReadOnly)
	}
	alter("reset default_transaction_read_only")
	if err := emit(); err != nil {
		t.Errorf("emission after the server takes writes again = %v, want none", err)
	}
}
