package db_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

func TestEmissionRefusesWhatBreaksARule(t *testing.T) {
	t.Parallel()
	w := setup(t)
	cases := map[string]struct {
		sql   string
		field string
	}{
		"a type in camel case":       {`select emit_event('LeadCreated', 'lead', null, '{}', '{}', $1)`, "event_type"},
		"a type with two dots":       {`select emit_event('a.b.c', 'lead', null, '{}', '{}', $1)`, "event_type"},
		"an entity kind with spaces": {`select emit_event('custom.x', 'a lead', null, '{}', '{}', $1)`, "entity_kind"},
		"a payload that is a list":   {`select emit_event('custom.x', 'lead', null, '[]', '{}', $1)`, "payload"},
		"metadata that is a number":  {`select emit_event('custom.x', 'lead', null, '{}', '1', $1)`, "metadata"},
		"a number of 100,000 digits": {`select emit_event('custom.x', 'lead', null, jsonb_build_object('a', (select jsonb_agg('1e100000'::numeric) from generate_series(1, 100))), '{}', $1)`, "payload"},
		"no organization":            {`select emit_event('custom.x', 'lead', null, '{}', '{}', nullif($1::uuid, $1::uuid))`, "organization_id"},
		"an unknown organization":    {`select emit_event('custom.x', 'lead', null, '{}', '{}', uuid_v7()) where $1::uuid is not null`, "organization_id"},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := dbtest.Conn(t, w.url).Exec(t.Context(), tt.sql, w.org)
			if err == nil || !strings.Contains(fmt.Sprintf("%+v", columnOf(err)), tt.field) {
				t.Errorf("got %v, want a refusal of %s", err, tt.field)
			}
		})
	}
}

func TestEventsOfOneIdempotencyKeyAreOneEvent(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	emit := func() db.Emitted {
		var ev db.Emitted
		err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) (err error) {
			ev, err = tx.Emit(t.Context(), db.NewEvent{
				Type: typ, EntityKind: "thing", Metadata: map[string]json.RawMessage{"idempotency_key": json.RawMessage(`"order-7"`)},
			})
			return err
		})
		if err != nil {
			t.Error(err)
		}
		return ev
	}
	ids := make([]uuid.UUID, 10)
	var emitters sync.WaitGroup
	for i := range ids {
		emitters.Go(func() { ids[i] = emit().ID })
	}
	emitters.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("got ids %v, want the same one", ids)
			break
		}
	}
	if n := w.count("select count(*) from event_log where organization_id = $1", w.org); n != 1 {
		t.Errorf("%d events, want one", n)
	}
}

// columnOf is the field that the database's refusal names.
func columnOf(err error) string {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return ""
	}
	return pg.ColumnName
}
