package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// seeded are the ids of one of everything, by the path that lists it.
type seeded map[string]string

// seed makes one of everything in the world's organization.
func (w *world) seed() seeded {
	w.t.Helper()
	ids := seeded{
		"/v1/events":                w.post("/v1/events", custom).want(http.StatusCreated).fields()["id"].(string),
		"/v1/webhook-subscriptions": w.post("/v1/webhook-subscriptions", passing["/v1/webhook-subscriptions"]).want(http.StatusCreated).fields()["id"].(string),
		"/v1/channel-sessions":      w.post("/v1/channel-sessions", `{"name":"main"}`).want(http.StatusCreated).fields()["id"].(string),
		"/v1/tokens":                w.post("/v1/tokens", passing["/v1/tokens"]).want(http.StatusCreated).fields()["id"].(string),
	}
	c := dbtest.Conn(w.t, dbtest.URL(w.t))
	row := func(sql string, args ...any) string {
		w.t.Helper()
		var id string
		if err := c.QueryRow(w.t.Context(), sql, append([]any{w.org}, args...)...).Scan(&id); err != nil {
			w.t.Fatal(err)
		}
		return id
	}
	ids["/v1/contacts"] = row(`insert into contacts (organization_id, name, phone_number) values ($1, 'Ana', '+5511987654321') returning id`)
	ids["/v1/conversations"] = row(`insert into conversations (organization_id, contact_id, channel_session_id, chat_id)
		values ($1, $2, $3, '5511987654321@c.us') returning id`, ids["/v1/contacts"], ids["/v1/channel-sessions"])
	ids["/v1/messages"] = row(`insert into messages (organization_id, conversation_id, contact_id, channel_session_id, waha_message_id,
			type, direction, status, body, sent_at)
		values ($1, $2, $3, $4, '3EB0', 'text', 'inbound', 'received', 'Oi', '2026-01-02 03:04:05+00') returning id`,
		ids["/v1/conversations"], ids["/v1/contacts"], ids["/v1/channel-sessions"])
	ids["/v1/dlq"] = w.bury()
	ids["/v1/lanes"] = w.lane()
	return ids
}

// lane makes a lane of a webhook in which a new event waits.
func (w *world) lane() string {
	w.t.Helper()
	sub := w.post("/v1/webhook-subscriptions", `{"url":"https://example.com/hook","event_types":["custom.none"],"ordering":"strict"}`).
		want(http.StatusCreated).fields()["id"].(string)
	event := w.post("/v1/events", custom).want(http.StatusCreated).fields()["id"]
	c := dbtest.Conn(w.t, dbtest.URL(w.t))
	if _, err := c.Exec(w.t.Context(), `insert into consumers (name, event_types, effect, retry_steps, retry_jitter, max_attempts)
		values ($1, '{}', 'at_least_once', '{1 second}', 0, 8) on conflict (name) do nothing`, bus.WebhookDispatch); err != nil {
		w.t.Fatal(err)
	}
	id := db.LaneID{Destination: parseID(w.t, sub), Lane: 1}
	if err := c.QueryRow(w.t.Context(), `insert into delivery (consumer_id, destination, organization_id, lane, seq, event_id, due_at, attempts, last_error)
		select c.id, $1, $2, 1, nextval('lease_token_seq') + 1000000000, $3, clock_timestamp(), 1, 'refused' from consumers c where c.name = $4
		returning consumer_id`, sub, w.org, event, bus.WebhookDispatch).Scan(&id.ConsumerID); err != nil {
		w.t.Fatal(err)
	}
	return id.String()
}

