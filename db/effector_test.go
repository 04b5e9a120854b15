package db_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

// effector is a handler of a local effect: an event about the one it has read.
type effector struct {
	name   string
	types  []bus.Type
	made   bus.Type // what it emits
	log    *db.DB
	before func(ctx context.Context, d *bus.Delivery) error // the effect happens when it returns nil; may be nil
}

func (h effector) Consumer() bus.Consumer {
	return bus.Consumer{
		Name: h.name, Types: h.types, Effect: bus.EffectLocal, Retry: bus.DefaultRetry(), Concurrency: 4, Timeout: time.Hour,
	}
}

func (effector) SettlesItself() {}

func (h effector) Handle(ctx context.Context, d *bus.Delivery) error {
	if h.before != nil {
		if err := h.before(ctx, d); err != nil {
			return err
		}
	}
	return h.effect(ctx, d)
}

func (h effector) effect(ctx context.Context, d *bus.Delivery) error {
	return h.log.InDelivery(ctx, d, func(tx *db.OrgTx) error {
		about := uuid.NullUUID{UUID: d.Event.ID, Valid: true}
		_, err := tx.Emit(ctx, db.NewEvent{Type: h.made, EntityKind: "effect", EntityID: about})
		return err
	})
}

// effects counts the effects of h that are about event.
func (w world) effects(h effector, event uuid.UUID) int {
	w.Helper()
	return w.count("select count(*) from event_log where organization_id = $1 and event_type = $2 and entity_id = $3", w.org, h.made, event)
}

// register makes handlers known to the relay, as a start of the program does.
func (w world) register(handlers ...bus.Handler) {
	w.Helper()
	if err := bus.CheckHandlers(handlers); err != nil {
		w.Fatal(err)
	}
	consumers := make([]bus.Consumer, len(handlers))
	for i, h := range handlers {
		consumers[i] = h.Consumer()
	}
	if err := w.db.RegisterConsumers(w.Context(), consumers); err != nil {
		w.Fatal(err)
	}
}

// drain runs handlers as a process would, until the test ends or stop is called.
func drain(t *testing.T, log *db.DB, handlers ...bus.Handler) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	d := bus.Drainer{Log: log, Handlers: handlers, Poll: 20 * time.Millisecond, Grace: time.Second, Logger: slog.New(slog.DiscardHandler)}
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// roleName is a consumer's name for one role in a test.
func roleName(role string) string {
	return role + "-t" + strings.ReplaceAll(uuid.NewString(), "-", "")[:20] + "-worker"
}
