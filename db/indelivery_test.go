package db_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// effect is a change that the handler of a local effect makes: an event.
func (w world) effect(d *bus.Delivery, typ bus.Type) error {
	return w.db.InDelivery(w.Context(), d, func(tx *db.OrgTx) error {
		_, err := tx.Emit(w.Context(), db.NewEvent{Type: typ, EntityKind: "thing"})
		return err
	})
}

func TestInvariant9ALocalEffectHappensExactlyOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ, made := ownType(), ownType()
	consumer := w.consumer(typ)
	id := w.emit(typ)
	w.relay()
	effects := func() int {
		t.Helper()
		return w.count("select count(*) from event_log where organization_id = $1 and event_type = $2", w.org, made)
	}
	broken := errors.New("the effect failed")
	first := w.claim(consumer, 1)[0]
	err := w.db.InDelivery(t.Context(), &first, func(tx *db.OrgTx) error {
		if _, err := tx.Emit(t.Context(), db.NewEvent{Type: made, EntityKind: "thing"}); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) || effects() != 0 {
		t.Errorf("InDelivery() = %v with %d effects, want its error and none", err, effects())
	}
	if got, want := w.states(id), map[string]string{consumer: "processing 0/3"}; !cmp.Equal(got, want) {
		t.Errorf("after a failed effect: %v, want %v", got, want)
	}
	w.later(time.Hour) // the process stands still; its lease runs out and another claims
	w.claim(consumer, 1)
	second := w.claim(consumer, 1)[0]
	if err := w.effect(&first, made); !errors.Is(err, bus.ErrLeaseLost) || effects() != 0 {
		t.Errorf("InDelivery() under a stale token = %v with %d effects, want %v and none", err, effects(), bus.ErrLeaseLost)
	}
	var all sync.WaitGroup
	results := make(chan error, 20)
	for range cap(results) {
		all.Go(func() { results <- w.effect(&second, made) })
	}
	all.Wait()
	close(results)
	succeeded := 0
	for err := range results {
		switch {
		case err == nil:
			succeeded++
		case !errors.Is(err, bus.ErrLeaseLost):
			t.Errorf("InDelivery() = %v", err)
		}
	}
	if succeeded != 1 || effects() != 1 {
		t.Errorf("%d of 20 succeeded with %d effects, want 1 and 1", succeeded, effects())
	}
	if got, want := w.states(id), map[string]string{consumer: "done 1/3"}; !cmp.Equal(got, want) {
		t.Errorf("after the effect: %v, want %v", got, want)
	}
	if lost := w.settle(second, bus.VerdictRetry, "late"); len(lost) != 1 {
		t.Error("a verdict after the effect was accepted")
	}
}

func TestALocalEffectSeesItsOrganizationOnly(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.consumer(typ)
	w.emit(typ)
	w.relay()
	other := w
	other.org = dbtest.Org(t, w.db)
	foreign := other.emit(ownType())
	d := w.claim(consumer, 1)[0]
	err := w.db.InDelivery(t.Context(), &d, func(tx *db.OrgTx) error {
		if _, err := tx.Event(t.Context(), foreign); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("another organization's event = %v, want %v", err, bus.ErrNotFound)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
