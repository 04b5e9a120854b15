package db_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// A process that hangs in a transaction is somebody whose locks nobody could take:
// the server ends it.
func TestATransactionThatIdlesTooLongIsEndedByTheServer(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	hasty := dbtest.Open(t, withParameters(w.url, "idle_in_transaction_session_timeout=200ms"), db.Options{})
	sub := w.subscribe("custom.*")
	locked, gone := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- hasty.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
			if err := tx.DeleteSubscription(t.Context(), sub); err != nil {
				return err
			}
			close(locked)
			<-gone // it hangs
			return nil
		})
	}()
	<-locked
	if n := w.count("with mine as (select id from webhook_subscriptions where id = $1 for update) select count(*) from mine", sub); n != 1 {
		t.Errorf("%d rows locked by another, want the one that the hanging process had", n)
	}
	close(gone)
	if err := <-ended; !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("the transaction that hung = %v, want %v", err, bus.ErrUnavailable)
	}
}

func TestALockThatIsNotToBeHadIsTroubleThatPasses(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	hasty := dbtest.Open(t, withParameters(w.url, "lock_timeout=100ms"), db.Options{})
	blocker := dbtest.Conn(t, w.url)
	sub := w.subscribe("custom.*")
	tx, err := blocker.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select 1 from webhook_subscriptions where id = $1 for update", sub); err != nil {
		t.Fatal(err)
	}
	err = hasty.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error { return tx.DeleteSubscription(t.Context(), sub) })
	if !errors.Is(err, bus.ErrUnavailable) {
		t.Errorf("a wait for a lock = %v, want %v", err, bus.ErrUnavailable)
	}
}

func TestConnectionsBeginWithLimitsUnlessAPoolerRefusesThem(t *testing.T) {
	t.Parallel()
	limits := map[string]string{"statement_timeout": "60s", "lock_timeout": "10s", "idle_in_transaction_session_timeout": "60s"}
	given := map[string]string{"statement_timeout": "60s", "lock_timeout": "3s", "idle_in_transaction_session_timeout": "60s"}
	for name, tt := range map[string]struct {
		refuses bool
		query   string
		want    []map[string]string // of each connection
	}{
		"of a server":              {false, "", []map[string]string{limits}},
		"of the connection string": {false, "&lock_timeout=3s", []map[string]string{given}},
		"of a transaction pooler":  {true, "", []map[string]string{limits, {}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := newStartup(t, tt.refuses)
			d, err := db.Open(t.Context(), fmt.Sprintf("postgres://u@%s/d?sslmode=disable%s", fake.Addr(), tt.query), db.Options{MaxConns: 1})
			if err != nil {
				t.Fatal(err)
			}
			d.Close()
			if diff := cmp.Diff(tt.want, fake.seen()); diff != "" {
				t.Errorf("limits (-want +got):\n%s", diff)
			}
		})
	}
}

// startup is a server that lets everybody in, answers nothing but empty queries
// and keeps the limits that connections begin with.
type startup struct {
	net.Listener
	refuses bool
	mu      sync.Mutex
	limits  []map[string]string
	served  sync.WaitGroup
}

func newStartup(t *testing.T, refuses bool) *startup {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &startup{Listener: l, refuses: refuses}
	s.served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.served.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close() //nolint:errcheck // the test is over
		s.served.Wait()
	})
	return s
}

func (s *startup) serve(c net.Conn) {
	defer c.Close() //nolint:errcheck // the client has left
	backend := pgproto3.NewBackend(c, c)
	first, err := backend.ReceiveStartupMessage()
	if err != nil {
		return
	}
	message, ok := first.(*pgproto3.StartupMessage)
	if !ok {
		return
	}
	limits := map[string]string{}
	for name, value := range message.Parameters {
		if strings.HasSuffix(name, "_timeout") {
			limits[name] = value
		}
	}
	s.mu.Lock()
	s.limits = append(s.limits, limits)
	s.mu.Unlock()
	if s.refuses && len(limits) > 0 {
		backend.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: lock_timeout"})
		backend.Flush() //nolint:errcheck // a client that has left has its answer
		return
	}
	backend.Send(&pgproto3.AuthenticationOk{})
	backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	for backend.Flush() == nil {
		got, err := backend.Receive()
		if err != nil {
			return
		}
		if _, query := got.(*pgproto3.Query); query {
			backend.Send(&pgproto3.EmptyQueryResponse{})
			backend.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		}
	}
}

func (s *startup) seen() []map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.limits
}

// withParameters adds settings of the session to a connection string.
func withParameters(url, query string) string {
	if strings.Contains(url, "?") {
		return url + "&" + query
	}
	return url + "?" + query
}
