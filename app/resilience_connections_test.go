package app_test

import (
	"math/rand/v2"
	"net/http"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// cutAllSQL ends every other connection to the database, whatever it is doing.
const cutAllSQL = `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`

func TestConnectionsThatAreCutAgainAndAgainLoseNothingAndSettleNothingTwice(t *testing.T) {
	t.Parallel()
	s := onShared(t, resilient()...).open()
	stop := s.traffic()
	for range 30 {
		seen, more := len(s.hook.all()), rand.N(8)
		dbtest.Eventually(t, "deliveries go on", func() bool { return len(s.hook.all()) > seen+more })
		if _, err := dbtest.Exec(t, s.url, cutAllSQL); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	s.wantReady()
	s.wantAllSettledOnce()
}

// The claim waits for a lock when its connection is cut.
func TestAClaimWhoseConnectionIsCutIsMadeAgain(t *testing.T) {
	t.Parallel()
	s := onShared(t, resilient()...).open()
	blocker := dbtest.Conn(t, s.url)
	for _, sql := range []string{"begin", "lock table delivery in access exclusive mode"} {
		if _, err := blocker.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	s.emitAll(5)
	dbtest.Eventually(t, "the claim's connection is cut", func() bool {
		n, err := dbtest.Exec(t, s.url, `select pg_terminate_backend(pid) from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock' and query like '%lock_fitting(%' and pid <> pg_backend_pid()`)
		return err == nil && n > 0
	})
	if _, err := blocker.Exec(t.Context(), "rollback"); err != nil {
		t.Fatal(err)
	}
	s.wantAllSettledOnce()
	if n := s.log.lines("claim deliveries", `"level":"ERROR"`); n == 0 {
		t.Error("the log does not tell of the claim that failed")
	}
}

// Somebody's session idles in a transaction. What it does not hold goes on, what
// it holds goes on when it ends.
func TestAnIdleTransactionHoldsUpNothingButWhatItHasLocked(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		hold    string // in a transaction; $1 is the event that the test looks at
		relayed bool   // new events reach the receiver meanwhile
		held    bool   // the event does not
	}{
		"with a snapshot":      {"select 1 from event_log where id = $1::uuid", true, false},
		"on a delivery":        {"select 1 from delivery where event_id = $1::uuid for update", true, true},
		"on the relay's place": {"select 1 from relay_state where $1::uuid is not null for update", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := onShared(t, append(resilient(), "DESKCOMM_RETRY_LADDER=2s,2s,2s,2s,2s,2s,2s,2s,2s,2s")...).open()
			s.hook.status.Store(http.StatusInternalServerError)
			s.emitAll(2)
			dbtest.Eventually(t, "both wait for their retry", func() bool { return s.count("select count(*) from delivery where attempts > 0") == 2 })
			held, free := s.emitted()[0], s.emitted()[1]
			idle := dbtest.Conn(t, s.url)
			tx, err := idle.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), tt.hold, held); err != nil {
				t.Fatal(err)
			}
			s.hook.status.Store(http.StatusOK)
			s.emitAll(10)
			done := func(id string) bool {
				return s.count("select count(*) from receipt where $1::uuid = any (event_ids)", id) == 1
			}
			dbtest.Eventually(t, "what was due and is not locked is done", func() bool { return done(free) })
			if tt.relayed {
				dbtest.Eventually(t, "new events are done", func() bool { return done(s.emitted()[11]) })
			}
			if tt.held && done(held) {
				t.Error("the locked delivery is done, want it to wait")
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.wantAllSettledOnce()
		})
	}
}

// An event's row in the outbox is locked by a foreign session. Relaying waits, or
// passes it by; nothing is lost either way.
func TestALockedRowOfTheOutboxIsRelayedAfterItsRelease(t *testing.T) {
	t.Parallel()
	s := onShared(t, resilient()...).open()
	stopper, idle := dbtest.Conn(t, s.url), dbtest.Conn(t, s.url)
	for _, sql := range []string{"begin", "select 1 from relay_state for update"} {
		if _, err := stopper.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	s.emitAll(3)
	for _, sql := range []string{"begin", "select 1 from outbox order by emit_no limit 1 for update"} {
		if _, err := idle.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stopper.Exec(t.Context(), "rollback"); err != nil {
		t.Fatal(err)
	}
	s.emitAll(3) // emission goes on
	s.wantReady()
	if _, err := idle.Exec(t.Context(), "rollback"); err != nil {
		t.Fatal(err)
	}
	s.wantAllSettledOnce()
}
