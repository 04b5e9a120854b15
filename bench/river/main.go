// river measures github.com/riverqueue/river: insert rates, drain of a
// pre-inserted backlog (the way its own `river bench -n` counts: jobs whose
// completion went through the completer), insert-commit to handler-start
// latency at a steady rate, and fan-out of one event to three job kinds.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/deskcomm/deskcomm/bench/internal/bench"
	"github.com/deskcomm/deskcomm/bench/internal/hook"
)

type (
	argsA struct{ bench.Event }
	argsB struct{ bench.Event }
	argsC struct{ bench.Event }
)

func (argsA) Kind() string { return "consumer_a" }
func (argsB) Kind() string { return "consumer_b" }
func (argsC) Kind() string { return "consumer_c" }

var onWork func(id int64)

// onHook, when set, makes consumer_a a webhook sender.
var onHook func(ctx context.Context, e bench.Event) error

type (
	wA struct{ river.WorkerDefaults[argsA] }
	wB struct{ river.WorkerDefaults[argsB] }
	wC struct{ river.WorkerDefaults[argsC] }
)

func (wA) Work(ctx context.Context, j *river.Job[argsA]) error {
	if onHook != nil {
		return onHook(ctx, j.Args.Event)
	}
	onWork(j.Args.ID)
	return nil
}
func (wB) Work(_ context.Context, j *river.Job[argsB]) error { onWork(j.Args.ID); return nil }
func (wC) Work(_ context.Context, j *river.Job[argsC]) error { onWork(j.Args.ID); return nil }

var (
	db       = flag.String("db", "peers_river", "database")
	scen     = flag.String("scenario", "insert,drain,latency,fanout", "which")
	n        = flag.Int("n", 100_000, "jobs to drain")
	events   = flag.Int("events", 20_000, "events to fan out")
	workers  = flag.Int("workers", 1000, "MaxWorkers")
	clients  = flag.Int("clients", 1, "worker clients in the process")
	cooldown = flag.Duration("cooldown", 2*time.Millisecond, "FetchCooldown")
	insCool  = flag.Duration("inscooldown", 100*time.Millisecond, "FetchCooldown of the inserting client: it sends one NOTIFY a queue in each such span")
	poll     = flag.Duration("poll", 20*time.Millisecond, "FetchPollInterval")
	size     = flag.Int("payload", 500, "bytes of JSON")
	conns    = flag.Int("conns", 10, "pool size")
	rate     = flag.Int("rate", 200, "jobs/s of the latency run")
	to       = flag.String("to", "127.0.0.1:18099", "webhook receiver")
	hconns   = flag.Int("hookconns", 64, "webhook connections")
	secs     = flag.Int("secs", 10, "seconds of the timed insert and latency runs")
)

func client(p *pgxpool.Pool, work bool) *river.Client[pgx.Tx] {
	cfg := &river.Config{FetchCooldown: *insCool, Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))}
	if work {
		w := river.NewWorkers()
		river.AddWorker(w, &wA{})
		river.AddWorker(w, &wB{})
		river.AddWorker(w, &wC{})
		cfg.Workers = w
		cfg.FetchCooldown = *cooldown
		cfg.FetchPollInterval = *poll
		cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: *workers}}
	}
	c, err := river.NewClient(riverpgxv5.New(p), cfg)
	bench.Must(err)
	return c
}

