package app_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// postgres is a server of the test's own, which it may stop, kill and cheat. It is
// of the version of the test server and listens on a socket, whose name nobody
// takes while it is down.
type postgres struct {
	*testing.T
	bin    string
	home   string // holds the socket, and the data unless that is elsewhere
	data   string
	initdb []string // more arguments
	env    []string // of its processes, beside those they need
	signal func(os.Signal)
	ended  chan struct{}
}

// newPostgres makes a cluster in a folder of its own and starts it.
func newPostgres(t *testing.T, change ...func(*postgres)) *postgres {
	t.Helper()
	pg := &postgres{T: t}
	if err := dbtest.Row(t, dbtest.URL(t), "select setting from pg_config where name = 'BINDIR'", nil, &pg.bin); err != nil {
		t.Fatal(err)
	}
	pg.home = filepath.Dir(dataDir(t))
	pg.data = filepath.Join(pg.home, "cluster")
	pg.own(pg.home)
	for _, f := range change {
		f(pg)
	}
	out, err := pg.command("initdb", append([]string{
		"--pgdata=" + pg.data, "--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C",
		"--no-sync", "--no-instructions", "--wal-segsize=1",
	}, pg.initdb...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	t.Cleanup(func() { pg.stop(syscall.SIGQUIT) })
	pg.start()
	return pg
}

// command prepares one of Postgres's programs: root has to be another user for it.
func (pg *postgres) command(name string, args ...string) *exec.Cmd {
	pg.Helper()
	cmd := exec.CommandContext(context.Background(), filepath.Join(pg.bin, name), args...)
	cmd.Dir, cmd.Env = "/", append([]string{"PATH=" + pg.bin + ":/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}, pg.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if uid, gid := pg.account(); uid >= 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)} //nolint:gosec // small and not negative
	}
	return cmd
}

// account is whom Postgres has to run as, -1 for nobody else.
func (pg *postgres) account() (uid, gid int) {
	pg.Helper()
	if os.Getuid() != 0 {
		return -1, -1
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(u.Uid)
		if err != nil {
			pg.Fatal(err)
		}
		gid, err := strconv.Atoi(u.Gid)
		if err != nil {
			pg.Fatal(err)
		}
		return uid, gid
	}
	pg.Fatal("no user to run Postgres as")
	return -1, -1
}

func (pg *postgres) own(path string) {
	pg.Helper()
	if uid, gid := pg.account(); uid >= 0 {
		if err := os.Chown(path, uid, gid); err != nil {
			pg.Fatal(err)
		}
	}
}

// start returns when the server takes connections.
func (pg *postgres) start() {
	pg.Helper()
	log, err := os.OpenFile(pg.logFile(), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		pg.Fatal(err)
	}
	defer log.Close() //nolint:errcheck // the child has its own
	// Without fsync an immediate stop loses nothing either: the system goes on.
	cmd := pg.command("postgres", "-D", pg.data, "-c", "listen_addresses=", "-c", "unix_socket_directories="+pg.home, "-c", "port=5432",
		"-c", "fsync=off", "-c", "min_wal_size=4MB", "-c", "log_destination=stderr", "-c", "logging_collector=off")
	cmd.Stdout, cmd.Stderr = log, log
	dieWithThread(cmd.SysProcAttr)
	started, ended := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the thread lives as long as the server
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait() //nolint:errcheck // its log says how it ended
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		pg.Fatal(err)
	}
	pg.ended = ended
	pg.signal = func(s os.Signal) {
		cmd.Process.Signal(s) //nolint:errcheck // it may have ended
	}
	dbtest.Eventually(pg.T, "Postgres takes connections", pg.answers)
}

func (pg *postgres) logFile() string { return filepath.Join(pg.home, "log") }

func (pg *postgres) answers() bool {
	conn, err := pgx.Connect(pg.Context(), pg.url())
	if err != nil {
		return false
	}
	conn.Close(pg.Context()) //nolint:errcheck // it has served
	return true
}

// stop ends the server: SIGINT is its fast shutdown, SIGQUIT the immediate one,
// which leaves what a crash leaves.
func (pg *postgres) stop(s os.Signal) {
	if pg.signal != nil {
		pg.signal(s)
		<-pg.ended
	}
}

func (pg *postgres) url() string {
	query := url.Values{"host": {pg.home}, "port": {"5432"}, "sslmode": {"disable"}}
	return "postgres://postgres@/postgres?" + query.Encode()
}

// onPostgres is an installation on a server of the test's own.
func onPostgres(t *testing.T, pg *postgres, env ...string) install {
	t.Helper()
	in := onPrivate(t, env...)
	in.env = append(in.env, "DATABASE_URL="+pg.url())
	return in
}

// shop is a running server with one webhook subscription, and what was emitted to
// it so far.
type shop struct {
	*process
	url   string // of its database
	token string
	hook  *receiver

	mu    sync.Mutex
	acked []string // ids of the events that were acknowledged
	codes map[int]int
}

// open starts a server, which is given its database, and subscribes a receiver.
func (in install) open() *shop {
	in.Helper()
	return in.openOn(in.serve())
}

// openOn is open for a server that runs.
func (in install) openOn(p *process) *shop {
	in.Helper()
	s := &shop{process: p, url: in.databaseURL(), hook: newReceiver(in.T), codes: map[int]int{}}
	_, s.token = in.setUp()
	s.must(201, "POST", "/v1/webhook-subscriptions", s.token, map[string]any{
		"url": s.hook.URL, "event_types": []string{"custom.order"}, "secret": hookSecret,
	})
	return s
}

// resilient are the variables of an installation whose leases run out soon.
func resilient() []string {
	return []string{"DESKCOMM_ALLOW_PRIVATE_HOSTS=127.0.0.1", "DESKCOMM_LEASE=2s"}
}

// emit asks for one event and returns the status of the answer.
func (s *shop) emit() int {
	s.Helper()
	status, answer := s.call("POST", "/v1/events", s.token, map[string]any{"event_type": "custom.order", "entity_kind": "order"})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.codes[status]++
	if status == http.StatusCreated {
		s.acked = append(s.acked, answer["id"].(string))
	}
	return status
}

// emitAll asks for n events that have to be acknowledged.
func (s *shop) emitAll(n int) {
	s.Helper()
	for range n {
		if status := s.emit(); status != http.StatusCreated {
			s.Fatalf("emission answered %d, want 201", status)
		}
	}
}

// traffic emits until the returned function is called.
func (s *shop) traffic() (stop func()) {
	ctx, cancel := context.WithCancel(s.Context())
	var emitter sync.WaitGroup
	emitter.Go(func() {
		for ctx.Err() == nil {
			s.emit()
		}
	})
	return func() {
		cancel()
		emitter.Wait()
	}
}

func (s *shop) emitted() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.acked)
}

