package db_test

import (
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

func TestEveryTableOfAnOrganizationHasAPolicyAndRowSecurity(t *testing.T) {
	t.Parallel()
	rows, err := dbtest.Conn(t, dbtest.URL(t)).Query(t.Context(), `
		select c.relname, c.relrowsecurity, count(p.polname)
		  from pg_class c
		  join pg_attribute a on a.attrelid = c.oid and a.attname = 'organization_id' and not a.attisdropped
		  left join pg_policy p on p.polrelid = c.oid
		 where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
		   and not (c.relkind = 'v' and 'security_invoker=true' = any (c.reloptions)) -- it shows what its tables show
		 group by 1, 2`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	n := 0
	for rows.Next() {
		var table string
		var secured bool
		var policies int
		if err := rows.Scan(&table, &secured, &policies); err != nil {
			t.Fatal(err)
		}
		n++
		if !secured || policies == 0 {
			t.Errorf("%s has an organization_id, row security %t and %d policies, want on and at least one", table, secured, policies)
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if n < 20 {
		t.Errorf("found %d tables of organizations, want all of them", n)
	}
}

func TestPartitionsCarryNoGrants(t *testing.T) {
	t.Parallel()
	var granted int
	err := dbtest.Conn(t, dbtest.URL(t)).QueryRow(t.Context(), `
		select count(*) from pg_class where relispartition and relkind = 'r' and has_table_privilege('deskcomm_api', oid, 'select')`).Scan(&granted)
	if err != nil || granted != 0 {
		t.Errorf("the API role may read %d partitions directly, %v, want none", granted, err)
	}
}

// Whatever a statement says, the role of the API sees one organization. Each
// table that it may read is asked for everything.
func TestInvariant11APIRoleSeesNoRowOfAnotherOrganization(t *testing.T) {
	t.Parallel()
	a, b := setup(t), setup(t)
	typ := ownType()
	consumer := a.consumer(typ)
	for _, w := range []world{a, b} {
		w.emit(typ)
	}
	a.relay()
	for _, d := range a.claim(consumer, 10) {
		if d.OrgID == b.org {
			a.settle(d, bus.VerdictDead, "broken")
		}
	}
	conn := dbtest.Conn(t, a.url)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(t.Context(), `select set_config('app.organization_id', $1, true), set_config('role', 'deskcomm_api', true)`, a.org.String())
	if err != nil {
		t.Fatal(err)
	}
	var tables []string
	err = tx.QueryRow(t.Context(), `
		select array_agg(c.relname::text)
		  from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attname = 'organization_id'
		 where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
		   and has_table_privilege('deskcomm_api', c.oid, 'select')`).Scan(&tables)
	if err != nil {
		t.Fatal(err)
	}
	for _, need := range []string{"event_log", "delivery", "dead_delivery", "receipt", "contacts", "messages", "api_tokens"} {
		if !slices.Contains(tables, need) {
			t.Errorf("the API cannot read %s", need)
		}
	}
	for _, table := range tables {
		var foreign int
		if err := tx.QueryRow(t.Context(), "select count(*) from "+table+" where organization_id <> $1", a.org).Scan(&foreign); err != nil || foreign != 0 {
			t.Errorf("%s: %d rows of other organizations, %v", table, foreign, err)
		}
	}
	var own int
	if err := tx.QueryRow(t.Context(), "select count(*) from event_log").Scan(&own); err != nil || own != 1 {
		t.Errorf("event_log: %d rows, %v, want the organization's one", own, err)
	}
}

func TestAPIRoleSeesNothingWithoutAnOrganization(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.emit(ownType())
	tx, err := dbtest.Conn(t, w.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// After a transaction with a local setting the value is '' and not null.
	_, err = tx.Exec(t.Context(), `select set_config('app.organization_id', '', true), set_config('role', 'deskcomm_api', true)`)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if err := tx.QueryRow(t.Context(), "select count(*) from event_log").Scan(&n); err != nil || n != 0 {
		t.Errorf("saw %d events, %v, want none", n, err)
	}
}

func TestAPIRoleEmitsForItsOwnOrganizationOnly(t *testing.T) {
	t.Parallel()
	a, b := setup(t), setup(t)
	cases := map[string]struct {
		sql    string
		column string
	}{
		"another organization's event": {`select emit_event('custom.x', 'thing', null, '{}', '{}', $1)`, "organization_id"},
		"a row in the log":             {`insert into event_log (id, organization_id, event_type, entity_kind, payload, metadata, created_at) values (uuid_v7(), $1, 'custom.x', 'x', '{}', '{}', now())`, ""},
		"a row in the outbox":          {`insert into outbox (event_id, organization_id, event_type, created_at) values (uuid_v7(), $1, 'custom.x', now())`, ""},
		"a changed event":              {`update event_log set payload = '{}' where organization_id = $1`, ""},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tx, err := dbtest.Conn(t, a.url).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, err = tx.Exec(t.Context(), `select set_config('app.organization_id', $1, true), set_config('role', 'deskcomm_api', true)`, a.org.String())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), tt.sql, b.org); err == nil || columnOf(err) != tt.column {
				t.Errorf("got %v, want a refusal", err)
			}
		})
	}
}

func TestInvariant11SubscriptionReceivesNoEventOfAnotherOrganization(t *testing.T) {
	t.Parallel()
	a := withWebhooks(t)
	b := a
	b.org = dbtest.Org(t, a.db)
	typ := ownType()
	a.emit(typ) // before there is a subscription: not for it
	sub := a.subscribe("*")
	b.emit(typ)
	mine := a.emit(typ)
	a.relay()
	claimed := a.claim(bus.WebhookDispatch, 10)
	if len(claimed) != 1 || claimed[0].Event.ID != mine || claimed[0].Destination != sub {
		t.Errorf("claimed %+v, want the one event that its own organization emitted after subscribing", claimed)
	}
}

// withWebhooks is a world on a database of its own, where the one consumer of all
// subscriptions is registered.
func withWebhooks(t *testing.T) world {
	t.Helper()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	c := bus.Consumer{Name: bus.WebhookDispatch, Effect: bus.EffectAtLeastOnce, Retry: bus.DefaultRetry()}
	if err := d.RegisterConsumers(t.Context(), []bus.Consumer{c}); err != nil {
		t.Fatal(err)
	}
	return world{T: t, db: d, url: url, org: dbtest.Org(t, d)}
}

func (w world) subscribe(patterns ...string) uuid.UUID {
	w.Helper()
	var sub db.Subscription
	err := w.db.InOrg(w.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) (err error) {
		sub, err = tx.CreateSubscription(w.Context(), db.NewSubscription{URL: "https://example.com/hook", EventTypes: patterns, Secret: "a secret of the test"})
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return sub.ID
}

func TestDeletedSubscriptionDiscardsWhatWaitsAndRefusesReplay(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	sub := w.subscribe("custom.*")
	dying, waiting := w.emit(ownType()), w.emit(ownType())
	w.relay()
	claimed := w.claim(bus.WebhookDispatch, 2)
	dead, sending := claimed[0], claimed[1]
	if dead.Event.ID != dying {
		dead, sending = sending, dead
	}
	w.settle(dead, bus.VerdictDead, "refused")
	err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error { return tx.DeleteSubscription(t.Context(), sub) })
	if err != nil {
		t.Fatal(err)
	}
	if lost := w.settle(sending, bus.VerdictDone, ""); len(lost) != 1 {
		t.Error("the verdict over a delivery that was discarded meanwhile was accepted")
	}
	if got := w.states(waiting)[bus.WebhookDispatch]; got != "discarded 0/8" {
		t.Errorf("the waiting delivery is %q, want it discarded", got)
	}
	err = w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error { return tx.Replay(t.Context(), dead.ID, "") })
	if !errors.Is(err, bus.ErrConflict) {
		t.Errorf("replay to a deleted subscription = %v, want a conflict", err)
	}
}

