package db_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

var workerTask = flag.String("worker", "", "be a worker with this `task`, for a test that kills it")

// The readers of the workers, one of each effect.
const (
	localWorker       = "kill-local-worker"
	onceWorker        = "kill-once-worker"
	atLeastOnceWorker = "kill-at-least-once-worker"

	killType   bus.Type = "custom.kill"
	killLease           = 2 * time.Second
	killEffect          = "kill.effect" // the action of the audit row that is the local effect
)

// killTables are where workers record what they do, each row at once and for
// good. Nothing in them is unique: what happens twice is there twice.
const killTables = `
	create table ledger (consumer text not null, event_id uuid not null, delivery_id uuid not null);
	create table mark (event_id uuid not null, token bigint not null, mark text not null);
	create table claimed (worker text not null, consumer_id int not null, event_id uuid not null, token bigint not null,
	    at timestamptz not null default clock_timestamp());
	create index on claimed (event_id);`

// point is where a worker kills itself.
type point string

// The points. In those ending in -ing a statement is under way.
const (
	anywhere   point = "anywhere"   // it is killed from outside, at a moment that is drawn
	claimed    point = "claimed"    // nothing is done with the claim yet
	inEffect   point = "in effect"  // a local effect's row is written
	committing point = "committing" // it is being committed, with its settlement
	begun      point = "begun"      // an effect that must not be repeated may happen
	happened   point = "happened"   // it has
	sent       point = "sent"       // one that may be repeated has
	settling   point = "settling"   // verdicts are being written
	settled    point = "settled"    // they are
	relaying   point = "relaying"
)

// task is what a worker is told.
type task struct {
	URL   string
	Name  string
	Seed  uint64
	Point point
	After int64 // it dies when it is at Point for this time
}

// killWorker is a process that drains for the three readers until its standard
// input ends or it is killed.
type killWorker struct {
	task
	*db.DB  // its Claim and Settle are recorded
	records *pgxpool.Pool
	left    atomic.Int64

	mu   sync.Mutex
	draw *rand.Rand
}

