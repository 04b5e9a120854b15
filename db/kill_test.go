package db_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

var kills = flag.Int("kills", 20, "how `often` a worker is killed under load")

// Of two workers under load, one is killed and started again, at random moments
// and at those where most could go wrong.
func TestKilledWorkersLoseNothingAndDoubleNothing(t *testing.T) {
	t.Parallel()
	k := newKilling(t)
	living := k.start(task{Name: "living"})
	stop := k.load()
	for n := range *kills {
		k.kill(n)
	}
	emitted := stop()
	last := k.start(task{Name: "last"})
	dbtest.Eventually(t, "nothing is left to do", func() bool { return k.unfinished() == 0 })
	living.end()
	last.end()

	k.conclude()
	k.wantAllEnded(emitted)
	k.wantNoDoubles()
	k.wantUncertainWhatBegan()
	k.wantClaimedAgain()
}

// killing is a database, those who work on it, and what is known of the killed.
type killing struct {
	world
	draw *rand.Rand
	conn *pgx.Conn
	orgs []uuid.UUID

	deaths []death
	known  map[int64]bool // tokens that somebody held at an earlier death
}

// death is the end of a worker and the leases of that moment.
type death struct {
	point  point
	at     time.Time // by the database's clock
	leases []heldLease
}

type heldLease struct {
	ConsumerID int
	EventID    uuid.UUID
	Token      int64
}

func newKilling(t *testing.T) *killing {
	t.Helper()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{Lease: killLease, MaxConns: 4})
	k := &killing{world: world{T: t, db: d, url: url}, draw: chance(t), conn: dbtest.Conn(t, url), known: make(map[int64]bool)}
	for range 4 {
		k.orgs = append(k.orgs, dbtest.Org(t, d))
	}
	if _, err := k.conn.Exec(t.Context(), killTables); err != nil {
		t.Fatal(err)
	}
	if err := d.RegisterConsumers(t.Context(), killConsumers()); err != nil {
		t.Fatal(err)
	}
	return k
}

// workerProcess is a killWorker in a process of its own.
type workerProcess struct {
	*testing.T
	cmd   *exec.Cmd
	in    io.Closer
	says  bytes.Buffer
	ended chan error
}

// start starts a worker and waits until it works.
func (k *killing) start(what task) *workerProcess {
	k.Helper()
	what.URL, what.Seed = k.url, k.draw.Uint64()
	text, err := json.Marshal(what)
	if err != nil {
		k.Fatal(err)
	}
	p := &workerProcess{T: k.T, cmd: exec.CommandContext(context.WithoutCancel(k.Context()), os.Args[0], "-worker", string(text)), ended: make(chan error, 1)}
	p.cmd.Stderr = &p.says
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		k.Fatal(err)
	}
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		k.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		k.Fatal(err)
	}
	k.Cleanup(func() { _ = p.cmd.Process.Kill() })
	ready, _ := bufio.NewReader(out).ReadString('\n') // a worker that dies of itself may say less
	go func() { p.ended <- p.cmd.Wait() }()
	if ready == "" && what.After == 0 {
		k.Fatalf("the worker ended before it was ready: %v\n%s", <-p.ended, &p.says)
	}
	return p
}

// end lets the worker finish what it has in hand.
func (p *workerProcess) end() {
	p.Helper()
	if err := p.in.Close(); err != nil {
		p.Error(err)
	}
	if err := <-p.ended; err != nil {
		p.Errorf("the worker ended with %v:\n%s", err, &p.says)
	}
}

// killed waits for a worker that kills itself, kills it after a while, and fails
// when it has ended in another way.
func (p *workerProcess) killed(after time.Duration) (byItself bool) {
	p.Helper()
	timer := time.NewTimer(after)
	defer timer.Stop()
	var err error
	select {
	case err = <-p.ended:
		byItself = true
	case <-timer.C:
		if err := p.cmd.Process.Kill(); err != nil {
			p.Fatal(err)
		}
		err = <-p.ended
	}
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		p.Fatalf("the worker was not killed, it ended with %v:\n%s", err, &p.says)
	}
	return byItself
}

