package db_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

const killWritersSQL = `
	select pg_terminate_backend(pid) from pg_stat_activity
	 where datname = current_database() and wait_event_type = 'Lock' and position($1 in query) > 0 and pid <> pg_backend_pid()`

// kill ends n sessions that wait for a lock in a statement that contains text.
func (c *crowd) kill(n int, text string) {
	c.Helper()
	killed := 0
	dbtest.Eventually(c.T, "the sessions are ended", func() bool {
		one, err := dbtest.Exec(c.T, c.url, killWritersSQL, text)
		if err != nil {
			c.Error(err)
		}
		killed += int(one)
		return killed >= n
	})
}

// wantOnce fails the test unless what was answered is emitted once, and what
// failed not at all.
func (c *crowd) wantOnce(calls ...*call) {
	c.Helper()
	for i, one := range calls {
		n := c.count("select count(*) from event_log where entity_id = $1", one.ev.EntityID)
		if one.err == nil && n != 1 || one.err != nil && n != 0 {
			c.Errorf("call %d got %v and is emitted %d times", i, one.err, n)
		}
	}
}

func TestABatchWhoseConnectionIsKilledBeforeItsCommitIsEmittedByTheNext(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	c.shut()
	c.kill(2, "event_log")
	calls := c.good(50)
	c.gather(calls...)
	c.open()
	c.wantEmitted(calls...)
	if n := c.count("select count(*) from event_log where event_type = 'custom.first'"); n != 2 {
		t.Errorf("%d events of the killed sessions, want 2", n)
	}
}

// A deferred trigger keeps the commit waiting for a lock, and there it is killed.
func TestABatchThatIsKilledInItsCommitIsEmittedOnce(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	c.exec(`create function hold_commit() returns trigger language plpgsql as $$ begin perform pg_advisory_xact_lock_shared(7); return null; end $$`)
	c.exec("create constraint trigger hold_commit after insert on outbox deferrable initially deferred for each row execute function hold_commit()")
	conn := dbtest.Conn(t, c.url)
	if _, err := conn.Exec(t.Context(), "select pg_advisory_lock(7)"); err != nil {
		t.Fatal(err)
	}
	calls := c.good(20)
	c.start(calls...)
	c.kill(2, "commit")
	if _, err := conn.Exec(t.Context(), "select pg_advisory_unlock(7)"); err != nil {
		t.Fatal(err)
	}
	c.calls.Wait()
	c.wantEmitted(calls...)
	c.wantOnce(calls...)
}

// line is a way to the database that can be cut.
type line struct {
	listener net.Listener
	server   string
	deaf     atomic.Bool // keeps the answer to the next commit back, and cuts
	cuts     atomic.Int32
	pipes    sync.WaitGroup
}

// lineTo returns a line to the server of an address, and the address through it.
func lineTo(t *testing.T, address string) (l *line, through string) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l = &line{listener: listener, server: u.Host}
	if host := u.Query().Get("host"); host != "" {
		l.server = host + "/.s.PGSQL." + u.Query().Get("port")
	}
	u.Host = listener.Addr().String()
	q := u.Query()
	q.Del("host")
	q.Del("port")
	u.RawQuery = q.Encode()
	l.pipes.Go(l.serve)
	t.Cleanup(func() {
		listener.Close() //nolint:errcheck // the test is over
		l.pipes.Wait()
	})
	return l, u.String()
}

func (l *line) serve() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		network := "tcp"
		if l.server[0] == '/' {
			network = "unix"
		}
		server, err := (&net.Dialer{}).DialContext(context.Background(), network, l.server)
		if err != nil {
			client.Close() //nolint:errcheck // it learns of it
			continue
		}
		l.pipes.Go(func() {
			io.Copy(client, server) //nolint:errcheck // ends with either side
			client.Close()          //nolint:errcheck // as above
		})
		l.pipes.Go(func() { l.forward(client, server) })
	}
}

// forward hands on what the client says. A commit whose answer shall be lost is
// handed on when the client hears nothing any more.
func (l *line) forward(client, server net.Conn) {
	defer server.Close() //nolint:errcheck // nobody speaks any more
	buffer := make([]byte, 1<<16)
	for {
		n, err := client.Read(buffer)
		said := buffer[:n]
		if bytes.Contains(said, []byte("commit")) && l.deaf.CompareAndSwap(true, false) {
			l.cuts.Add(1)
			client.Close()     //nolint:errcheck // that is the cut
			server.Write(said) //nolint:errcheck // what follows is looked for in the database
			return
		}
		if _, writeErr := server.Write(said); err != nil || writeErr != nil {
			return
		}
	}
}

func TestABatchThatIsCommittedWhileItsAnswerIsLostIsAnsweredAndNotRepeated(t *testing.T) {
	t.Parallel()
	address := dbtest.Fresh(t)
	l, through := lineTo(t, address)
	c := crowdThrough(t, through, address)
	for range 5 {
		l.deaf.Store(true)
		calls := c.good(20)
		c.start(calls...)
		c.calls.Wait()
		c.wantEmitted(calls...)
		c.wantOnce(calls...)
	}
	if n := l.cuts.Load(); n != 5 {
		t.Errorf("%d commits were cut off, want 5", n)
	}
}

func TestConnectionsThatAreKilledUnderLoadLeaveNoFalseAnswer(t *testing.T) {
	t.Parallel()
	c := newCrowd(t)
	stop := make(chan struct{})
	var kept sync.Map
	for range 32 {
		c.calls.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				one := c.good(1)[0]
				one.emitted, one.err = c.db.EmitGrouped(c.Context(), one.org, dbtest.Actor(), one.ev)
				kept.Store(one, true)
			}
		})
	}
	conn := dbtest.Conn(t, c.url)
	for range 60 {
		if _, err := conn.Exec(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"); err != nil {
			t.Fatal(err)
		}
		seen := c.count("select count(*) from event_log")
		dbtest.Eventually(t, "emissions go on", func() bool { return c.count("select count(*) from event_log") > seen })
	}
	close(stop)
	c.calls.Wait()
	rows, err := conn.Query(t.Context(), "select entity_id::text, count(*)::int from event_log group by 1")
	if err != nil {
		t.Fatal(err)
	}
	emitted := make(map[string]int)
	for rows.Next() {
		var id string
		var n int
		if err := rows.Scan(&id, &n); err != nil {
			t.Fatal(err)
		}
		emitted[id] = n
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	failed := 0
	kept.Range(func(key, _ any) bool {
		one, _ := key.(*call)
		n := emitted[one.ev.EntityID.UUID.String()]
		if one.err != nil {
			failed++
		}
		if one.err == nil && n != 1 || one.err != nil && n != 0 || one.err != nil && !errors.Is(one.err, bus.ErrUnavailable) {
			t.Errorf("got %v and is emitted %d times", one.err, n)
		}
		return true
	})
	t.Logf("%d events, %d callers got an error", len(emitted), failed)
}
