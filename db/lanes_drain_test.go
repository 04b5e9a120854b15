package db_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// whimsical is a handler in order that ends its deliveries in all ways there are,
// the same each time it runs, and writes down what it sees.
type whimsical struct {
	consumer bus.Consumer
	seen     *seen
}

// seen is what handlers have seen, by the lane.
type seen struct {
	mu      sync.Mutex
	inHand  map[bus.Key]int
	ended   map[bus.Key][]int64
	overlap []string
	retried int
}

func laneOf(d *bus.Delivery) bus.Key {
	key := d.Key
	key.Seq = 0
	return key
}

func (s *seen) begin(d *bus.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inHand[laneOf(d)]++; s.inHand[laneOf(d)] > 1 && d.Lane != 0 {
		s.overlap = append(s.overlap, fmt.Sprintf("%d deliveries of lane %d are in hand", s.inHand[laneOf(d)], d.Lane))
	}
}

func (s *seen) end(d *bus.Delivery, final bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inHand[laneOf(d)]--
	if final {
		s.ended[laneOf(d)] = append(s.ended[laneOf(d)], d.Seq)
	} else {
		s.retried++
	}
}

func (h whimsical) Consumer() bus.Consumer { return h.consumer }

func (h whimsical) Handle(_ context.Context, d *bus.Delivery) error {
	h.seen.begin(d)
	broken := errors.New("broken")
	whim := (d.Seq*7 + int64(d.Budgeted)*3) % 20
	last := d.Budgeted == d.MaxAttempts
	switch {
	case whim < 6:
		h.seen.end(d, last)
		return broken
	case whim == 6:
		h.seen.end(d, last)
		return bus.RetryAfter(2*time.Millisecond, broken)
	case whim == 7:
		h.seen.end(d, true)
		return bus.Permanent(broken)
	case whim == 8:
		h.seen.end(d, true)
		return bus.Uncertain(broken)
	case whim == 9:
		h.seen.end(d, true)
		return bus.Skip("no use")
	case whim == 10 && d.Seq%40 == 0:
		h.seen.end(d, false)
		return bus.Postpone(time.Second, broken)
	case whim == 11:
		h.seen.end(d, last)
		panic("broken")
	}
	h.seen.end(d, true)
	return nil
}

func TestInvariant10TwoProcessesHandleEachLaneInOrderAndOneAtATime(t *testing.T) {
	t.Parallel()
	w := freshWorld(t)
	s := &seen{inHand: make(map[bus.Key]int), ended: make(map[bus.Key][]int64)}
	var handlers []bus.Handler
	for _, ordering := range []bus.Ordering{bus.OrderingKey, bus.OrderingStrict, bus.OrderingNone} {
		handlers = append(handlers, whimsical{seen: s, consumer: bus.Consumer{
			Name: string(ordering) + "-worker", Types: []bus.Type{"custom.whim"}, Effect: bus.EffectAtLeastOnce, Ordering: ordering,
			Retry: bus.Ladder([]time.Duration{time.Millisecond, time.Millisecond, time.Millisecond}), Concurrency: 8, Timeout: time.Minute,
		}})
	}
	ctx, stop := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	defer loops.Wait()
	defer stop()
	for range 2 {
		process := dbtest.Open(t, w.url, db.Options{})
		consumers := []bus.Consumer{handlers[0].Consumer(), handlers[1].Consumer(), handlers[2].Consumer()}
		if err := errors.Join(bus.CheckHandlers(handlers), process.RegisterConsumers(t.Context(), consumers)); err != nil {
			t.Fatal(err)
		}
		drainer := &bus.Drainer{Log: process, Handlers: handlers, Poll: 5 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
		loops.Go(func() { _ = drainer.Run(ctx) })
		relay := &bus.Relay{Step: process.Relay, Poll: 5 * time.Millisecond, Drain: func() {}, Logger: slog.New(slog.DiscardHandler)}
		loops.Go(func() { _ = relay.Run(ctx) })
	}
	const rounds, perRound = 12, 8
	orgs := []uuid.UUID{w.org, dbtest.Org(t, w.db)}
	for round := range rounds {
		for _, org := range orgs {
			events := make([]db.NewEvent, perRound)
			for i := range events {
				events[i] = keyed("custom.whim", fmt.Sprint("key ", (round+i)%5))
			}
			err := w.db.InOrg(t.Context(), org, dbtest.Actor(), func(tx *db.OrgTx) error {
				_, err := tx.EmitAll(t.Context(), events)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	dbtest.Eventually(t, "everything is handled", func() bool {
		return w.count("select count(*) from outbox") == 0 && w.count("select count(*) from delivery") == 0
	})
	stop()
	loops.Wait()
	for _, line := range s.overlap {
		t.Error(line)
	}
	ends, lanes := 0, 0
	for lane, seqs := range s.ended {
		ends += len(seqs)
		if lane.Lane == 0 {
			continue
		}
		lanes++
		if !slices.IsSorted(seqs) {
			t.Errorf("lane %d ended in the order %v", lane.Lane, seqs)
		}
	}
	if want := 3 * rounds * perRound * len(orgs); ends != want || lanes != 2*(5+1) || s.retried == 0 {
		t.Errorf("%d ends in %d lanes after %d retries, want %d in 12 and some", ends, lanes, s.retried, want)
	}
}
