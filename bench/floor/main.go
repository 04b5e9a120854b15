// floor is the least work that an event bus on Postgres can do, through the
// same client library (pgx) and with the same event as the peers: the physical
// limit that a product in Go is held against. No retries, no features.
//
//	event_log  one row an event
//	delivery   one row an event and consumer; a partial index on the ready ones
package main

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/deskcomm/deskcomm/bench/internal/bench"
	"github.com/deskcomm/deskcomm/bench/internal/hook"
)

var (
	db      = flag.String("db", "peers_floor", "database")
	scen    = flag.String("scenario", "insert,drain,latency,fanout", "which")
	n       = flag.Int("n", 100_000, "deliveries to drain")
	events  = flag.Int("events", 20_000, "events to fan out")
	workers = flag.Int("workers", 2, "claim loops")
	batch   = flag.Int("batch", 1000, "rows a claim")
	size    = flag.Int("payload", 500, "bytes of JSON")
	rate    = flag.Int("rate", 200, "events/s of the latency run")
	to      = flag.String("to", "127.0.0.1:18099", "webhook receiver")
	conns   = flag.Int("conns", 64, "webhook connections")
	secs    = flag.Int("secs", 10, "seconds of the timed runs")
)

const ddl = `
DROP TABLE IF EXISTS event_log, delivery, cursors;
CREATE TABLE event_log (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant_id int NOT NULL, type text NOT NULL, payload jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE delivery (
  event_id bigint NOT NULL, consumer_id smallint NOT NULL,
  status smallint NOT NULL DEFAULT 0, attempt smallint NOT NULL DEFAULT 0,
  run_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (event_id, consumer_id));
CREATE INDEX delivery_ready ON delivery (consumer_id, run_at, event_id) WHERE status = 0;
CREATE TABLE cursors (consumer_id smallint PRIMARY KEY, last_id bigint NOT NULL)`

const (
	ins1      = `INSERT INTO event_log (tenant_id,type,payload) VALUES ($1,$2,$3)`
	insNotify = `WITH e AS (INSERT INTO event_log (tenant_id,type,payload) VALUES ($1,$2,$3) RETURNING id) SELECT pg_notify('bus','') FROM e`
	// event + k deliveries: one statement, one commit
	insFan = `WITH e AS (INSERT INTO event_log (tenant_id,type,payload) VALUES ($1,$2,$3) RETURNING id)
		INSERT INTO delivery (event_id, consumer_id) SELECT e.id, c FROM e, unnest($4::smallint[]) c`
	insFanMany = `WITH e AS (INSERT INTO event_log (tenant_id,type,payload) SELECT t, 'contact.updated', p FROM unnest($1::int[],$2::jsonb[]) u(t,p) RETURNING id)
		INSERT INTO delivery (event_id, consumer_id) SELECT e.id, c FROM e, unnest($3::smallint[]) c`
	insMany = `INSERT INTO event_log (tenant_id,type,payload) SELECT * FROM unnest($1::int[],$2::text[],$3::jsonb[])`

	claim = `UPDATE delivery d SET status=1, attempt=d.attempt+1, run_at=now()+interval '60 s'
		FROM (SELECT event_id FROM delivery WHERE consumer_id=$1 AND status=0 AND run_at<=now()
			ORDER BY run_at, event_id LIMIT $2 FOR UPDATE SKIP LOCKED) c, event_log e
		WHERE d.consumer_id=$1 AND d.event_id=c.event_id AND e.id=c.event_id RETURNING d.event_id, e.payload`
	ackDel  = `DELETE FROM delivery WHERE consumer_id=$1 AND event_id=ANY($2::bigint[])`
	ackDone = `UPDATE delivery SET status=2 WHERE consumer_id=$1 AND event_id=ANY($2::bigint[])`
	// the last batch's ack and the next claim: one statement, one commit
	fused = `WITH a AS (DELETE FROM delivery WHERE consumer_id=$1 AND event_id=ANY($3::bigint[])),
		c AS (SELECT event_id FROM delivery WHERE consumer_id=$1 AND status=0 AND run_at<=now()
			ORDER BY run_at, event_id LIMIT $2 FOR UPDATE SKIP LOCKED)
		UPDATE delivery d SET status=1, attempt=d.attempt+1, run_at=now()+interval '60 s'
		FROM c, event_log e WHERE d.consumer_id=$1 AND d.event_id=c.event_id AND e.id=c.event_id RETURNING d.event_id, e.payload`
	// no lease: rows stay locked while the handler runs, then go
	hold = `SELECT d.event_id, e.payload FROM (SELECT event_id FROM delivery WHERE consumer_id=$1 AND status=0 AND run_at<=now()
			ORDER BY run_at, event_id LIMIT $2 FOR UPDATE SKIP LOCKED) d JOIN event_log e ON e.id=d.event_id`
	// no row a delivery at all: one cursor row a consumer
	readLog = `SELECT id, payload FROM event_log WHERE id > $1 ORDER BY id LIMIT $2`
)

