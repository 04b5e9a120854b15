package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db/dbtest"
	"github.com/deskcomm/deskcomm/web/problem"
)

const custom = `{"event_type":"custom.order_shipped","entity_kind":"order"}`

func TestEmittedEventIsShownAsItWasGiven(t *testing.T) {
	t.Parallel()
	w := setup(t)
	entity := uuid.NewString()
	made := w.post("/v1/events", `{"event_type":"custom.order_shipped","entity_kind":"order","entity_id":"`+entity+`",
		"payload":{"n":9007199254740993,"price":12.50,"big":1e400,"text":"Olá <b>&\u0001"},"metadata":{"source":"shop"}}`).want(http.StatusCreated).fields()
	for field, want := range map[string]any{"event_type": "custom.order_shipped", "entity_kind": "order", "entity_id": entity} {
		if got := made[field]; got != want {
			t.Errorf("%s = %v, want %v", field, got, want)
		}
	}
	shown := w.get("/v1/events/" + made["id"].(string)).want(http.StatusOK)
	for _, want := range []string{
		`"n":9007199254740993`, `"price":12.50`, `"big":1` + strings.Repeat("0", 400), `"text":"Olá <b>&\u0001"`,
		`"source":"shop"`, `"request_id":"req-1"`, `"actor_kind":"token"`, `"created_at":"` + made["created_at"].(string) + `"`,
		`"status":"pending"`, `"seq":null`, `"deliveries":[]`,
	} {
		if !strings.Contains(shown.text, want) {
			t.Errorf("shown event lacks %s: %s", want, shown.text)
		}
	}
	if got := made["created_at"].(string); !strings.HasSuffix(got, "Z") || len(got) != len("2006-01-02T15:04:05.000000Z") {
		t.Errorf("created_at = %s, want microseconds in UTC", got)
	}
}

func TestBatchKeepsItsOrder(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var made struct{ IDs []string }
	w.post("/v1/events/batch", `{"events":[
		{"event_type":"custom.first","entity_kind":"x"},{"event_type":"lead.won","entity_kind":"lead","payload":{"a":1}},{"event_type":"custom.third","entity_kind":"x"}]}`).
		want(http.StatusCreated).into(&made)
	items, _ := w.get("/v1/events").items()
	if len(items) != 3 || len(made.IDs) != 3 {
		t.Fatalf("%d events and %d ids, want 3", len(items), len(made.IDs))
	}
	for i, want := range []string{"custom.first", "lead.won", "custom.third"} {
		if got := items[2-i]; got["event_type"] != want || got["id"] != made.IDs[i] {
			t.Errorf("event %d = %v, want %s with id %s", i, got, want, made.IDs[i])
		}
	}
}

func TestBatchWithOneFaultEmitsNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	good := custom + ","
	for name, tt := range map[string]struct{ event, pointer string }{
		"unknown type":         {`{"event_type":"LeadCreated","entity_kind":"x"}`, "/events/3/event_type"},
		"type is no string":    {`{"event_type":7,"entity_kind":"x"}`, "/events/3/event_type"},
		"no type":              {`{"entity_kind":"x"}`, "/events/3/event_type"},
		"bad kind":             {`{"event_type":"custom.a","entity_kind":"X Y"}`, "/events/3/entity_kind"},
		"bad id":               {`{"event_type":"custom.a","entity_kind":"x","entity_id":"1"}`, "/events/3/entity_id"},
		"payload is a list":    {`{"event_type":"custom.a","entity_kind":"x","payload":[]}`, "/events/3/payload"},
		"payload holds NUL":    {`{"event_type":"custom.a","entity_kind":"x","payload":{"a":["\u0000"]}}`, "/events/3/payload"},
		"half a character":     {`{"event_type":"custom.a","entity_kind":"x","payload":{"a":"\udc00"}}`, "/events/3/payload"},
		"metadata is text":     {`{"event_type":"custom.a","entity_kind":"x","metadata":"a"}`, "/events/3/metadata"},
		"dedup key is no text": {`{"event_type":"custom.a","entity_kind":"x","metadata":{"idempotency_key":1}}`, "/events/3/metadata/idempotency_key"},
		"order key is no text": {`{"event_type":"custom.a","entity_kind":"x","metadata":{"order_key":{}}}`, "/events/3/metadata/order_key"},
		"order key is empty":   {`{"event_type":"custom.a","entity_kind":"x","metadata":{"order_key":""}}`, "/events/3/metadata/order_key"},
		"unknown property":     {`{"event_type":"custom.a","entity_kind":"x","payload ":{}}`, "/events/3"},
		"number beyond jsonb":  {`{"event_type":"custom.a","entity_kind":"x","payload":{"a":1e200000}}`, "/events/3/payload"},
	} {
		t.Log(name)
		w.post("/v1/events/batch", `{"events":[`+strings.Repeat(good, 3)+tt.event+`]}`).wantFault(tt.pointer, "")
	}
	if items, _ := w.get("/v1/events").items(); len(items) != 0 {
		t.Errorf("%d events exist, want none", len(items))
	}
}