// bury makes a dead delivery of a new event.
func (w *world) bury() string {
	w.t.Helper()
	c := dbtest.Conn(w.t, dbtest.URL(w.t))
	if _, err := c.Exec(w.t.Context(), `insert into consumers (name, event_types, effect, retry_steps, retry_jitter, max_attempts)
		values ('buried-worker', '{}', 'local', '{1 second}', 0, 8) on conflict (name) do nothing`); err != nil {
		w.t.Fatal(err)
	}
	event := w.post("/v1/events", `{"event_type":"custom.buried","entity_kind":"order"}`).want(http.StatusCreated).fields()["id"]
	id := uuid.NewString()
	if _, err := c.Exec(w.t.Context(), `insert into dead_delivery (delivery_id, organization_id, consumer_id, destination, lane, seq, event_id,
			event_type, entity_kind, payload, metadata, event_created_at, attempts, earlier_attempts, last_error)
		select $1, $2, c.id, '00000000-0000-0000-0000-000000000000', 0, nextval('lease_token_seq') + 1000000000, e.id,
			e.event_type, e.entity_kind, e.payload, e.metadata, e.created_at, 8, 0, 'refused'
		  from event_log e, consumers c
		 where e.id = $3 and c.name = 'buried-worker'`, id, w.org, event); err != nil {
		w.t.Fatal(err)
	}
	return id
}

func TestOtherOrganizationsResourcesAreNotFound(t *testing.T) {
	t.Parallel()
	w := setup(t)
	ids := w.seed()
	stranger := w.elsewhere()

	for name := range w.operations() {
		method, path, _ := strings.Cut(name, " ")
		collection, action, one := strings.Cut(path, "/{id}")
		if ids[collection] == "" {
			if method == http.MethodGet {
				t.Errorf("%s: seed makes nothing to look for", name)
			}
			continue
		}
		if one {
			stranger.send(method, collection+"/"+ids[collection]+action, passing[path]).problem(http.StatusNotFound)
			continue
		}
		if method != http.MethodGet {
			continue
		}
		items, _ := stranger.get(path).items()
		if path == "/v1/tokens" {
			items = items[1:] // the stranger's own
		}
		if len(items) != 0 {
			t.Errorf("%s shows %d items of another organization", name, len(items))
		}
	}
	// Nothing that the stranger tried had an effect.
	for collection, id := range ids {
		found := false
		items, _ := w.get(collection).items()
		for _, item := range items {
			found = found || item["id"] == id && item["revoked_at"] == nil
		}
		if !found {
			t.Errorf("%s lacks %s, which the stranger could only try to change", collection, id)
		}
	}
}

func TestResourcesAreShownAsTheyAreListed(t *testing.T) {
	t.Parallel()
	w := setup(t)
	ids := w.seed()
	for collection, want := range map[string][]string{
		"/v1/events":                {`"event_type":"custom.order_shipped"`, `"entity_id":null`, `"payload":{}`},
		"/v1/webhook-subscriptions": {`"has_secret":false`, `"ordering":"none"`, `"format":"native"`, `"url":"https://example.com/hook"`},
		"/v1/channel-sessions":      {`"name":"main"`, `"kind":"waha"`, `"status":"STOPPED"`, `"phone_number":null`},
		"/v1/contacts":              {`"name":"Ana"`, `"phone_number":"+5511987654321"`, `"tags":[]`},
		"/v1/conversations":         {`"status":"open"`, `"contact_id":"` + ids["/v1/contacts"] + `"`},
		"/v1/messages":              {`"waha_message_id":"3EB0"`, `"external_id":"3EB0"`, `"sent_at":"2026-01-02T03:04:05.000000Z"`, `"body":"Oi"`},
	} {
		shown := w.get(collection + "/" + ids[collection]).want(http.StatusOK)
		listed := w.get(collection).want(http.StatusOK)
		for _, part := range want {
			if !strings.Contains(shown.text, part) || !strings.Contains(listed.text, part) {
				t.Errorf("%s lacks %s:\n%s\n%s", collection, part, shown.text, listed.text)
			}
		}
	}
}

func TestMessagesOfOneConversation(t *testing.T) {
	t.Parallel()
	w := setup(t)
	ids := w.seed()
	if items, _ := w.get("/v1/messages?conversation_id=" + ids["/v1/conversations"]).items(); len(items) != 1 || items[0]["id"] != ids["/v1/messages"] {
		t.Errorf("messages = %v, want the one", items)
	}
	if items, _ := w.get("/v1/messages?conversation_id=" + uuid.NewString()).items(); len(items) != 0 {
		t.Errorf("messages = %v, want none", items)
	}
	w.get("/v1/messages?conversation_id=1").wantFault("", "conversation_id")
}