var ctx = context.Background()

type handler func(id int64, body []byte)

func scan(rows pgx.Rows, err error, h handler) []int64 {
	bench.Must(err)
	var ids []int64
	var id int64
	var body []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &body}, func() error {
		if h != nil {
			h(id, body)
		}
		ids = append(ids, id)
		return nil
	})
	bench.Must(err)
	return ids
}

// drain empties consumer c in the given mode and tells how many it handled.
func drain(p *pgxpool.Pool, mode string, c int, h handler) (done int) {
	switch mode {
	case "claim+delete", "claim+done":
		ack := ackDel
		if mode == "claim+done" {
			ack = ackDone
		}
		for {
			rows, err := p.Query(ctx, claim, c, *batch)
			ids := scan(rows, err, h)
			if len(ids) == 0 {
				return
			}
			_, err = p.Exec(ctx, ack, c, ids)
			bench.Must(err)
			done += len(ids)
		}
	case "fused ack+claim":
		ids := []int64{}
		for {
			rows, err := p.Query(ctx, fused, c, *batch, ids)
			got := scan(rows, err, h)
			done += len(ids)
			if len(got) == 0 {
				if len(ids) > 0 {
					_, err = p.Exec(ctx, ackDel, c, ids)
					bench.Must(err)
				}
				return
			}
			ids = got
		}
	case "hold+delete":
		for {
			tx, err := p.Begin(ctx)
			bench.Must(err)
			rows, err := tx.Query(ctx, hold, c, *batch)
			ids := scan(rows, err, h)
			if len(ids) == 0 {
				bench.Must(tx.Rollback(ctx))
				return
			}
			b := &pgx.Batch{}
			b.Queue(ackDel, c, ids)
			b.Queue("COMMIT")
			bench.Must(tx.SendBatch(ctx, b).Close())
			_ = tx.Rollback(ctx)
			done += len(ids)
		}
	case "cursor":
		for {
			tx, err := p.Begin(ctx)
			bench.Must(err)
			var last int64
			bench.Must(tx.QueryRow(ctx, "SELECT last_id FROM cursors WHERE consumer_id=$1 FOR UPDATE", c).Scan(&last))
			rows, err := tx.Query(ctx, readLog, last, *batch)
			ids := scan(rows, err, h)
			if len(ids) == 0 {
				bench.Must(tx.Rollback(ctx))
				return
			}
			_, err = tx.Exec(ctx, "UPDATE cursors SET last_id=$2 WHERE consumer_id=$1", c, ids[len(ids)-1])
			bench.Must(err)
			bench.Must(tx.Commit(ctx))
			done += len(ids)
		}
	}
	panic(mode)
}