func TestBatchReportsEveryUnknownType(t *testing.T) {
	t.Parallel()
	w := setup(t)
	bad := `{"event_type":"Nope","entity_kind":"x"}`
	p, _ := w.post("/v1/events/batch", `{"events":[`+bad+`,`+custom+`,`+bad+`]}`).problem(http.StatusUnprocessableEntity)
	if len(p.Errors) != 2 || *p.Errors[0].Pointer != "/events/0/event_type" || *p.Errors[1].Pointer != "/events/2/event_type" {
		t.Errorf("faults = %v, want those of events 0 and 2", p.Errors)
	}
}

func TestBatchHoldsOneToAThousandEvents(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.post("/v1/events/batch", `{"events":[]}`).wantFault("/events", "")
	many := strings.Repeat(custom+",", 999) + custom
	w.post("/v1/events/batch", `{"events":[`+many+`,`+custom+`]}`).wantFault("/events", "")
	var made struct{ IDs []string }
	w.post("/v1/events/batch", `{"events":[`+many+`]}`).want(http.StatusCreated).into(&made)
	if got, want := len(made.IDs), 1000; got != want {
		t.Errorf("%d ids, want %d", got, want)
	}
}

func TestEmittedTypeMustExist(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for _, unknown := range []string{"LeadCreated", "lead.nope", "custom", "custom.", "custom.A", "custom.a.b", "", "lead.created ", "order.paid"} {
		w.post("/v1/events", `{"event_type":"`+unknown+`","entity_kind":"lead"}`).wantFault("/event_type", "")
	}
	if items, _ := w.get("/v1/events").items(); len(items) != 0 {
		t.Errorf("%d events exist, want none", len(items))
	}
}

func TestFactsOfTheCatalogueNeedTheirScope(t *testing.T) {
	t.Parallel()
	w := setup(t)
	own := w.as(dbtest.Token(t, w.db, w.org, "events:write"))
	anything := w.as(dbtest.Token(t, w.db, w.org, "events:emit_any"))
	const fact = `{"event_type":"lead.won","entity_kind":"lead"}`

	own.post("/v1/events", custom).want(http.StatusCreated)
	anything.post("/v1/events", custom).want(http.StatusCreated)
	anything.post("/v1/events", fact).want(http.StatusCreated)
	for path, body := range map[string]string{"/v1/events": fact, "/v1/events/batch": `{"events":[` + custom + `,` + fact + `]}`} {
		p, _ := own.post(path, body).problem(http.StatusForbidden)
		if p.Code != problem.CodeMissingScope || !strings.Contains(p.Detail, "events:emit_any") {
			t.Errorf("%s: problem = %v, want one that names events:emit_any", path, p)
		}
	}
	own.post("/v1/events", `{"event_type":"lead.nope","entity_kind":"lead"}`).wantFault("/event_type", "")
	if items, _ := w.get("/v1/events").items(); len(items) != 3 {
		t.Errorf("%d events exist, want 3", len(items))
	}
}

func TestDedupKeyGivesTheEventThatWasEmittedFirst(t *testing.T) {
	t.Parallel()
	w := setup(t)
	first := w.post("/v1/events", `{"event_type":"custom.a","entity_kind":"x","metadata":{"idempotency_key":"k"}}`).want(http.StatusCreated).fields()
	again := w.post("/v1/events", `{"event_type":"custom.b","entity_kind":"y","metadata":{"idempotency_key":"k"}}`).want(http.StatusCreated).fields()
	delete(first, "pressure") // is of the moment
	delete(again, "pressure")
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("the second answer is not the first (-first +second):\n%s", diff)
	}
}
