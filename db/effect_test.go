package db_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// uncertain makes a delivery whose effect may have happened.
func (w world) uncertain() (consumer string, event uuid.UUID, d bus.Delivery) {
	w.Helper()
	typ := ownType()
	consumer = w.consumer(typ)
	event = w.emit(typ)
	w.relay()
	d = w.claim(consumer, 1)[0]
	if err := w.db.BeginEffect(w.Context(), d.Lease()); err != nil {
		w.Fatal(err)
	}
	w.settle(d, bus.VerdictUncertain, "no answer")
	return consumer, event, d
}

func TestInvariant15APersonDecidesOnceWhatBecomesOfAnUncertainDelivery(t *testing.T) {
	t.Parallel()
	decisions := map[string]struct {
		decide func(t *db.OrgTx, id uuid.UUID) error
		state  string
		action string
	}{
		"confirm": {func(tx *db.OrgTx, id uuid.UUID) error { return tx.ConfirmDone(t.Context(), id, "seen") }, "done 1/3", "delivery.confirmed"},
		"replay":  {func(tx *db.OrgTx, id uuid.UUID) error { return tx.Replay(t.Context(), id, "seen") }, "pending 0/3", "delivery.replayed"},
		"discard": {func(tx *db.OrgTx, id uuid.UUID) error { return tx.Discard(t.Context(), id, "seen") }, "discarded 1/3", "delivery.discarded"},
	}
	for name, decision := range decisions {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			consumer, event, d := w.uncertain()
			if got, want := w.states(event), map[string]string{consumer: "uncertain 1/3"}; !cmp.Equal(got, want) {
				t.Errorf("states %v, want %v", got, want)
			}
			err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
				ev, err := tx.Event(t.Context(), event)
				if err == nil && ev.Status != "uncertain" {
					t.Errorf("the event is %q, want uncertain", ev.Status)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			decide := func() error {
				return w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error { return decision.decide(tx, d.ID) })
			}
			if err := decide(); err != nil {
				t.Fatal(err)
			}
			if got, want := w.states(event), map[string]string{consumer: decision.state}; !cmp.Equal(got, want) {
				t.Errorf("states %v, want %v", got, want)
			}
			for _, other := range decisions {
				err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error { return other.decide(tx, d.ID) })
				if !errors.Is(err, bus.ErrConflict) {
					t.Errorf("a second decision = %v, want a conflict", err)
				}
			}
			if n := w.count(`select count(*) from audit_log where organization_id = $1 and resource_id = $2 and action = $3
				and metadata ->> 'old_status' = 'uncertain' and metadata ->> 'reason' = 'seen'`, w.org, d.ID, decision.action); n != 1 {
				t.Errorf("%d audit rows, want 1", n)
			}
			again := w.claim(consumer, 10)
			if name != "replay" && len(again) != 0 {
				t.Errorf("claimed %d deliveries that a person has ended", len(again))
			}
			if name == "replay" && (len(again) != 1 || again[0].Unknown || again[0].ID != d.ID || again[0].Attempt != 2) {
				t.Errorf("claimed %+v, want the same delivery with nothing begun", again)
			}
		})
	}
}

func TestOnlyWhatIsUncertainIsConfirmed(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.consumer(typ)
	id := w.emit(typ)
	w.relay()
	dead := w.claim(consumer, 1)[0]
	w.settle(dead, bus.VerdictDead, "broken")
	for id, want := range map[uuid.UUID]error{dead.ID: bus.ErrConflict, uuid.New(): bus.ErrNotFound} {
		err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error { return tx.ConfirmDone(t.Context(), id, "") })
		if !errors.Is(err, want) {
			t.Errorf("ConfirmDone() = %v, want %v", err, want)
		}
	}
	if got, want := w.states(id), map[string]string{consumer: "dead 1/3"}; !cmp.Equal(got, want) {
		t.Errorf("states %v, want %v", got, want)
	}
}

func TestDeadAndUncertainAreListedTogetherOrApart(t *testing.T) {
	t.Parallel()
	w := setup(t)
	_, _, maybe := w.uncertain()
	typ := ownType()
	consumer := w.consumer(typ)
	w.emit(typ)
	w.relay()
	dead := w.claim(consumer, 1)[0]
	w.settle(dead, bus.VerdictDead, "broken")
	for state, want := range map[string][]uuid.UUID{"": {dead.ID, maybe.ID}, "dead": {dead.ID}, "uncertain": {maybe.ID}} {
		err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
			rows, err := tx.DeadDeliveries(t.Context(), db.DeadFilter{State: state, Limit: 10})
			var got []uuid.UUID
			for _, row := range rows {
				got = append(got, row.ID)
			}
			if !cmp.Equal(got, want) {
				t.Errorf("state %q lists %v, want %v", state, got, want)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// sender is a consumer whose effect must not be repeated.
type sender struct {
	consumer bus.Consumer
	effects  *atomic.Int64
}

func (s sender) Consumer() bus.Consumer { return s.consumer }

func (s sender) Handle(ctx context.Context, d *bus.Delivery) error {
	if err := d.BeginEffect(ctx); err != nil {
		return err
	}
	s.effects.Add(1)
	return nil
}

func TestInvariant9NoEffectHappensTwiceWhereverItsProcessDies(t *testing.T) {
	t.Parallel()
	begin := func(w world, d bus.Delivery, _ *atomic.Int64) {
		if err := w.db.BeginEffect(w.Context(), d.Lease()); err != nil {
			w.Error(err)
		}
	}
	happen := func(w world, d bus.Delivery, effects *atomic.Int64) {
		begin(w, d, effects)
		effects.Add(1)
	}
	for name, tt := range map[string]struct {
		until   func(w world, d bus.Delivery, effects *atomic.Int64)
		status  string
		effects int64
	}{
		"before it begins":     {func(world, bus.Delivery, *atomic.Int64) {}, "done 1/3", 1},
		"before it happens":    {begin, "uncertain 1/3", 0},
		"before it is settled": {happen, "uncertain 1/3", 1},
		"before it knows of it": {func(w world, d bus.Delivery, effects *atomic.Int64) {
			happen(w, d, effects)
			w.settle(d, bus.VerdictDone, "")
		}, "done 1/3", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			typ := ownType()
			s := sender{effects: new(atomic.Int64), consumer: bus.Consumer{
				Name: w.consumer(typ), Types: []bus.Type{typ}, Effect: bus.EffectOnce,
				Retry: bus.Ladder([]time.Duration{time.Hour, time.Hour}), Concurrency: 2, Timeout: time.Minute,
			}}
			if err := errors.Join(bus.CheckHandlers([]bus.Handler{s}), w.db.RegisterConsumers(t.Context(), []bus.Consumer{s.consumer})); err != nil {
				t.Fatal(err)
			}
			event := w.emit(typ)
			w.relay()
			tt.until(w, w.claim(s.consumer.Name, 1)[0], s.effects)
			w.later(2 * time.Hour)

			ctx, cancel := context.WithCancel(t.Context())
			drainer := bus.Drainer{Log: w.db, Handlers: []bus.Handler{s}, Poll: 10 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
			ended := make(chan error, 1)
			go func() { ended <- drainer.Run(ctx) }()
			dbtest.Eventually(t, "the delivery is "+tt.status, func() bool { return w.states(event)[s.consumer.Name] == tt.status })
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if n := s.effects.Load(); n != tt.effects {
				t.Errorf("%d effects, want %d", n, tt.effects)
			}
		})
	}
}