func main() {
	flag.Parse()
	p := bench.Pool(ctx, *db, 16)
	mode := bench.Sync(ctx, p)
	emit := func(s, params, metric string, v float64) {
		bench.Emit(bench.Result{Peer: "floor", Sync: mode, Scenario: s, Params: params, Metric: metric, Value: v})
	}
	reset := func() { bench.Exec(ctx, p, ddl, "CHECKPOINT") }
	settle := func() { bench.Exec(ctx, p, "VACUUM ANALYZE event_log", "VACUUM ANALYZE delivery", "CHECKPOINT") }
	body := func(k int64) []byte { return bench.NewEvent(k, *size).JSON() }
	fill := func(total int, consumers int) {
		reset()
		const b = 5000
		for i := 0; i < total; i += b {
			var ten []int32
			var typ []string
			var pay [][]byte
			for j := i; j < min(i+b, total); j++ {
				ten, typ, pay = append(ten, int32(j%100)), append(typ, "contact.updated"), append(pay, body(int64(j)))
			}
			_, err := p.Exec(ctx, insMany, ten, typ, pay)
			bench.Must(err)
		}
		bench.Exec(ctx, p, fmt.Sprintf("INSERT INTO delivery (event_id,consumer_id) SELECT id, c FROM event_log, generate_series(1,%d) c ORDER BY id, c", consumers),
			fmt.Sprintf("INSERT INTO cursors SELECT c, 0 FROM generate_series(1,%d) c", consumers))
		settle()
	}

	for _, s := range bench.Scenarios(*scen) {
		switch s {
		case "insert":
			for _, g := range []int{1, 8, 32} {
				pp := bench.Pool(ctx, *db, g)
				reset()
				var cnt atomic.Int64
				end := time.Now().Add(time.Duration(*secs) * time.Second / 2)
				t0 := time.Now()
				bench.Parallel(g, func(i int) {
					for k := int64(i); time.Now().Before(end); k += int64(g) {
						_, err := pp.Exec(ctx, ins1, int(k%100), "contact.updated", body(k))
						bench.Must(err)
						cnt.Add(1)
					}
				})
				emit(s, fmt.Sprintf("INSERT x1, %d goroutines, payload=%d", g, *size), "rows_per_s", float64(cnt.Load())/time.Since(t0).Seconds())
				pp.Close()
			}
			// the same with a NOTIFY in each transaction: commits queue behind one lock
			for _, g := range []int{8, 32} {
				pp := bench.Pool(ctx, *db, g)
				reset()
				var cnt atomic.Int64
				end := time.Now().Add(time.Duration(*secs) * time.Second / 2)
				t0 := time.Now()
				bench.Parallel(g, func(i int) {
					for k := int64(i); time.Now().Before(end); k += int64(g) {
						_, err := pp.Exec(ctx, insNotify, int(k%100), "contact.updated", body(k))
						bench.Must(err)
						cnt.Add(1)
					}
				})
				emit(s, fmt.Sprintf("INSERT x1 + pg_notify, %d goroutines, payload=%d", g, *size), "rows_per_s", float64(cnt.Load())/time.Since(t0).Seconds())
				pp.Close()
			}
			for _, b := range []int{100, 1000} {
				reset()
				var ten []int32
				var typ []string
				var pay [][]byte
				for j := range b {
					ten, typ, pay = append(ten, int32(j%100)), append(typ, "contact.updated"), append(pay, body(int64(j)))
				}
				total := 100_000
				t0 := time.Now()
				for range total / b {
					_, err := p.Exec(ctx, insMany, ten, typ, pay)
					bench.Must(err)
				}
				emit(s, fmt.Sprintf("INSERT unnest x%d, 1 goroutine, payload=%d", b, *size), "rows_per_s", float64(total)/time.Since(t0).Seconds())
			}
			reset()
			var src [][]any
			for j := range 10_000 {
				src = append(src, []any{int32(j % 100), "contact.updated", body(int64(j))})
			}
			t0 := time.Now()
			for range 10 {
				_, err := p.CopyFrom(ctx, pgx.Identifier{"event_log"}, []string{"tenant_id", "type", "payload"}, pgx.CopyFromRows(src))
				bench.Must(err)
			}
			emit(s, fmt.Sprintf("COPY x10000, 1 goroutine, payload=%d", *size), "rows_per_s", 100_000/time.Since(t0).Seconds())

		case "drain":
			for _, how := range []string{"claim+delete", "claim+done", "fused ack+claim", "hold+delete", "cursor"} {
				fill(*n, 1)
				w := *workers
				if how == "cursor" {
					w = 1
				}
				var done atomic.Int64
				t0 := time.Now()
				bench.Parallel(w, func(int) { done.Add(int64(drain(p, how, 1, nil))) })
				el := time.Since(t0)
				if done.Load() != int64(*n) {
					bench.Must(fmt.Errorf("%s: drained %d of %d", how, done.Load(), *n))
				}
				emit(s, fmt.Sprintf("%s, batch=%d loops=%d payload=%d", how, *batch, w, *size), "jobs_per_s", float64(*n)/el.Seconds())
			}

		case "latency":
			reset()
			total := *rate * *secs
			committed, started := make([]atomic.Int64, total), make([]atomic.Int64, total)
			lc, err := p.Acquire(ctx)
			bench.Must(err)
			_, err = lc.Exec(ctx, "LISTEN bus")
			bench.Must(err)
			wake := make(chan struct{}, 1)
			stop, cancel := context.WithCancel(ctx)
			go func() {
				for {
					if _, err := lc.Conn().WaitForNotification(stop); err != nil {
						return
					}
					select {
					case wake <- struct{}{}:
					default:
					}
				}
			}()
			var handled atomic.Int64
			fin := make(chan struct{})
			go func() {
				for range wake {
					for {
						rows, err := p.Query(ctx, claim, 1, 100)
						ids := scan(rows, err, func(id int64, _ []byte) { started[id-1].Store(time.Now().UnixNano()) })
						if len(ids) == 0 {
							break
						}
						_, err = p.Exec(ctx, ackDel, 1, ids)
						bench.Must(err)
						if handled.Add(int64(len(ids))) == int64(total) {
							close(fin)
						}
					}
				}
			}()
			ins := bench.Pool(ctx, *db, 8)
			var call bench.Latencies
			type key struct{ at, id int64 }
			keys := make([]key, total)
			t0 := time.Now()
			sem := make(chan struct{}, 64)
			for i := range total {
				time.Sleep(time.Until(t0.Add(time.Duration(i) * time.Second / time.Duration(*rate))))
				sem <- struct{}{}
				go func() {
					a := time.Now()
					var id int64
					bench.Must(ins.QueryRow(ctx, `WITH e AS (INSERT INTO event_log (tenant_id,type,payload) VALUES ($1,$2,$3) RETURNING id),
						d AS (INSERT INTO delivery (event_id,consumer_id) SELECT id,1 FROM e)
						SELECT e.id, pg_notify('bus','') FROM e`, i%100, "contact.updated", body(int64(i))).Scan(&id, nil))
					committed[id-1].Store(time.Now().UnixNano())
					keys[i] = key{0, id}
					call.Add(time.Since(a))
					<-sem
				}()
			}
			select {
			case <-fin:
			case <-time.After(30 * time.Second):
				bench.Must(fmt.Errorf("latency: %d of %d", handled.Load(), total))
			}
			cancel()
			time.Sleep(50 * time.Millisecond)
			var l bench.Latencies
			for i := range total {
				l.Add(time.Duration(max(0, started[i].Load()-committed[i].Load())))
			}
			r := bench.Result{Peer: "floor", Scenario: s, Sync: mode, Params: fmt.Sprintf("rate=%d, notify then claim, payload=%d", *rate, *size)}
			bench.EmitLatency(r, &l)
			r.Metric, r.Value = "insert_p50_ms", call.P(.5)
			bench.Emit(r)

		case "webhook":
			// claim a batch, POST its events over -conns connections, delete; two batches in flight
			fill(*n, 1)
			type msg struct {
				id   int64
				body []byte
				wg   *sync.WaitGroup
			}
			cl := hook.New(*to, *conns)
			ch := make(chan msg, *batch)
			for range *conns {
				go func() {
					for m := range ch {
						bench.Must(cl.Post(ctx, m.id, m.body))
						m.wg.Done()
					}
				}()
			}
			t0 := time.Now()
			bench.Parallel(2, func(int) {
				for {
					var ms []msg
					var wg sync.WaitGroup
					rows, err := p.Query(ctx, claim, 1, *batch)
					ids := scan(rows, err, func(id int64, b []byte) { ms = append(ms, msg{id, append([]byte(nil), b...), &wg}) })
					if len(ids) == 0 {
						return
					}
					wg.Add(len(ms))
					for _, m := range ms {
						ch <- m
					}
					wg.Wait()
					_, err = p.Exec(ctx, ackDel, 1, ids)
					bench.Must(err)
				}
			})
			close(ch)
			emit(s, fmt.Sprintf("claim, POST, delete; batch=%d conns=%d payload=%d", *batch, *conns, *size), "posts_per_s", float64(*n)/time.Since(t0).Seconds())

		case "fanout":
			pub := func() time.Duration {
				pp := bench.Pool(ctx, *db, 8)
				defer pp.Close()
				t0 := time.Now()
				var next atomic.Int64
				bench.Parallel(8, func(int) {
					for {
						k := next.Add(1) - 1
						if k >= int64(*events) {
							return
						}
						_, err := pp.Exec(ctx, insFan, int(k%100), "contact.updated", body(k), []int16{1, 2, 3})
						bench.Must(err)
					}
				})
				return time.Since(t0)
			}
			// callers wait for a durable answer, one writer puts what has gathered
			// into one statement and commit (what an ingest API may do)
			coalesced := func(callers int) float64 {
				type req struct {
					body []byte
					done chan struct{}
				}
				ch := make(chan req, callers)
				pp := bench.Pool(ctx, *db, 2)
				defer pp.Close()
				for range 2 {
					go func() {
						for r := range ch {
							b := []req{r}
							for more := true; more && len(b) < 500; {
								select {
								case r := <-ch:
									b = append(b, r)
								default:
									more = false
								}
							}
							pay := make([][]byte, len(b))
							ten := make([]int32, len(b))
							for i := range b {
								pay[i] = b[i].body
							}
							_, err := pp.Exec(ctx, insFanMany, ten, pay, []int16{1, 2, 3})
							bench.Must(err)
							for _, r := range b {
								close(r.done)
							}
						}
					}()
				}
				t0 := time.Now()
				var next atomic.Int64
				bench.Parallel(callers, func(int) {
					for {
						k := next.Add(1) - 1
						if k >= int64(*events) {
							return
						}
						r := req{body(k), make(chan struct{})}
						ch <- r
						<-r.done
					}
				})
				v := float64(*events) / time.Since(t0).Seconds()
				close(ch)
				return v
			}
			for _, c := range []int{64, 256} {
				reset()
				emit(s, fmt.Sprintf("3 consumers, %d callers coalesced by 2 writers, payload=%d", c, *size), "publish_events_per_s", coalesced(c))
			}
			par := fmt.Sprintf("3 consumers, claim+delete batch=%d, 1 loop a consumer, payload=%d", *batch, *size)
			total := int64(*events * 3)
			reset()
			emit(s, par, "publish_events_per_s", float64(*events)/pub().Seconds())
			settle()
			var done atomic.Int64
			t0 := time.Now()
			bench.Parallel(3, func(i int) { done.Add(int64(drain(p, "claim+delete", i+1, nil))) })
			if done.Load() != total {
				bench.Must(fmt.Errorf("fanout: %d of %d", done.Load(), total))
			}
			emit(s, par, "drain_deliveries_per_s", float64(total)/time.Since(t0).Seconds())
			reset()
			done.Store(0)
			t0 = time.Now()
			var pt time.Duration
			bench.Parallel(4, func(i int) {
				if i == 3 {
					pt = pub()
					return
				}
				for done.Load() < total {
					d := drain(p, "claim+delete", i+1, nil)
					done.Add(int64(d))
					if d < *batch {
						time.Sleep(10 * time.Millisecond) // let a batch gather
					}
				}
			})
			emit(s, par, "live_deliveries_per_s", float64(total)/time.Since(t0).Seconds())
			emit(s, par, "live_publish_events_per_s", float64(*events)/pt.Seconds())
		}
	}
}
