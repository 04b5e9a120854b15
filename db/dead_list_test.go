package db_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// buried describes dead deliveries of one organization that bury makes by one
// statement: the ith died i steps before at.
type buried struct {
	org      uuid.UUID
	n        int
	typ      string
	kind     string
	consumer string
	at       time.Time
	step     time.Duration
}

const buryManySQL = `
	insert into dead_delivery (delivery_id, organization_id, consumer_id, destination, lane, seq, event_id, event_type, entity_kind,
	       payload, metadata, event_created_at, attempts, earlier_attempts, last_error, died_at)
	select gen_random_uuid(), $1, (select id from consumers where name = $2), '00000000-0000-0000-0000-000000000000', 0, i, gen_random_uuid(),
	       $3, $4, '{"n":1}', '{}', $5, 3, 0, 'broken', $5::timestamptz - $6::interval * i
	  from generate_series(0, $7::int - 1) i`

func (w world) bury(b buried) {
	w.Helper()
	if b.org == uuid.Nil {
		b.org = w.org
	}
	w.exec(buryManySQL, b.org, b.consumer, b.typ, b.kind, b.at, b.step, b.n)
}

func (w world) inOrg(fn func(tx *db.OrgTx) error) {
	w.Helper()
	if err := w.db.InOrg(w.Context(), w.org, dbtest.Actor(), fn); err != nil {
		w.Fatal(err)
	}
}

// Twelve deliveries: each of two types, kinds and consumers with each other, and
// some of them at another time.
func TestEachFilterOfTheDeadNarrowsAloneAndWithOthers(t *testing.T) {
	t.Parallel()
	w := setup(t)
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	consumers := []string{w.consumer(), w.consumer()}
	for i, typ := range []string{"custom.a", "custom.b"} {
		for j, kind := range []string{"order", "thing"} {
			for k, consumer := range consumers {
				w.bury(buried{n: 1 + k, typ: typ, kind: kind, consumer: consumer, at: noon.Add(time.Duration(4*i+2*j+k) * time.Hour), step: time.Minute})
			}
		}
	}
	foreign := setup(t)
	foreign.bury(buried{n: 3, typ: "custom.a", kind: "order", consumer: consumers[0], at: noon})
	w.bury(buried{n: 1, typ: "custom.a", kind: "order", consumer: consumers[0], at: noon.Add(-time.Hour)})
	w.exec("update dead_delivery set state = 'discarded', resolved_at = died_at, reason = 'x' where organization_id = $1 and died_at = $2", w.org, noon.Add(-time.Hour))
	for name, tt := range map[string]struct {
		filter db.DeadFilter
		want   int
	}{
		"nothing":                  {db.DeadFilter{}, 12},
		"type":                     {db.DeadFilter{Type: "custom.a"}, 6},
		"kind":                     {db.DeadFilter{EntityKind: "thing"}, 6},
		"consumer":                 {db.DeadFilter{Consumer: consumers[1]}, 8},
		"type and kind":            {db.DeadFilter{Type: "custom.a", EntityKind: "order"}, 3},
		"type and consumer":        {db.DeadFilter{Type: "custom.b", Consumer: consumers[0]}, 2},
		"kind and consumer":        {db.DeadFilter{EntityKind: "order", Consumer: consumers[1]}, 4},
		"all three":                {db.DeadFilter{Type: "custom.b", EntityKind: "thing", Consumer: consumers[1]}, 2},
		"since":                    {db.DeadFilter{Since: new(noon.Add(4 * time.Hour))}, 6},
		"since takes the instant":  {db.DeadFilter{Since: new(noon.Add(7 * time.Hour))}, 1},
		"until":                    {db.DeadFilter{Until: new(noon.Add(time.Hour))}, 2},
		"until leaves the instant": {db.DeadFilter{Until: new(noon)}, 0},
		"a period":                 {db.DeadFilter{Since: new(noon.Add(time.Hour)), Until: new(noon.Add(2*time.Hour + time.Microsecond))}, 2},
		"a period and a type":      {db.DeadFilter{Since: new(noon.Add(3 * time.Hour)), Type: "custom.a"}, 1},
		"a period turned round":    {db.DeadFilter{Since: new(noon.Add(time.Hour)), Until: new(noon)}, 0},
		"an unknown type":          {db.DeadFilter{Type: "custom.c"}, 0},
		"an unknown kind":          {db.DeadFilter{EntityKind: "Order"}, 0},
		"an unknown consumer":      {db.DeadFilter{Consumer: "nobody-worker"}, 0},
		"a quote":                  {db.DeadFilter{Type: "' or true --"}, 0},
		"a pattern":                {db.DeadFilter{Type: "custom.%"}, 0},
	} {
		w.inOrg(func(tx *db.OrgTx) error {
			tt.filter.Limit = db.MaxPage
			rows, err := tx.DeadDeliveries(t.Context(), tt.filter)
			if err != nil {
				return err
			}
			n, err := tx.CountDead(t.Context(), tt.filter)
			if len(rows) != tt.want || n != tt.want {
				t.Errorf("by %s: %d rows, counted as %d, want %d", name, len(rows), n, tt.want)
			}
			for i, row := range rows {
				f := tt.filter
				if row.OrgID != w.org || row.State != "dead" || f.Type != "" && string(row.Type) != f.Type || f.EntityKind != "" && row.EntityKind != f.EntityKind ||
					f.Consumer != "" && row.Consumer != f.Consumer || f.Since != nil && row.DiedAt.Before(*f.Since) || f.Until != nil && !row.DiedAt.Before(*f.Until) {
					t.Errorf("by %s: row %d is %+v", name, i, row)
				}
				if i > 0 && row.DiedAt.After(rows[i-1].DiedAt) {
					t.Errorf("by %s: row %d died after the one before it", name, i)
				}
			}
			return err
		})
	}
}

