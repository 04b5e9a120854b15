package db_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// Postgres passes the suite that the in-memory log of the loop's tests passes.
func TestDBConformsToTheLog(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	d := dbtest.Open(t, url, db.Options{Lease: time.Hour})
	bustest.Conformance(t, func(t *testing.T) bustest.Subject {
		t.Helper()
		return &subject{DB: d, t: t, conn: dbtest.Conn(t, url), org: dbtest.Org(t, d)}
	})
}

// subject is the database as one organization uses it.
type subject struct {
	*db.DB
	t    *testing.T
	conn *pgx.Conn
	org  uuid.UUID
}

func (s *subject) Register(consumers ...bus.Consumer) {
	s.t.Helper()
	if err := s.RegisterConsumers(s.t.Context(), consumers); err != nil {
		s.t.Fatal(err)
	}
}

func (s *subject) Emit(typ bus.Type, n int) []uuid.UUID { return s.EmitTo(s.org, uuid.Nil, typ, n) }

func (s *subject) NewOrg() uuid.UUID { return dbtest.Org(s.t, s.DB) }

func (s *subject) MakeInteractive(events ...uuid.UUID) {
	s.t.Helper()
	s.exec("update delivery set interactive = true where event_id = any ($1)", events)
}

func (s *subject) Suspend(org uuid.UUID) {
	s.t.Helper()
	s.exec("update organizations set status = 'suspended', suspended_at = now() where id = $1", org)
}

func (s *subject) Disable(org, destination uuid.UUID) {
	s.t.Helper()
	s.exec(`insert into webhook_subscriptions (id, organization_id, url, event_types, enabled)
		values ($1, $2, 'https://receiver.example/', '{custom.disabled}', false)`, destination, org)
}

// EmitTo gives the deliveries their destination when they have been relayed. The
// consumers are the test's own, so nobody claims them before.
func (s *subject) EmitTo(org, destination uuid.UUID, typ bus.Type, n int) []uuid.UUID {
	s.t.Helper()
	events := make([]db.NewEvent, n)
	for i := range events {
		events[i] = db.NewEvent{Type: typ, EntityKind: "thing"}
	}
	var ids []uuid.UUID
	err := s.InOrg(s.t.Context(), org, dbtest.Actor(), func(tx *db.OrgTx) (err error) {
		ids, err = tx.EmitAll(s.t.Context(), events)
		return err
	})
	for moved := 1; moved > 0 && err == nil; {
		moved, err = s.Relay(s.t.Context())
	}
	if err != nil {
		s.t.Fatal(err)
	}
	if destination != uuid.Nil {
		s.exec("update delivery set destination = $1 where organization_id = $2 and event_id = any ($3)", destination, org, ids)
	}
	return ids
}

func (s *subject) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.conn.Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatal(err)
	}
}

// Elapse moves rows in time, not the clock.
func (s *subject) Elapse(d time.Duration) {
	s.t.Helper()
	s.exec("update delivery set due_at = due_at - $2::interval where organization_id = $1", s.org, d)
}

func (s *subject) State(event uuid.UUID, consumer string) bustest.State {
	s.t.Helper()
	var state bustest.State
	err := s.InOrg(s.t.Context(), s.org, dbtest.Actor(), func(tx *db.OrgTx) error {
		rows, err := tx.EventDeliveries(s.t.Context(), event)
		for _, r := range rows {
			if r.Consumer == consumer {
				state = bustest.State{Status: r.Status, Attempts: r.Attempts}
				if r.LastError != nil {
					state.LastError = *r.LastError
				}
			}
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return state
}
