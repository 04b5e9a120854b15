package db_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// heldBy runs fn in an open transaction of its own, and then rolls it back.
func (w world) heldBy(lock string, args []any, fn func(release func())) {
	w.Helper()
	tx, err := dbtest.Conn(w.T, w.url).Begin(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	if _, err := tx.Exec(w.Context(), lock, args...); err != nil {
		w.Fatal(err)
	}
	release := sync.OnceFunc(func() {
		if err := tx.Rollback(context.Background()); err != nil {
			w.Error(err)
		}
	})
	defer release()
	fn(release)
}

// waitsForALock waits until a call of a function waits for a lock.
func (w world) waitsForALock(function string) {
	w.Helper()
	dbtest.Eventually(w.T, function+" waits", func() bool {
		return w.count(`select count(*) from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock' and query ~ $1 and pid <> pg_backend_pid()`, function) > 0
	})
}

func TestBackfillThatWasKilledIsCompletedByTheNext(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	typ := ownType()
	ids := w.emitMany(typ, 2500)
	w.relay()
	consumer := w.consumer(typ)
	ctx, kill := context.WithCancel(t.Context())
	defer kill()
	failed := make(chan error, 1)
	const collide = `insert into delivery (consumer_id, destination, organization_id, seq, event_id, due_at)
		select c.id, '00000000-0000-0000-0000-000000000000', $1, p.seq, p.event_id, 'infinity'
		  from consumers c, event_position p where c.name = $2 and p.event_id = $3`
	w.heldBy(collide, []any{w.org, consumer, ids[1700]}, func(func()) {
		go func() {
			_, err := w.db.RunBackfill(ctx, operator(), w.past(consumer))
			failed <- err
		}()
		w.waitsForALock("backfill_deliveries") // in its second step
		kill()
		if err := <-failed; err == nil {
			t.Error("the killed backfill ended well")
		}
	})
	if n := w.count("select count(*) from delivery"); n != 1000 {
		t.Errorf("%d deliveries after the first step, want 1000", n)
	}
	if got := w.backfill(w.past(consumer)); got.Made != 1500 || got.Unfinished != 1000 {
		t.Errorf("the next run: %+v, want the other 1500 made", got)
	}
	if n := w.count("select count(distinct event_id) from delivery"); n != 2500 {
		t.Errorf("%d events have a delivery, want 2500", n)
	}
	var acts []string
	rows, err := dbtest.Conn(t, w.url).Query(t.Context(), "select action || ' ' || actor_name from audit_log where resource_type = 'consumer' and organization_id is null order by id")
	if err == nil {
		acts, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	want := []string{"consumer.backfill_started ana", "consumer.backfill_started ana", "consumer.backfilled ana"}
	if diff := cmp.Diff(want, acts); diff != "" || err != nil {
		t.Errorf("audited (-want +got), %v:\n%s", err, diff)
	}
}

// A delivery that ends while a backfill runs is gone from the one table and in the
// other: at no moment may it look as if the reader never had it.
func TestBackfillDoesNotRepeatWhatIsSettledAtThatMoment(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w world, d bus.Delivery){
		"done":      func(w world, d bus.Delivery) { w.settle(d, bus.VerdictDone, "") },
		"skipped":   func(w world, d bus.Delivery) { w.settle(d, bus.VerdictSkip, "not for us") },
		"dead":      func(w world, d bus.Delivery) { w.settle(d, bus.VerdictDead, "broken") },
		"uncertain": func(w world, d bus.Delivery) { w.settle(d, bus.VerdictUncertain, "no answer") },
	} {
		for moment, collides := range map[string]bool{"before it looks": false, "between its look and its insert": true} {
			t.Run(name+" "+moment, func(t *testing.T) {
				t.Parallel()
				w := withWebhooks(t)
				typ := ownType()
				missing := w.emit(typ)
				w.relay()
				consumer := w.consumer(typ)
				had := w.emit(typ)
				w.relay()
				held := w.claim(consumer, 1)[0]
				lock, args := "select from relay_state for update", []any(nil)
				if collides {
					lock = `insert into delivery (consumer_id, destination, organization_id, seq, event_id, due_at)
						select c.id, '00000000-0000-0000-0000-000000000000', $1, p.seq, p.event_id, 'infinity'
						  from consumers c, event_position p where c.name = $2 and p.event_id = $3`
					args = []any{w.org, consumer, missing}
				}
				made := make(chan int, 1)
				w.heldBy(lock, args, func(release func()) {
					go func() {
						counts, err := w.db.RunBackfill(t.Context(), operator(), w.past(consumer))
						if err != nil || len(counts) != 1 {
							made <- -1
							return
						}
						made <- counts[0].Made
					}()
					w.waitsForALock("backfill_deliveries")
					end(w, held)
					release()
					if n := <-made; n != 1 {
						t.Errorf("%d deliveries are made, want that of the event it never had", n)
					}
				})
				if n := w.count("select count(*) from delivery where event_id = $1", had); n != 0 {
					t.Error("what was settled is to be handled again")
				}
			})
		}
	}
}

func TestEachEventIsHandledOnceHoweverBackfillRelayAndClaimsMix(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	typ := ownType()
	const events = 600
	w.emitMany(typ, events/2)
	w.relay()
	consumer := w.consumer(typ)
	var mu sync.Mutex
	handled := make(map[uuid.UUID]int)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var beside, running sync.WaitGroup
	for range 4 {
		beside.Go(func() {
			for ctx.Err() == nil {
				w.relay()
				claimed, err := w.db.Claim(t.Context(), bus.Claim{Wants: []bus.Want{{Consumer: consumer, Limit: 7}}})
				if err != nil {
					t.Error(err)
				}
				for _, d := range claimed {
					lost, err := w.db.Settle(t.Context(), []bus.Settlement{{Delivery: &d, Verdict: bus.VerdictDone}})
					if err != nil || len(lost) != 0 {
						t.Errorf("settled: %v, %v", lost, err)
					}
					mu.Lock()
					handled[d.Event.ID]++
					mu.Unlock()
				}
			}
		})
	}
	for range 3 {
		running.Go(func() {
			for range 4 {
				if _, err := w.db.RunBackfill(t.Context(), operator(), w.past(consumer)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 10 {
		w.emitMany(typ, events/2/10)
	}
	running.Wait()
	dbtest.Eventually(t, "all are handled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(handled) == events
	})
	stop()
	beside.Wait()
	if got := w.backfill(w.past(consumer)); got.Made != 0 || got.Done != events {
		t.Errorf("a last backfill: %+v, want all done before", got)
	}
	for id, n := range handled {
		if n != 1 {
			t.Errorf("%s was handled %d times", id, n)
		}
	}
}