func TestAListIsBareWhenAsked(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bury(buried{n: 1, typ: "custom.a", kind: "x", consumer: w.consumer(), at: time.Now()})
	w.inOrg(func(tx *db.OrgTx) error {
		for _, bare := range []bool{false, true} {
			rows, err := tx.DeadDeliveries(t.Context(), db.DeadFilter{Bare: bare})
			if err != nil {
				return err
			}
			if len(rows) != 1 || (len(rows[0].Payload) == 0) != bare {
				t.Errorf("bare %v: payload = %s", bare, rows[0].Payload)
			}
			byID, err := tx.DeadByID(t.Context(), rows[0].ID, uuid.New())
			if err != nil || len(byID) != 1 || byID[0].Payload != nil {
				t.Errorf("by id: %+v, %v", byID, err)
			}
			whole, err := tx.DeadDelivery(t.Context(), rows[0].ID)
			if err != nil || string(whole.Payload) != `{"n": 1}` {
				t.Errorf("one: %s, %v", whole.Payload, err)
			}
			if _, err := tx.DeadDelivery(t.Context(), uuid.New()); !errors.Is(err, bus.ErrNotFound) {
				t.Errorf("one that never died: %v, want not found", err)
			}
		}
		return nil
	})
}

// Pages follow each other by where the last one ended. Whatever dies while
// somebody reads stands before the first page; many die in the same instant.
func TestPagesShowEachDeadDeliveryOnceWhileMoreDie(t *testing.T) {
	t.Parallel()
	w := setup(t)
	consumer := w.consumer()
	start := time.Now().UTC().Truncate(time.Microsecond).Add(-time.Hour)
	for i := range 10 { // 1000 at a time, each 7 of one instant
		w.bury(buried{n: 1000, typ: "custom.a", kind: "x", consumer: consumer, at: start.Add(-time.Duration(i/2) * time.Second), step: time.Microsecond})
	}
	var filter db.DeadFilter
	seen := make(map[uuid.UUID]bool, 10000)
	pages := 0
	for {
		filter.Limit = 51
		var rows []db.DeadDelivery
		w.inOrg(func(tx *db.OrgTx) (err error) {
			rows, err = tx.DeadDeliveries(t.Context(), filter)
			return err
		})
		more := len(rows) > 50
		rows = rows[:min(len(rows), 50)]
		for _, row := range rows {
			if seen[row.ID] {
				t.Fatalf("page %d shows %s again", pages, row.ID)
			}
			if row.DiedAt.After(start) {
				t.Fatalf("page %d shows what died since", pages)
			}
			seen[row.ID] = true
		}
		if pages++; !more {
			break
		}
		last := rows[len(rows)-1]
		filter.BeforeAt, filter.BeforeID = &last.DiedAt, uuid.NullUUID{UUID: last.ID, Valid: true}
		if pages%20 == 0 {
			w.bury(buried{n: 3, typ: "custom.a", kind: "x", consumer: consumer, at: time.Now()})
		}
	}
	if len(seen) != 10000 || pages != 200 {
		t.Errorf("%d deliveries on %d pages, want 10000 on 200", len(seen), pages)
	}
}