// kill starts a worker, lets it die and keeps who held what then.
func (k *killing) kill(n int) {
	k.Helper()
	points := []point{anywhere, anywhere, anywhere, claimed, inEffect, committing, begun, happened, sent, settling, settled, relaying}
	what := task{Name: "killed", Point: points[n%len(points)]}
	wait := 50*time.Millisecond + time.Duration(k.draw.Int64N(int64(600*time.Millisecond)))
	if what.Point != anywhere {
		what.After, wait = 1+k.draw.Int64N(20), 5*time.Second
	}
	if !k.start(what).killed(wait) {
		what.Point = anywhere
	}
	d := death{point: what.Point}
	if err := k.conn.QueryRow(k.Context(), "select clock_timestamp()").Scan(&d.at); err != nil {
		k.Fatal(err)
	}
	all := rowsOf[heldLease](k, "select consumer_id, event_id, lease_token as token from delivery where lease_token is not null")
	for _, l := range all {
		if !k.known[l.Token] {
			d.leases = append(d.leases, l)
		}
	}
	for _, l := range all {
		k.known[l.Token] = true
	}
	k.deaths = append(k.deaths, d)
}

// load emits for all organizations as long as there is not too much to do, until
// it is stopped, and returns what it has emitted.
func (k *killing) load() (stop func() []uuid.UUID) {
	ctx, cancel := context.WithCancel(k.Context())
	conn, draw := dbtest.Conn(k.T, k.url), rand.New(rand.NewPCG(k.draw.Uint64(), 0))
	var emitted []uuid.UUID
	var producer sync.WaitGroup
	producer.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			var n int
			if err := conn.QueryRow(k.Context(), unfinishedWork).Scan(&n); err != nil {
				k.Error(err)
				return
			}
			if n > 150 {
				continue
			}
			events := slices.Repeat([]db.NewEvent{{Type: killType, EntityKind: "thing"}}, 1+draw.IntN(5))
			err := k.db.InOrg(k.Context(), k.orgs[draw.IntN(len(k.orgs))], dbtest.Actor(), func(tx *db.OrgTx) error {
				ids, err := tx.EmitAll(k.Context(), events)
				emitted = append(emitted, ids...)
				return err
			})
			if err != nil {
				k.Error(err)
				return
			}
		}
	})
	return func() []uuid.UUID {
		cancel()
		producer.Wait()
		return emitted
	}
}

const unfinishedWork = "select (select count(*) from outbox) + (select count(*) from delivery)"

func (k *killing) unfinished() int {
	k.Helper()
	var n int
	if err := k.conn.QueryRow(k.Context(), unfinishedWork).Scan(&n); err != nil {
		k.Fatal(err)
	}
	return n
}

func rowsOf[T any](k *killing, sql string, args ...any) []T {
	k.Helper()
	rows, _ := k.conn.Query(k.Context(), sql, args...) // its error comes back from rows
	all, err := pgx.CollectRows(rows, pgx.RowToStructByName[T])
	if err != nil {
		k.Fatal(err)
	}
	return all
}

// none fails when a query finds something.
func (k *killing) none(what, sql string, args ...any) {
	k.Helper()
	rows, _ := k.conn.Query(k.Context(), sql, args...) // its error comes back from rows
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		k.Fatal(err)
	}
	if len(found) > 0 {
		k.Errorf("%d %s, want none; the first is %s", len(found), what, found[0])
	}
}

// counts reads rows of a name and a number.
func (k *killing) counts(sql string) map[string]int {
	k.Helper()
	counts := make(map[string]int)
	for _, row := range rowsOf[struct {
		Name string
		N    int
	}](k, sql) {
		counts[row.Name] = row.N
	}
	return counts
}
