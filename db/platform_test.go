package db_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
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

func TestThePlatformSeesTheDeadOfAllAndLeavesATrace(t *testing.T) {
	t.Parallel()
	u := dbtest.Fresh(t)
	w := world{T: t, db: dbtest.Open(t, u, db.Options{}), url: u}
	w.org = dbtest.Org(t, w.db)
	consumer := w.consumer()
	orgs := []uuid.UUID{w.org, dbtest.Org(t, w.db), dbtest.Org(t, w.db)}
	at := time.Now().Add(-time.Hour)
	for i, org := range orgs {
		w.bury(buried{org: org, n: 10 * i, typ: "custom.t" + strconv.Itoa(i), kind: "x", consumer: consumer, at: at.Add(time.Duration(i) * time.Millisecond), step: time.Second})
	}
	actor := db.Actor{Kind: db.ActorUser, ID: uuid.NullUUID{UUID: uuid.New(), Valid: true}, Name: "root@example.com", RequestID: "r1", Platform: true}
	ctx := t.Context()
	rows, n, err := w.db.DeadEverywhere(ctx, actor, db.DeadFilter{Limit: 25, Bare: true})
	if err != nil || len(rows) != 25 || n != 30 {
		t.Fatalf("%d rows of %d, %v, want 25 of 30", len(rows), n, err)
	}
	if !slices.IsSortedFunc(rows, func(a, b db.DeadDelivery) int { return b.DiedAt.Compare(a.DiedAt) }) {
		t.Error("the latest death is not first")
	}
	last := rows[24]
	rest, n, err := w.db.DeadEverywhere(ctx, actor, db.DeadFilter{BeforeAt: &last.DiedAt, BeforeID: uuid.NullUUID{UUID: last.ID, Valid: true}})
	if err != nil || len(rest) != 5 || n != 30 {
		t.Errorf("the rest is %d of %d, %v, want 5 of 30", len(rest), n, err)
	}
	if rows, n, err := w.db.DeadEverywhere(ctx, actor, db.DeadFilter{Type: "custom.t1"}); err != nil || len(rows) != 10 || n != 10 || rows[0].OrgID != orgs[1] {
		t.Errorf("of one type: %d of %d, %v", len(rows), n, err)
	}
	byID, err := w.db.DeadEverywhereByID(ctx, actor, rows[0].ID, rest[0].ID, uuid.New())
	if err != nil || len(byID) != 2 || byID[0].ID != rows[0].ID || byID[0].Payload != nil {
		t.Errorf("by id: %d, %v", len(byID), err)
	}
	list, err := w.db.OrganizationsDead(ctx, actor)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[uuid.UUID]int)
	for _, o := range list {
		got[o.ID] = o.Dead
	}
	if diff := cmp.Diff(map[uuid.UUID]int{orgs[0]: 0, orgs[1]: 10, orgs[2]: 20}, got); diff != "" {
		t.Errorf("dead by organization (-want +got): %s", diff)
	}
	audited := make(map[string]int)
	found, err := dbtest.Conn(t, u).Query(ctx, `select resource_type from audit_log
		where action = 'platform.read' and organization_id is null and actor_name = 'root@example.com' and metadata ->> 'platform' = 'true' and request_id = 'r1'`)
	if err != nil {
		t.Fatal(err)
	}
	kinds, err := pgx.CollectRows(found, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range kinds {
		audited[kind]++
	}
	if diff := cmp.Diff(map[string]int{"dead_delivery": 4, "organization": 1}, audited); diff != "" {
		t.Errorf("looks that are audited (-want +got): %s", diff)
	}
	if _, err := w.db.OrganizationName(ctx, uuid.New()); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("an organization that is not: %v, want not found", err)
	}
	if m, err := w.db.OrganizationName(ctx, orgs[1]); err != nil || m.OrgID != orgs[1] || m.Timezone != "America/Sao_Paulo" || m.Role != "" {
		t.Errorf("an organization: %+v, %v", m, err)
	}
	w.exec("insert into organizations (name) select 'z' || i from generate_series(1, 250) i")
	if list, err := w.db.OrganizationsDead(ctx, actor); err != nil || len(list) != 200 {
		t.Errorf("%d organizations, %v, want 200 at most", len(list), err)
	}
}