func TestCountsStopAtTheirCap(t *testing.T) {
	t.Parallel()
	w := setup(t)
	consumer := w.consumer()
	now := time.Now()
	w.bury(buried{n: db.CountCap, typ: "custom.a", kind: "x", consumer: consumer, at: now, step: time.Microsecond})
	count := func(f db.DeadFilter) (n int) {
		w.inOrg(func(tx *db.OrgTx) (err error) {
			n, err = tx.CountDead(t.Context(), f)
			return err
		})
		return n
	}
	if got := count(db.DeadFilter{Limit: 5}); got != db.CountCap {
		t.Errorf("counted %d, want %d", got, db.CountCap)
	}
	w.bury(buried{n: 500, typ: "custom.b", kind: "x", consumer: consumer, at: now, step: time.Microsecond})
	if got := count(db.DeadFilter{}); got != db.CountCap+1 {
		t.Errorf("counted %d, want one more than the cap", got)
	}
	if got := count(db.DeadFilter{Type: "custom.b"}); got != 500 {
		t.Errorf("counted %d of the other type, want 500", got)
	}
	var o db.Overview
	w.inOrg(func(tx *db.OrgTx) (err error) {
		o, err = tx.Overview(t.Context())
		return err
	})
	if o.Dead != db.CountCap+1 {
		t.Errorf("the overview counts %d, want one more than the cap", o.Dead)
	}
}

func TestTheNewsAreWhatDiedAfterARow(t *testing.T) {
	t.Parallel()
	w := setup(t)
	consumer := w.consumer()
	at := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	w.bury(buried{n: 4, typ: "custom.a", kind: "x", consumer: consumer, at: at}) // all of one instant
	var rows []db.DeadDelivery
	news := func(row db.DeadDelivery, f db.DeadFilter) (n int) {
		w.inOrg(func(tx *db.OrgTx) (err error) {
			f.AfterAt, f.AfterID = &row.DiedAt, uuid.NullUUID{UUID: row.ID, Valid: true}
			n, err = tx.CountDead(t.Context(), f)
			return err
		})
		return n
	}
	w.inOrg(func(tx *db.OrgTx) (err error) {
		rows, err = tx.DeadDeliveries(t.Context(), db.DeadFilter{})
		return err
	})
	for i, row := range rows {
		if got := news(row, db.DeadFilter{}); got != i {
			t.Errorf("%d died after row %d, want %d", got, i, i)
		}
	}
	w.bury(buried{n: 2, typ: "custom.b", kind: "x", consumer: consumer, at: at.Add(time.Microsecond)})
	if got := news(rows[0], db.DeadFilter{}); got != 2 {
		t.Errorf("%d are new, want 2", got)
	}
	if got := news(rows[0], db.DeadFilter{Type: "custom.a"}); got != 0 {
		t.Errorf("%d of the old type are new, want none", got)
	}
}

