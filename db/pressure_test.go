package db_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// pile makes n deliveries that wait for a consumer at a destination.
func (w world) pile(consumer string, destination uuid.UUID, n int) {
	w.Helper()
	w.exec(`insert into delivery (consumer_id, destination, organization_id, seq, event_id, due_at)
		select c.id, $3, $2, (select coalesce(max(seq), 0) from delivery) + n, gen_random_uuid(), clock_timestamp() from consumers c cross join generate_series(1, $4::int) n
		 where c.name = $1`, consumer, w.org, destination, n)
}

func (w world) organizationPressure(before db.Pressure) (level db.Pressure) {
	w.Helper()
	if err := dbtest.Row(w.T, w.url, "select organization_pressure($1, $2)", []any{w.org, before}, &level); err != nil {
		w.Fatal(err)
	}
	return level
}

func TestALevelBeginsAtItsBorderAndEndsAtHalfOfIt(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for _, tt := range []struct {
		value        int
		before, want db.Pressure
	}{
		{0, "normal", "normal"},
		{99, "normal", "normal"},
		{100, "normal", "elevated"},
		{999, "normal", "elevated"},
		{1000, "normal", "high"},
		{50, "elevated", "elevated"},
		{49, "elevated", "normal"},
		{999, "elevated", "elevated"},
		{1000, "elevated", "high"},
		{500, "high", "high"},
		{499, "high", "elevated"},
		{50, "high", "elevated"},
		{49, "high", "normal"},
	} {
		var got db.Pressure
		if err := dbtest.Row(t, w.url, "select pressure_level($1, 100, 1000, $2)", []any{tt.value, tt.before}, &got); err != nil {
			t.Fatal(err)
		}
		if got != tt.want {
			t.Errorf("%d after %s = %s, want %s", tt.value, tt.before, got, tt.want)
		}
	}
}

