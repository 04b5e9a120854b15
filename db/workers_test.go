package db_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// Three consumers with local effects, each drained by two processes' worth of
// drain loops at once, have the effect of each of a thousand events once.
func TestThreeLocalConsumersInTwoProcessesHaveEachOfAThousandEffectsOnce(t *testing.T) {
	t.Parallel()
	w := alone(t)
	const events = 1000
	names := []string{"ai-worker", "crm-worker", "search-worker"}
	var handled [2][3]atomic.Int64
	var calls sync.Map // consumer and event → times
	handlers := func(process int, log *db.DB) []bus.Handler {
		list := make([]bus.Handler, len(names))
		for i, name := range names {
			list[i] = effector{
				name: name, types: []bus.Type{bus.MessageReceived}, made: bus.Type(fmt.Sprintf("custom.effect_%d", i)), log: log,
				before: func(_ context.Context, d *bus.Delivery) error {
					handled[process][i].Add(1)
					n, _ := calls.LoadOrStore([2]string{name, d.Event.ID.String()}, new(atomic.Int64))
					n.(*atomic.Int64).Add(1)
					return nil
				},
			}
		}
		return list
	}
	w.register(handlers(0, w.db)...)
	var ids []uuid.UUID
	batch := slices.Repeat([]db.NewEvent{{Type: bus.MessageReceived, EntityKind: "message"}}, events)
	err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) (err error) {
		ids, err = tx.EmitAll(t.Context(), batch)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	w.relay()
	logs := []*db.DB{dbtest.Open(t, w.url, db.Options{MaxConns: 8}), dbtest.Open(t, w.url, db.Options{MaxConns: 8})}
	stops := make([]func(), len(logs))
	for process, log := range logs {
		stops[process] = drain(t, log, handlers(process, log)...)
	}
	dbtest.Eventually(t, "no delivery is left", func() bool { return w.count("select count(*) from delivery") == 0 })
	for _, stop := range stops {
		stop()
	}

	for i, name := range names {
		for _, id := range ids {
			n, ok := calls.Load([2]string{name, id.String()})
			if !ok || n.(*atomic.Int64).Load() != 1 {
				t.Errorf("%s had event %s in hand %v times, want once", name, id, n)
			}
		}
		both := w.count("select count(distinct entity_id) from event_log where event_type = $1", fmt.Sprintf("custom.effect_%d", i))
		all := w.count("select count(*) from event_log where event_type = $1", fmt.Sprintf("custom.effect_%d", i))
		if both != events || all != events {
			t.Errorf("%s has had %d effects on %d events, want one on each of %d", name, all, both, events)
		}
		t.Logf("%s: %d and %d of the events in the two processes", name, handled[0][i].Load(), handled[1][i].Load())
		if handled[0][i].Load() == 0 || handled[1][i].Load() == 0 {
			t.Errorf("%s was drained by one process alone, which proves nothing about two", name)
		}
	}
	var got []string
	err = dbtest.Row(t, w.url, `
		select array_agg(line) from (
		    select concat_ws(' ', status, consumed_by, attempts, count(*)) as line
		      from event_log_status where event_type = 'message.received' group by status, consumed_by, attempts) x`, nil, &got)
	if want := []string{"done {ai-worker,crm-worker,search-worker} 1 1000"}; err != nil || !cmp.Equal(got, want) {
		t.Errorf("event_log_status says %v, %v, want %v", got, err, want)
	}
}

// One of three consumers fails at an event for ever: it climbs the default ladder
// and dies at the eighth attempt, while the others have had their effects.
func TestFailingLocalConsumerClimbsTheDefaultLadderAndDiesAloneAtTheEighthAttempt(t *testing.T) {
	t.Parallel()
	w := alone(t)
	made := func(i int) bus.Type { return bus.Type(fmt.Sprintf("custom.effect_%d", i)) }
	var list []bus.Handler
	var effectors []effector
	for i, name := range []string{"ai-worker", "crm-worker", "search-worker"} {
		h := effector{name: name, types: []bus.Type{bus.MessageReceived}, made: made(i), log: w.db}
		if name == "crm-worker" {
			h.before = func(_ context.Context, d *bus.Delivery) error {
				// The effect is tried and fails with what it has done so far.
				return w.db.InDelivery(t.Context(), d, func(tx *db.OrgTx) error {
					_, err := tx.Emit(t.Context(), db.NewEvent{Type: made(i), EntityKind: "effect", EntityID: uuid.NullUUID{UUID: d.Event.ID, Valid: true}})
					return errors.Join(err, fmt.Errorf("try %d", d.Attempt))
				})
			}
		}
		effectors, list = append(effectors, h), append(list, h)
	}
	w.register(list...)
	policy := bus.DefaultRetry()
	drain(t, w.db, list...)
	event := w.emit(bus.MessageReceived)
	w.relay()
	for attempt := 1; attempt < policy.MaxAttempts; attempt++ {
		status := fmt.Sprintf("pending %d/8", attempt)
		dbtest.Eventually(t, "the failing one is "+status, func() bool { return w.states(event)["crm-worker"] == status })
		var wait time.Duration
		var text string
		if err := dbtest.Row(t, w.url, "select due_at - updated_at, last_error from delivery where event_id = $1 and attempts > 0", []any{event}, &wait, &text); err != nil {
			t.Fatal(err)
		}
		step := policy.Steps[attempt-1]
		if most := step + time.Duration(policy.Jitter*float64(step)) + time.Second; wait < step || wait > most || text != fmt.Sprintf("try %d", attempt) {
			t.Errorf("after attempt %d it waits %s with %q, want %s to %s", attempt, wait, text, step, most)
		}
		w.later(3 * time.Hour)
	}
	dbtest.Eventually(t, "the failing one is dead", func() bool { return w.states(event)["crm-worker"] == "dead 8/8" })
	want := map[string]string{"ai-worker": "done 1/8", "crm-worker": "dead 8/8", "search-worker": "done 1/8"}
	if got := w.states(event); !cmp.Equal(got, want) {
		t.Errorf("states %v, want %v", got, want)
	}
	for i, n := range []int{1, 0, 1} {
		if got := w.effects(effectors[i], event); got != n {
			t.Errorf("%d effects of %s, want %d", got, effectors[i].name, n)
		}
	}
	var got string
	err := dbtest.Row(t, w.url, "select concat_ws(' ', status, consumed_by, attempts, last_error) from event_log_status where id = $1", []any{event}, &got)
	if want := "dead {ai-worker,search-worker} 8 try 8"; err != nil || got != want {
		t.Errorf("event_log_status says %q, %v, want %q", got, err, want)
	}
}