func TestNamesOfTheDeadAreThoseThatAreDead(t *testing.T) {
	t.Parallel()
	w := setup(t)
	names := func() (n db.DeadNames) {
		w.inOrg(func(tx *db.OrgTx) (err error) {
			n, err = tx.DeadNames(t.Context())
			return err
		})
		return n
	}
	if got := names(); len(got.Types)+len(got.Kinds) != 0 {
		t.Errorf("nothing is dead, and there are names: %+v", got)
	}
	consumer := w.consumer()
	for _, typ := range []string{"custom.b", "custom.a", "custom.c"} {
		w.bury(buried{n: 3, typ: typ, kind: "k" + typ[7:], consumer: consumer, at: time.Now()})
	}
	setup(t).bury(buried{n: 1, typ: "custom.foreign", kind: "foreign", consumer: consumer, at: time.Now()})
	w.exec("update dead_delivery set state = 'discarded', resolved_at = now(), reason = 'x' where organization_id = $1 and event_type = 'custom.c'", w.org)
	got := names()
	if diff := cmp.Diff([][]string{{"custom.a", "custom.b"}, {"ka", "kb"}}, [][]string{got.Types, got.Kinds}); diff != "" {
		t.Errorf("names (-want +got): %s", diff)
	}
	if !slices.Contains(got.Consumers, consumer) || !slices.IsSorted(got.Consumers) {
		t.Errorf("consumers = %v, want them all in order, %s too", got.Consumers, consumer)
	}
	w.exec(`insert into dead_delivery (delivery_id, organization_id, consumer_id, destination, lane, seq, event_id, event_type, entity_kind,
		       payload, metadata, event_created_at, attempts, earlier_attempts, last_error)
		select gen_random_uuid(), $1, 1, gen_random_uuid(), 0, 0, gen_random_uuid(), 'custom.t' || i, 'k' || i, '{}', '{}', now(), 1, 0, 'x'
		  from generate_series(1, 600) i`, w.org)
	if got := names(); len(got.Types) != 500 || len(got.Kinds) != 500 {
		t.Errorf("%d types and %d kinds are named, want 500 at most", len(got.Types), len(got.Kinds))
	}
}

// Each filter of the list of the dead has its index, found as the API's role and
// with the values of a real list: of 20 000 rows a tenth is the organization's, and
// the filter asks for few of them.
func TestEachFilterOfTheDeadUsesItsIndex(t *testing.T) {
	t.Parallel()
	u := dbtest.Fresh(t)
	w := world{T: t, db: dbtest.Open(t, u, db.Options{}), url: u}
	w.org = dbtest.Org(t, w.db)
	other := dbtest.Org(t, w.db)
	often, rare := w.consumer(), w.consumer()
	w.exec(`insert into dead_delivery (delivery_id, organization_id, consumer_id, destination, lane, seq, event_id, event_type, entity_kind,
		       payload, metadata, event_created_at, attempts, earlier_attempts, last_error, died_at)
		select gen_random_uuid(), case when i % 10 = 0 then $1::uuid else $2::uuid end,
		       (select id from consumers where name = case when i % 200 < 2 then $4 else $3 end), gen_random_uuid(), 0, i, gen_random_uuid(),
		       case when i % 200 < 2 then 'custom.rare' else 'custom.often' end, case when i % 200 < 2 then 'rare' else 'often' end,
		       '{}', '{}', now(), 1, 0, 'x', now() - i * interval '1 minute'
		  from generate_series(1, 20000) i`, w.org, other, often, rare)
	w.exec("analyze")
	statements := statementConstants(t)
	at := time.Now().Add(-200 * time.Hour)
	for name, tt := range map[string]struct {
		filter     map[string]any
		index      string
		everywhere string
	}{
		"nothing":  {nil, "dead_delivery_open_idx", "dead_delivery_everywhere_idx"},
		"type":     {map[string]any{"event_type": "custom.rare"}, "dead_delivery_type_idx", "dead_delivery_everywhere_type_idx"},
		"kind":     {map[string]any{"entity_kind": "rare"}, "dead_delivery_kind_idx", "dead_delivery_everywhere_kind_idx"},
		"consumer": {map[string]any{"consumer_id": w.consumerID(rare)}, "dead_delivery_consumer_idx", "dead_delivery_everywhere_consumer_idx"},
		"a period": {map[string]any{"since": at, "until": at.Add(time.Hour)}, "dead_delivery_open_idx", "dead_delivery_everywhere_idx"},
		"a page":   {map[string]any{"before_at": at, "before_id": uuid.New()}, "dead_delivery_open_idx", "dead_delivery_everywhere_idx"},
		"the news": {map[string]any{"after_at": time.Now().Add(-time.Hour), "after_id": uuid.New()}, "dead_delivery_open_idx", "dead_delivery_everywhere_idx"},
		"a page of a type": {
			map[string]any{"event_type": "custom.rare", "before_at": at, "before_id": uuid.New()},
			"dead_delivery_type_idx", "dead_delivery_everywhere_type_idx",
		},
	} {
		args := map[string]any{
			"org_id": w.org, "event_type": "", "entity_kind": "", "consumer_id": 0, "state": "", "since": nil, "until": nil,
			"before_at": nil, "before_id": nil, "after_at": nil, "after_id": nil, "bare": true, "limit": 51,
		}
		maps.Copy(args, tt.filter)
		for statement, index := range map[string]string{
			"listDeadSQL": tt.index, "countDeadSQL": tt.index, "listDeadEverywhereSQL": tt.everywhere, "countDeadEverywhereSQL": tt.everywhere,
		} {
			plan := explainAs(t, w, statements[statement], args, strings.Contains(statement, "Everywhere"))
			if !strings.Contains(plan, index) || strings.Contains(plan, "Seq Scan on dead_delivery") {
				t.Errorf("%s by %s does not use %s:\n%s", statement, name, index, plan)
			}
		}
	}
	plan := explainAs(t, w, statements["deadNamesSQL"], map[string]any{"org_id": w.org}, false)
	if strings.Contains(plan, "Seq Scan on dead_delivery") || !strings.Contains(plan, "dead_delivery_type_idx") || !strings.Contains(plan, "dead_delivery_kind_idx") {
		t.Errorf("the names do not hop by their indexes:\n%s", plan)
	}
}