// delivered is under how many delivery ids each event has reached the receiver.
func (s *shop) delivered() map[string]map[string]bool {
	seen := map[string]map[string]bool{}
	for _, d := range s.hook.all() {
		event := d.header.Get("X-Deskcomm-Idempotency-Key")
		if seen[event] == nil {
			seen[event] = map[string]bool{}
		}
		seen[event][d.header.Get("X-Webhook-Delivery")] = true
	}
	return seen
}

const settledSQL = `
	select (select count(*) from outbox),
	       (select count(*) from delivery),
	       (select count(*) from dead_delivery),
	       (select count(*) from receipt r, unnest(r.event_ids) e),
	       (select count(distinct e) from receipt r, unnest(r.event_ids) e)`

// wantAllSettledOnce waits until nothing is left to do and looks that every
// acknowledged event has reached the receiver, under one id, and has one receipt.
func (s *shop) wantAllSettledOnce() {
	s.Helper()
	var waiting, pending, dead, receipts, events int
	dbtest.Eventually(s.T, "everything is settled", func() bool {
		err := dbtest.Row(s.T, s.url, settledSQL, nil, &waiting, &pending, &dead, &receipts, &events)
		return err == nil && waiting+pending == 0
	})
	if dead != 0 || receipts != events {
		s.Errorf("%d receipts of %d events and %d dead letters, want one receipt for each and none dead", receipts, events, dead)
	}
	seen := s.delivered()
	lost := 0
	for _, id := range s.emitted() {
		switch len(seen[id]) {
		case 0:
			lost++
		case 1:
		default:
			s.Errorf("event %s reached the receiver under %d delivery ids, want one", id, len(seen[id]))
		}
	}
	if lost != 0 {
		s.Errorf("%d of %d acknowledged events never reached the receiver", lost, len(s.emitted()))
	}
	if n := len(s.emitted()); events < n {
		s.Errorf("%d events have a receipt, want the %d acknowledged ones", events, n)
	}
	s.Logf("%d events acknowledged, %d settled, %d requests at the receiver, answers by status %v", len(s.emitted()), events, len(s.hook.all()), s.codes)
}

// readiness is what /readyz says.
func (p *process) readiness() (status int, reasons map[string]any) {
	p.Helper()
	status, answer := p.call("GET", "/readyz", "", nil)
	reasons, _ = answer["reasons"].(map[string]any)
	return status, reasons
}

// wantUnready waits until a check fails for a reason.
func (p *process) wantUnready(check, reason string) {
	p.Helper()
	var last string
	dbtest.Eventually(p.T, "not ready: "+reason, func() bool {
		status, reasons := p.readiness()
		last = fmt.Sprint(status, reasons)
		return status == http.StatusServiceUnavailable && reasons[check] == reason
	})
	if status := p.status("/livez"); status != http.StatusOK {
		p.Errorf("/livez = %d while not ready (%s), want 200", status, last)
	}
}

func (p *process) wantReady() {
	p.Helper()
	dbtest.Eventually(p.T, "ready", func() bool { return p.status("/readyz") == http.StatusOK })
}

// lines counts the log lines that have all of the texts.
func (l *transcript) lines(texts ...string) int {
	n := 0
	for line := range bytes.Lines([]byte(l.String())) {
		all := true
		for _, text := range texts {
			all = all && bytes.Contains(line, []byte(text))
		}
		if all {
			n++
		}
	}
	return n
}

// exec runs statements on the installation's database.
func (in install) exec(statements ...string) {
	in.Helper()
	for _, sql := range statements {
		if _, err := dbtest.Exec(in.T, in.databaseURL(), sql); err != nil {
			in.Fatalf("%s: %v", sql, err)
		}
	}
}