func TestPressureOnTheInstallationIsWhatTheRelayIsBehindBy(t *testing.T) {
	t.Parallel()
	w := alone(t)
	for name, tt := range map[string]struct {
		behind int
		age    string
		want   db.Pressure
	}{
		"nothing waits":                         {0, "0", "normal"},
		"a burst":                               {9_999, "1 second", "normal"},
		"ten turns of the relay":                {10_000, "1 second", "elevated"},
		"a hundred turns":                       {100_000, "1 second", "high"},
		"one event for half a minute":           {1, "31 seconds", "elevated"},
		"one event that was committed late":     {1, "2 days", "elevated"},
		"more than a turn for nine minutes":     {1_001, "599 seconds", "elevated"},
		"more than a turn for ten minutes":      {1_001, "601 seconds", "high"},
		"events from before a clock's set back": {100, "-2 days", "normal"},
	} {
		w.exec("delete from outbox")
		w.exec(`insert into outbox (emit_no, event_id, organization_id, event_type, created_at) overriding system value
			select n, gen_random_uuid(), $1, 'custom.x', clock_timestamp() - $3::interval
			  from unnest(array[1, $2::int]) n where $2 > 0 on conflict do nothing`, w.org, tt.behind, tt.age)
		var got db.Pressure
		if err := dbtest.Row(t, w.url, "select installation_pressure()", nil, &got); err != nil {
			t.Fatal(err)
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestPressureOnAnOrganizationIsItsOwnWorkThatIsDue(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	other := world{T: t, db: w.db, url: w.url, org: dbtest.Org(t, w.db)}
	consumer, sub := w.consumer(ownType()), w.subscribe("*")
	if got := w.organizationPressure("normal"); got != "normal" {
		t.Errorf("without work: %s", got)
	}
	w.pile(consumer, uuid.Nil, 3_000)
	w.pile(bus.WebhookDispatch, sub, 1_999)
	if got := w.organizationPressure("normal"); got != "normal" {
		t.Errorf("with 4999 due: %s, want normal", got)
	}
	w.pile(bus.WebhookDispatch, sub, 1)
	if got := w.organizationPressure("normal"); got != "elevated" {
		t.Errorf("with 5000 due: %s, want elevated", got)
	}
	w.pile(bus.WebhookDispatch, sub, 15_000)
	if got := w.organizationPressure("normal"); got != "high" {
		t.Errorf("with 20000 due: %s, want high", got)
	}
	if got := other.organizationPressure("normal"); got != "normal" {
		t.Errorf("of the other organization: %s, want normal", got)
	}
	for name, tt := range map[string]struct{ change, back string }{
		"a paused consumer": {
			"update consumers set paused_at = clock_timestamp() where name = 'webhook-dispatch-worker'", "update consumers set paused_at = null",
		},
		"a disabled subscription":         {"update webhook_subscriptions set enabled = false", "update webhook_subscriptions set enabled = true"},
		"what waits for its next attempt": {"update delivery set due_at = due_at + interval '1 hour'", "update delivery set due_at = due_at - interval '1 hour'"},
		"what is in hand":                 {"update delivery set lease_token = 1", "update delivery set lease_token = null"},
		"a suspended organization":        {"update organizations set status = 'suspended', suspended_at = now()", "update organizations set status = 'active', suspended_at = null"},
	} {
		w.exec(tt.change)
		if got := w.organizationPressure("normal"); got != "normal" {
			t.Errorf("with %s: %s, want normal", name, got)
		}
		w.exec(tt.back)
		if got := w.organizationPressure("normal"); got != "high" {
			t.Errorf("without %s: %s, want high again", name, got)
		}
	}
}

func TestPressureGoesDownWhenTheWorkIsDone(t *testing.T) {
	t.Parallel()
	w := alone(t)
	consumer := w.consumer(ownType())
	w.pile(consumer, uuid.Nil, 20_000)
	level := db.PressureNormal
	for _, step := range []struct {
		done int
		want db.Pressure
	}{{0, "high"}, {10_000, "high"}, {1, "elevated"}, {7_499, "elevated"}, {1, "normal"}} {
		w.exec("delete from delivery where ctid in (select ctid from delivery limit $1)", step.done)
		if level = w.organizationPressure(level); level != step.want {
			t.Errorf("after %d more are done: %s, want %s", step.done, level, step.want)
		}
	}
}

func TestHighPressureRefusesNoChangeOfTheDomainAndIsTold(t *testing.T) {
	t.Parallel()
	w := alone(t)
	other := dbtest.Org(t, w.db)
	w.pile(w.consumer(ownType()), uuid.Nil, 20_000)
	if got := w.db.Pressure(t.Context(), w.org); got != db.PressureHigh {
		t.Fatalf("the pressure is %s, want high", got)
	}
	if got := w.db.Pressure(t.Context(), other); got != db.PressureNormal {
		t.Errorf("the pressure on another organization is %s, want normal", got)
	}
	err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
		one, err := tx.Emit(t.Context(), db.NewEvent{Type: ownType(), EntityKind: "thing"})
		if err != nil {
			return err
		}
		if one.Pressure != db.PressureHigh || tx.Pressure() != db.PressureHigh {
			return fmt.Errorf("the emission was told %q, want high", one.Pressure)
		}
		ids, err := tx.EmitAll(t.Context(), []db.NewEvent{{Type: ownType(), EntityKind: "thing"}})
		if len(ids) != 1 {
			return fmt.Errorf("%d events of a batch, %w", len(ids), err)
		}
		return err
	})
	if err != nil {
		t.Errorf("emitting in a transaction under high pressure: %v", err)
	}
	w.exec("select emit_event('custom.x', 'thing', null, '{}', '{}', $1)", w.org)
	if n := w.count("select count(*) from outbox where organization_id = $1", w.org); n != 3 {
		t.Errorf("%d events were emitted, want all three", n)
	}
}

func TestWorkersInAnyLanguageMayAskForThePressure(t *testing.T) {
	t.Parallel()
	w := alone(t)
	w.pile(w.consumer(ownType()), uuid.Nil, 5_000)
	var got db.Pressure
	if err := dbtest.Row(t, w.url, "select pressure($1)", []any{w.org}, &got); err != nil || got != db.PressureElevated {
		t.Errorf("pressure() = %s, %v, want elevated", got, err)
	}
	w.exec("insert into outbox (emit_no, event_id, organization_id, event_type, created_at) overriding system value select n, gen_random_uuid(), $1, 'custom.x', now() from unnest(array[1000001, 1100000]) n", w.org)
	if err := dbtest.Row(t, w.url, "select pressure($1)", []any{w.org}, &got); err != nil || got != db.PressureHigh {
		t.Errorf("pressure() = %s, %v, want the worse of both", got, err)
	}
	if n := w.count(`select count(*) from pg_proc p where p.proname ~ '_?pressure$' and p.prosecdef and has_function_privilege('deskcomm_api', p.oid, 'execute')`); n != 0 {
		t.Errorf("%d functions that see every organization are open to the role of the API", n)
	}
}