// A look that cannot be audited shows nothing.
func TestInvariant11NothingIsSeenAcrossOrganizationsWithoutATrace(t *testing.T) {
	t.Parallel()
	u := dbtest.Fresh(t)
	w := world{T: t, db: dbtest.Open(t, u, db.Options{}), url: u}
	w.exec("alter table audit_log add constraint full_check check (action <> 'platform.read')")
	for name, look := range map[string]func(ctx context.Context) error{
		"the list": func(ctx context.Context) error {
			_, _, err := w.db.DeadEverywhere(ctx, dbtest.Actor(), db.DeadFilter{})
			return err
		},
		"some": func(ctx context.Context) error {
			_, err := w.db.DeadEverywhereByID(ctx, dbtest.Actor(), uuid.New())
			return err
		},
		"the organizations": func(ctx context.Context) error {
			_, err := w.db.OrganizationsDead(ctx, dbtest.Actor())
			return err
		},
	} {
		if look(t.Context()) == nil {
			t.Errorf("%s is shown although the look was not audited", name)
		}
	}
}

func TestTheOverviewCountsWhatIsThere(t *testing.T) {
	t.Parallel()
	w := setup(t)
	overview := func() (o db.Overview) {
		w.inOrg(func(tx *db.OrgTx) (err error) {
			o, err = tx.Overview(t.Context())
			return err
		})
		return o
	}
	if diff := cmp.Diff(db.Overview{}, overview()); diff != "" {
		t.Errorf("of a new organization (-want +got): %s", diff)
	}
	consumer := w.consumer()
	oldest := time.Now().Add(-3 * time.Hour).Truncate(time.Microsecond)
	w.bury(buried{n: 3, typ: "custom.a", kind: "x", consumer: consumer, at: oldest.Add(2 * time.Hour), step: time.Hour})
	w.bury(buried{n: 1, typ: "custom.a", kind: "x", consumer: consumer, at: oldest.Add(-time.Hour)})
	w.exec("update dead_delivery set state = 'replayed', resolved_at = now() where organization_id = $1 and died_at < $2", w.org, oldest)
	w.emit("custom.console")
	w.emit("custom.console")
	w.exec(`insert into event_log (id, organization_id, event_type, entity_kind, payload, metadata, created_at)
		select uuid_v7(clock_timestamp() - interval '25 hours'), $1, 'custom.old', 'x', '{}', '{}', clock_timestamp() - interval '25 hours'`, w.org)
	for name, set := range map[string]string{
		"fine": "enabled = true", "failing": "consecutive_failures = 2", "disabled": "enabled = false", "deleted": "deleted_at = now(), consecutive_failures = 5",
	} {
		w.exec("insert into webhook_subscriptions (organization_id, url, event_types) values ($1, $2, '{*}')", w.org, "https://"+name+".example")
		w.exec("update webhook_subscriptions set "+set+" where organization_id = $1 and url = $2", w.org, "https://"+name+".example")
	}
	foreign := setup(t)
	foreign.bury(buried{n: 5, typ: "custom.a", kind: "x", consumer: consumer, at: oldest.Add(-time.Hour)})
	foreign.emit("custom.console")
	got := overview()
	var latest time.Time
	if err := dbtest.Row(t, w.url, "select max(created_at) from event_log where organization_id = $1", []any{w.org}, &latest); err != nil {
		t.Fatal(err)
	}
	if got.LastEventAt == nil || !got.LastEventAt.Equal(latest) {
		t.Errorf("the latest event was at %v, want %v", got.LastEventAt, latest)
	}
	got.LastEventAt = nil
	want := db.Overview{Dead: 3, EventsToday: 2, Webhooks: 3, WebhooksFailing: 2, OldestDeadDiedAt: &oldest}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("overview (-want +got): %s", diff)
	}
}