func work(text string) error {
	w := &killWorker{}
	if err := json.Unmarshal([]byte(text), &w.task); err != nil {
		return err
	}
	w.draw = rand.New(rand.NewPCG(w.Seed, 0))
	w.left.Store(w.After)
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	wake := make(chan struct{}, 1)
	due := func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	var err error
	if w.DB, err = db.Open(ctx, w.URL, db.Options{MasterKey: dbtest.MasterKey(), Lease: killLease, MaxConns: 8, Due: due}); err != nil {
		return err
	}
	defer w.Close()
	if w.records, err = pgxpool.New(ctx, w.URL); err != nil {
		return err
	}
	defer w.records.Close()
	if err := errors.Join(bus.CheckHandlers(w.handlers()), w.RegisterConsumers(ctx, killConsumers())); err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	// The relay of the process that emits is woken by each commit; these are not in it.
	relay := bus.Relay{Step: w.relay, Poll: 50 * time.Millisecond, Logger: logger, Drain: due}
	drainer := bus.Drainer{Log: w, Handlers: w.handlers(), Poll: time.Second, Wake: wake, Grace: 10 * time.Second, Logger: logger}
	var loops sync.WaitGroup
	var relayed, drained error
	loops.Go(func() { relayed = relay.Run(ctx) })
	loops.Go(func() { drained = drainer.Run(ctx) })
	_, err = fmt.Fprintln(os.Stdout, "ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until it ends, or its other end has died
	stop()
	loops.Wait()
	return errors.Join(err, relayed, drained)
}

// at kills this process when it is at the point for the last time.
func (w *killWorker) at(p point) {
	if w.Point == p && w.left.Add(-1) == 0 {
		w.die()
	}
}

// within runs a statement, and kills this process at some moment of it when it is
// at the point for the last time.
func (w *killWorker) within(p point) {
	if w.Point == p && w.left.Add(-1) == 0 {
		time.AfterFunc(w.upTo(3*time.Millisecond), w.die)
	}
}

func (w *killWorker) die() {
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {}
}

func (w *killWorker) upTo(d time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Duration(w.draw.Int64N(int64(d)))
}

// pause is work that takes a random while.
func (w *killWorker) pause(ctx context.Context) error {
	timer := time.NewTimer(w.upTo(30 * time.Millisecond))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// record writes a row that stays whatever becomes of this process.
func (w *killWorker) record(ctx context.Context, sql string, args ...any) error {
	_, err := w.records.Exec(ctx, sql, args...)
	return err
}

// mark records how far the sending of deliveries has come.
func (w *killWorker) mark(ctx context.Context, mark string, deliveries ...*bus.Delivery) error {
	var ids []string
	var tokens []int64
	for _, d := range deliveries {
		if d.Consumer == onceWorker {
			ids, tokens = append(ids, d.Event.ID.String()), append(tokens, d.Token)
		}
	}
	if ids == nil {
		return nil
	}
	return w.record(ctx, "insert into mark select *, $3 from unnest($1::uuid[], $2::bigint[])", ids, tokens, mark)
}

func (w *killWorker) relay(ctx context.Context) (int, error) {
	w.within(relaying)
	return w.Relay(ctx)
}

// Claim records what it has claimed, so that a test knows who holds what.
func (w *killWorker) Claim(ctx context.Context, c bus.Claim) ([]bus.Delivery, error) {
	got, err := w.DB.Claim(ctx, c)
	if err != nil || len(got) == 0 {
		return got, err
	}
	w.at(claimed)
	consumers, events, tokens := make([]int, len(got)), make([]string, len(got)), make([]int64, len(got))
	for i, d := range got {
		consumers[i], events[i], tokens[i] = int(d.ConsumerID), d.Event.ID.String(), d.Token
	}
	return got, w.record(ctx, `insert into claimed (worker, consumer_id, event_id, token)
		select $1, * from unnest($2::int[], $3::uuid[], $4::bigint[])`, w.Name, consumers, events, tokens)
}

// Settle records that verdicts are about to be written, and which were.
func (w *killWorker) Settle(ctx context.Context, settlements []bus.Settlement) ([]bus.Lease, error) {
	saying := make([]*bus.Delivery, len(settlements))
	for i, s := range settlements {
		saying[i] = s.Delivery
	}
	if err := w.mark(ctx, "saying", saying...); err != nil {
		return nil, err
	}
	w.within(settling)
	lost, err := w.DB.Settle(ctx, settlements)
	if err != nil {
		return nil, err
	}
	w.at(settled)
	gone := make(map[bus.Lease]bool, len(lost))
	for _, l := range lost {
		gone[l] = true
	}
	var said []*bus.Delivery
	for _, s := range settlements {
		if s.Verdict == bus.VerdictDone && !gone[s.Delivery.Lease()] {
			said = append(said, s.Delivery)
		}
	}
	return lost, w.mark(ctx, "said", said...)
}

// killConsumers are the three readers. Their ladder is short and long enough that
// no number of kills ends a delivery.
func killConsumers() []bus.Consumer {
	retry := bus.RetryPolicy{Steps: []time.Duration{200 * time.Millisecond}, MaxAttempts: 1000}
	consumer := func(name string, effect bus.Effect) bus.Consumer {
		return bus.Consumer{Name: name, Types: []bus.Type{killType}, Effect: effect, Retry: retry, Concurrency: 4, Timeout: 10 * time.Second}
	}
	return []bus.Consumer{
		consumer(localWorker, bus.EffectLocal), consumer(onceWorker, bus.EffectOnce), consumer(atLeastOnceWorker, bus.EffectAtLeastOnce),
	}
}

func (w *killWorker) handlers() []bus.Handler {
	c := killConsumers()
	return []bus.Handler{
		localReader{killReader{c[0], w.handleLocal}}, killReader{c[1], w.handleOnce}, killReader{c[2], w.handleAtLeastOnce},
	}
}

type killReader struct {
	consumer bus.Consumer
	handle   func(ctx context.Context, d *bus.Delivery) error
}

func (r killReader) Consumer() bus.Consumer { return r.consumer }

func (r killReader) Handle(ctx context.Context, d *bus.Delivery) error { return r.handle(ctx, d) }

type localReader struct{ killReader }

func (localReader) SettlesItself() {}

func (w *killWorker) handleLocal(ctx context.Context, d *bus.Delivery) error {
	if err := w.pause(ctx); err != nil {
		return err
	}
	return w.InDelivery(ctx, d, func(t *db.OrgTx) error {
		if err := t.Record(ctx, killEffect, "event", d.Event.ID); err != nil {
			return err
		}
		w.at(inEffect)
		w.within(committing)
		return nil
	})
}

func (w *killWorker) handleOnce(ctx context.Context, d *bus.Delivery) error {
	if err := w.mark(ctx, "beginning", d); err != nil {
		return err
	}
	if err := d.BeginEffect(ctx); err != nil {
		return err
	}
	if err := w.mark(ctx, "begun", d); err != nil {
		return err
	}
	w.at(begun)
	return w.send(ctx, d, happened)
}

func (w *killWorker) handleAtLeastOnce(ctx context.Context, d *bus.Delivery) error {
	return w.send(ctx, d, sent)
}

// send has an effect outside of the transactions of the bus.
func (w *killWorker) send(ctx context.Context, d *bus.Delivery, then point) error {
	if err := w.pause(ctx); err != nil {
		return err
	}
	if err := w.record(ctx, "insert into ledger values ($1, $2, $3)", d.Consumer, d.Event.ID, d.ID); err != nil {
		return err
	}
	w.at(then)
	return w.pause(ctx)
}