func TestWebhookEventIsNotDeliveredToTheSubscriptionItNames(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	broken, other := w.subscribe("*"), w.subscribe("webhook.*")
	payload, err := json.Marshal(map[string]any{"subscription_id": broken})
	if err != nil {
		t.Fatal(err)
	}
	err = w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
		_, err := tx.Emit(t.Context(), db.NewEvent{Type: "webhook.delivery_failed", EntityKind: "webhook_subscription", Payload: payload})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	w.relay()
	claimed := w.claim(bus.WebhookDispatch, 10)
	if len(claimed) != 1 || claimed[0].Destination != other {
		t.Errorf("claimed %d deliveries, want only the one of the subscription that is not named", len(claimed))
	}
}

func TestSecretsAreEncryptedAtRestAndAnotherKeyIsRefused(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	w := world{T: t, db: d, url: url, org: dbtest.Org(t, d)}
	sub := w.subscribe("*")
	if n := w.count("select count(*) from webhook_subscriptions where position('a secret of the test'::bytea in secret_encrypted) > 0"); n != 0 {
		t.Error("the secret lies readable in the database")
	}
	asked := []db.Sending{{OrgID: w.org, Destination: sub, DeliveryID: uuid.New()}}
	send, err := d.FreezeBodies(t.Context(), asked)
	if err != nil || send[0].Err != nil || send[0].Target.Secret != "a secret of the test" {
		t.Errorf("FreezeBodies() = %+v, %v, want the secret", send, err)
	}
	if err := d.ClaimMasterKey(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := dbtest.Open(t, url, db.Options{MasterKey: []byte("another key of thirty-two bytes!")})
	if err := other.ClaimMasterKey(t.Context()); err == nil {
		t.Error("a process with another master key was let in")
	}
	if err := d.ClaimMasterKey(t.Context()); err != nil {
		t.Errorf("the first key is refused: %v", err)
	}
	if send, err := other.FreezeBodies(t.Context(), asked); err != nil || send[0].Err == nil || send[0].Target.Secret != "" {
		t.Error("another key opened the secret")
	}
}