func main() {
	flag.Parse()
	ctx := context.Background()
	p := bench.Pool(ctx, *db, *conns)
	m, err := rivermigrate.New(riverpgxv5.New(p), nil)
	bench.Must(err)
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	bench.Must(err)
	sync := bench.Sync(ctx, p)
	reset := func() { bench.Exec(ctx, p, "TRUNCATE river_job", "VACUUM river_job", "CHECKPOINT") }
	settle := func() { bench.Exec(ctx, p, "VACUUM ANALYZE river_job", "CHECKPOINT") }
	onWork = func(int64) {}
	wp := fmt.Sprintf("workers=%d clients=%d cooldown=%s inscooldown=%s payload=%d", *workers, *clients, *cooldown, *insCool, *size)

	// run starts the worker clients, calls body, and waits until total jobs
	// were completed; it gives the time from start to the last completion.
	run := func(total int, body func()) time.Duration {
		var done atomic.Int64
		last := make(chan time.Time, 1)
		var cs []*river.Client[pgx.Tx]
		for range *clients {
			c := client(bench.Pool(ctx, *db, *conns), true)
			ch, cancel := c.SubscribeConfig(&river.SubscribeConfig{ChanSize: total + 1, Kinds: []river.EventKind{river.EventKindJobCompleted}})
			defer cancel()
			go func() {
				for range ch {
					if done.Add(1) == int64(total) {
						last <- time.Now()
					}
				}
			}()
			cs = append(cs, c)
		}
		t0 := time.Now()
		for _, c := range cs {
			bench.Must(c.Start(ctx))
		}
		body()
		var el time.Duration
		select {
		case t := <-last:
			el = t.Sub(t0)
		case <-time.After(240 * time.Second):
			bench.Must(fmt.Errorf("timed out with %d of %d done", done.Load(), total))
		}
		for _, c := range cs {
			bench.Must(c.Stop(ctx))
		}
		return el
	}
	fill := func(c *river.Client[pgx.Tx], total, kinds int) {
		const b = 3000
		for i := 0; i < total; i += b / kinds {
			var ps []river.InsertManyParams
			for j := i; j < min(i+b/kinds, total); j++ {
				ps = append(ps, fan(bench.NewEvent(int64(j), *size), kinds)...)
			}
			_, err := c.InsertManyFast(ctx, ps)
			bench.Must(err)
		}
	}

	for _, s := range bench.Scenarios(*scen) {
		r := bench.Result{Peer: "river", Sync: sync, Params: wp, Scenario: s}
		switch s {
		case "insert":
			ins := client(p, false)
			reset()
			var cnt atomic.Int64
			end := time.Now().Add(time.Duration(*secs) * time.Second / 2)
			t0 := time.Now()
			bench.Parallel(8, func(i int) {
				for k := int64(i); time.Now().Before(end); k += 8 {
					_, err := ins.Insert(ctx, argsA{bench.NewEvent(k, *size)}, nil)
					bench.Must(err)
					cnt.Add(1)
				}
			})
			r.Params, r.Metric, r.Value = fmt.Sprintf("Insert x1, 8 goroutines, payload=%d", *size), "rows_per_s", float64(cnt.Load())/time.Since(t0).Seconds()
			bench.Emit(r)
			for _, fast := range []bool{false, true} {
				reset()
				var batches [][]river.InsertManyParams
				for b := range 60 {
					var ps []river.InsertManyParams
					for k := range 1000 {
						ps = append(ps, river.InsertManyParams{Args: argsA{bench.NewEvent(int64(b*1000+k), *size)}})
					}
					batches = append(batches, ps)
				}
				name := "InsertMany"
				t0 := time.Now()
				for _, ps := range batches {
					if fast {
						name = "InsertManyFast"
						_, err = ins.InsertManyFast(ctx, ps)
					} else {
						_, err = ins.InsertMany(ctx, ps)
					}
					bench.Must(err)
				}
				r.Params, r.Value = fmt.Sprintf("%s x1000, 1 goroutine, payload=%d", name, *size), 60_000/time.Since(t0).Seconds()
				bench.Emit(r)
			}

		case "drain":
			reset()
			fill(client(p, false), *n, 1)
			settle()
			el := run(*n, func() {})
			r.Metric, r.Value = "jobs_per_s", float64(*n)/el.Seconds()
			bench.Emit(r)
			var c int
			bench.Must(p.QueryRow(ctx, "SELECT count(*) FROM river_job WHERE state='completed'").Scan(&c))
			if c != *n {
				bench.Must(fmt.Errorf("drained %d of %d", c, *n))
			}

		case "latency":
			reset()
			total := *rate * *secs
			committed := make([]atomic.Int64, total)
			started := make([]atomic.Int64, total)
			onWork = func(id int64) { started[id].Store(time.Now().UnixNano()) }
			ins := client(bench.Pool(ctx, *db, *conns), false)
			var call bench.Latencies
			run(total, func() {
				time.Sleep(500 * time.Millisecond)
				t0 := time.Now()
				sem := make(chan struct{}, 64)
				for i := range total {
					time.Sleep(time.Until(t0.Add(time.Duration(i) * time.Second / time.Duration(*rate))))
					sem <- struct{}{}
					go func() {
						a := time.Now()
						_, err := ins.Insert(ctx, argsA{bench.NewEvent(int64(i), *size)}, nil)
						bench.Must(err)
						committed[i].Store(time.Now().UnixNano())
						call.Add(time.Since(a))
						<-sem
					}()
				}
			})
			onWork = func(int64) {}
			var l bench.Latencies
			for i := range total {
				l.Add(time.Duration(max(0, started[i].Load()-committed[i].Load())))
			}
			r.Params = fmt.Sprintf("rate=%d ", *rate) + wp
			bench.EmitLatency(r, &l)
			r.Metric, r.Value = "insert_p50_ms", call.P(.5)
			bench.Emit(r)

		case "webhook":
			// every job POSTs its event, signed, over -hookconns connections
			reset()
			fill(client(p, false), *n, 1)
			settle()
			cl := hook.New(*to, *hconns)
			onHook = func(ctx context.Context, e bench.Event) error { return cl.Post(ctx, e.ID, e.JSON()) }
			el := run(*n, func() {})
			onHook = nil
			r.Params = fmt.Sprintf("conns=%d ", *hconns) + wp
			r.Metric, r.Value = "posts_per_s", float64(*n)/el.Seconds()
			bench.Emit(r)

		case "fanout":
			ins := client(p, false)
			// publish alone: one event = 3 jobs in one statement and commit
			reset()
			pub := func() time.Duration {
				t0 := time.Now()
				var next atomic.Int64
				bench.Parallel(8, func(int) {
					for {
						k := next.Add(1) - 1
						if k >= int64(*events) {
							return
						}
						_, err := ins.InsertManyFast(ctx, fan(bench.NewEvent(k, *size), 3))
						bench.Must(err)
					}
				})
				return time.Since(t0)
			}
			r.Metric, r.Value = "publish_events_per_s", float64(*events)/pub().Seconds()
			bench.Emit(r)
			// drain of what was published
			settle()
			el := run(*events*3, func() {})
			r.Metric, r.Value = "drain_deliveries_per_s", float64(*events*3)/el.Seconds()
			bench.Emit(r)
			// both at once
			reset()
			var pt time.Duration
			el = run(*events*3, func() { pt = pub() })
			r.Metric, r.Value = "live_deliveries_per_s", float64(*events*3)/el.Seconds()
			bench.Emit(r)
			r.Metric, r.Value = "live_publish_events_per_s", float64(*events)/pt.Seconds()
			bench.Emit(r)
		}
	}
}

func fan(e bench.Event, kinds int) []river.InsertManyParams {
	ps := []river.InsertManyParams{{Args: argsA{e}}}
	if kinds == 3 {
		ps = append(ps, river.InsertManyParams{Args: argsB{e}}, river.InsertManyParams{Args: argsC{e}})
	}
	return ps
}