func TestAttemptsAreThoseOfTheDeliveriesAskedFor(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.consumer(typ)
	w.emit(typ)
	w.emit(typ)
	w.relay()
	claimed := w.claim(consumer, 2)
	at := time.Now().Add(-time.Minute).UTC().Truncate(time.Microsecond)
	for i, d := range claimed {
		d.Detail = &bus.AttemptDetail{StartedAt: at.Add(time.Duration(i) * time.Second), Duration: 1500 * time.Millisecond, StatusCode: 503 * i, Response: strings.Repeat("no", i)}
		verdict, text := bus.VerdictDone, ""
		if i == 1 {
			verdict, text = bus.VerdictDead, "http_503: no"
		}
		w.settle(d, verdict, text)
	}
	attempts := func(limit int, ids ...uuid.UUID) (rows []db.AttemptRow) {
		w.inOrg(func(tx *db.OrgTx) (err error) {
			rows, err = tx.Attempts(t.Context(), limit, ids...)
			return err
		})
		for i := range rows {
			rows[i].StartedAt = rows[i].StartedAt.UTC()
		}
		return rows
	}
	done := db.AttemptRow{DeliveryID: claimed[0].ID, Number: 1, Consumer: consumer, Outcome: "done", StartedAt: at, Duration: 1500 * time.Millisecond}
	dead := db.AttemptRow{
		DeliveryID: claimed[1].ID, Number: 1, Consumer: consumer, Outcome: "dead", StartedAt: at.Add(time.Second), Duration: 1500 * time.Millisecond,
		Error: new("http_503: no"), StatusCode: new(503), Response: new("no"),
	}
	if diff := cmp.Diff([]db.AttemptRow{dead, done}, attempts(10, claimed[0].ID, claimed[1].ID)); diff != "" {
		t.Errorf("both, the newest first (-want +got): %s", diff)
	}
	if diff := cmp.Diff([]db.AttemptRow{done}, attempts(10, claimed[0].ID)); diff != "" {
		t.Errorf("one (-want +got): %s", diff)
	}
	if got := attempts(1, claimed[0].ID, claimed[1].ID); len(got) != 1 || got[0].DeliveryID != claimed[1].ID {
		t.Errorf("at most one: %+v", got)
	}
	if got := attempts(10); len(got) != 0 {
		t.Errorf("of nothing: %+v", got)
	}
	other := setup(t)
	other.inOrg(func(tx *db.OrgTx) error {
		rows, err := tx.Attempts(t.Context(), 10, claimed[0].ID, claimed[1].ID)
		if len(rows) != 0 {
			t.Errorf("another organization sees %d attempts", len(rows))
		}
		return err
	})
}

func TestARecordedActNamesWhoAndWhat(t *testing.T) {
	t.Parallel()
	w := setup(t)
	id := uuid.New()
	actor := db.Actor{Kind: db.ActorUser, Name: "ana@example.com", RequestID: "r7", Platform: true}
	err := w.db.InOrg(t.Context(), w.org, actor, func(tx *db.OrgTx) error {
		return errors.Join(tx.Record(t.Context(), "payload.revealed", "event", id), tx.Record(t.Context(), "authz.denied", "delivery", uuid.Nil))
	})
	if err != nil {
		t.Fatal(err)
	}
	for action, resource := range map[string]uuid.NullUUID{"payload.revealed": {UUID: id, Valid: true}, "authz.denied": {}} {
		if n := w.count(`select count(*) from audit_log where organization_id = $1 and action = $2 and resource_id is not distinct from $3
			and actor_name = 'ana@example.com' and request_id = 'r7' and metadata ->> 'platform' = 'true'`, w.org, action, resource); n != 1 {
			t.Errorf("%d rows of %s, want 1", n, action)
		}
	}
}