// consumerID is what the rows of a consumer are found by.
func (w world) consumerID(name string) (id int) {
	w.Helper()
	return w.count(`select id from consumers where name = $1`, name)
}

// explainAs returns the plan of a statement for real values, as the API's role or
// as the owner.
func explainAs(t *testing.T, w world, statement string, args map[string]any, owner bool) string {
	t.Helper()
	tx, err := dbtest.Conn(t, w.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	settings := `select set_config('plan_cache_mode', 'force_custom_plan', true), set_config('app.organization_id', $1, true)`
	if !owner {
		settings += `, set_config('role', 'deskcomm_api', true)`
	}
	if _, err := tx.Exec(t.Context(), settings, w.org.String()); err != nil {
		t.Fatal(err)
	}
	rows, err := tx.Query(t.Context(), "explain "+statement, pgx.NamedArgs(args))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(plan, "\n")
}

func TestADecisionAboutTheDeadNeedsATextAsItsReason(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bury(buried{n: 1, typ: "custom.a", kind: "x", consumer: w.consumer(), at: time.Now()})
	var id uuid.UUID
	w.inOrg(func(tx *db.OrgTx) error {
		rows, err := tx.DeadDeliveries(t.Context(), db.DeadFilter{})
		if len(rows) == 1 {
			id = rows[0].ID
		}
		return err
	})
	for name, reason := range map[string]string{"too long": strings.Repeat("ç", 501), "a NUL": "a\x00b", "no text": "a\xff"} {
		for act, decide := range map[string]func(tx *db.OrgTx) error{
			"replay":  func(tx *db.OrgTx) error { return tx.Replay(t.Context(), id, reason) },
			"discard": func(tx *db.OrgTx) error { return tx.Discard(t.Context(), id, reason) },
		} {
			err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), decide)
			if field, ok := errors.AsType[*bus.FieldError](err); !ok || field.Field != "reason" {
				t.Errorf("%s with a reason that is %s = %v, want an error that names the reason", act, name, err)
			}
		}
	}
	if n := w.count("select count(*) from dead_delivery where delivery_id = $1 and state = 'dead'", id); n != 1 {
		t.Error("the delivery is not dead any more")
	}
}
