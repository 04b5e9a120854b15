package db_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// appendEventSource is append_event as the migrated database has it.
func (w world) appendEventSource() string {
	w.Helper()
	var source string
	err := dbtest.Row(w.T, w.url, "select pg_get_functiondef('append_event(text, text, uuid, jsonb, jsonb, uuid, timestamptz)'::regprocedure)", nil, &source)
	if err != nil {
		w.Fatal(err)
	}
	return source
}

func TestMeasuredArmsDifferInTheOutboxAlone(t *testing.T) {
	t.Parallel()
	w := setup(t)
	source := w.appendEventSource()
	without, err := db.WithoutOutbox(source)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields
	back := strings.Replace(without, "append_event_without_outbox", "append_event", 1)
	before, after, found := strings.Cut(back, "insert into event_log")
	insert, rest, ended := strings.Cut(after, ";")
	if !found || !ended || strings.Contains(back, "outbox") {
		t.Fatalf("the other arm is:\n%s", without)
	}
	appended := before + "with appended as ( insert into event_log" + insert +
		" ) insert into outbox (event_id, organization_id, event_type, created_at, lane, not_before) values (v_id, v_org, p_event_type, v_at, event_lane(p_entity_kind, p_entity_id, v_metadata), p_not_before);" + rest
	if diff := cmp.Diff(words(source), words(appended)); diff != "" {
		t.Errorf("with the outbox put back it is another function (-append_event +arm):\n%s", diff)
	}
	for name, broken := range map[string]string{
		"that writes the outbox twice":  strings.Replace(source, "return v_id;", "with appended as (insert into event_log select 1) insert into outbox select 1; return v_id;", 1),
		"that writes it in another way": strings.Replace(source, "insert into outbox", "insert into some_outbox", 1),
		"of another name":               strings.Replace(source, "append_event", "append", 1),
	} {
		if _, err := db.WithoutOutbox(broken); err == nil {
			t.Errorf("an append_event %s was taken for the one that is known", name)
		}
	}
}

func TestMeasurementThatDidNotDoWhatItSaysIsRefused(t *testing.T) {
	t.Parallel()
	w := alone(t)
	without, with := w.emit(ownType()), w.emit(ownType())
	w.exec("insert into contacts (organization_id, name) select $1, 'Somebody' from generate_series(1, 2)", w.org)
	w.exec("delete from outbox where event_id = $1", without)
	check := func(without, with []uuid.UUID) error {
		return db.CheckCapture(t.Context(), dbtest.Conn(t, w.url), without, with)
	}
	if err := check([]uuid.UUID{without}, []uuid.UUID{with}); err != nil {
		t.Errorf("the arms as they are = %v", err)
	}
	for name, arms := range map[string][2][]uuid.UUID{
		"an event that is not captured":        {{}, {without, with}},
		"an event that is and should not be":   {{without, with}, {}},
		"an event that is not there":           {{uuid.New()}, {with}},
		"a change without an event":            {{}, {with}},
		"more events than changes were made":   {{without, without}, {with}},
		"a captured event that is counted two": {{without}, {with, with}},
	} {
		if err := check(arms[0], arms[1]); err == nil {
			t.Errorf("%s passes", name)
		}
	}
}

func TestMeasurementRefusesAnyDatabaseButTheEmptyOneThatItHasMade(t *testing.T) {
	t.Parallel()
	empty, used := dbtest.Empty(t), dbtest.URL(t)
	name := func(url string) (name string) {
		t.Helper()
		if err := dbtest.Row(t, url, "select current_database()", nil, &name); err != nil {
			t.Fatal(err)
		}
		return name
	}
	check := func(url, name string) error { return db.CheckScratch(t.Context(), dbtest.Conn(t, url), name) }
	if err := check(empty, name(empty)); err != nil {
		t.Errorf("the one that was made = %v", err)
	}
	for what, err := range map[string]error{
		"another than was asked for": check(empty, name(used)),
		"one with tables in it":      check(used, name(used)),
	} {
		if _, ok := errors.AsType[*db.BlockedError](err); !ok {
			t.Errorf("%s = %v, want it blocked", what, err)
		}
	}
}
