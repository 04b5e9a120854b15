package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// exportJob is a job for tomorrow with what else is given.
func exportJob(more string) string {
	return `{"command":"custom.export_requested","entity_kind":"order","not_before":"` + time.Now().Add(24*time.Hour).UTC().Format(time.RFC3339) + `"` + more + `}`
}

func TestEnqueuedJobWaitsAndIsShown(t *testing.T) {
	t.Parallel()
	w := setup(t)
	made := w.post("/v1/jobs", exportJob(`,"payload":{"n":1},"metadata":{"source":"shop"}`)).want(http.StatusCreated).fields()
	if made["kept"] != false || made["not_before"].(string) <= made["created_at"].(string) {
		t.Errorf("made = %v, want a new job for later", made)
	}
	shown := w.get("/v1/events/" + made["id"].(string)).want(http.StatusOK)
	for _, want := range []string{`"status":"pending"`, `"seq":null`, `"n":1`, `"source":"shop"`, `"not_before":"`, `"actor_kind":"token"`} {
		if !strings.Contains(shown.text, want) {
			t.Errorf("the shown job lacks %s: %s", want, shown.text)
		}
	}
}

func TestSingletonIsKeptReplacedOrRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	first := w.post("/v1/jobs", exportJob(`,"singleton_key":"k"`)).want(http.StatusCreated).fields()
	kept := w.post("/v1/jobs", exportJob(`,"singleton_key":"k"`), "Idempotency-Key", "once")
	if got := kept.want(http.StatusOK).fields(); got["id"] != first["id"] || got["kept"] != true {
		t.Errorf("keep = %v, want the first job", got)
	}
	if again := w.post("/v1/jobs", exportJob(`,"singleton_key":"other"`), "Idempotency-Key", "two").want(http.StatusCreated); again.header.Get("Idempotency-Replayed") != "" {
		t.Error("a new key is an answer of before")
	}
	w.post("/v1/jobs", exportJob(`,"singleton_key":"k","policy":"refuse"`)).problem(http.StatusConflict)
	next := w.post("/v1/jobs", exportJob(`,"singleton_key":"k","policy":"replace"`)).want(http.StatusCreated).fields()
	if next["id"] == first["id"] || next["kept"] != false {
		t.Errorf("replace = %v, want a new job", next)
	}
	body := exportJob(`,"singleton_key":"k"`)
	once := w.post("/v1/jobs", body, "Idempotency-Key", "three").want(http.StatusOK)
	repeated := w.post("/v1/jobs", body, "Idempotency-Key", "three").want(http.StatusOK)
	if repeated.text != once.text || repeated.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("repeated = %s, want %s as the answer of before", repeated.text, once.text)
	}
}

func TestJobThatBreaksARuleNamesItsField(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for name, tt := range map[string]struct{ body, pointer string }{
		"a fact":          {`{"command":"lead.won","entity_kind":"lead"}`, "/command"},
		"unknown":         {`{"command":"Export","entity_kind":"lead"}`, "/command"},
		"no command":      {`{"entity_kind":"lead"}`, "/command"},
		"kind":            {`{"command":"custom.a_requested","entity_kind":"X Y"}`, "/entity_kind"},
		"payload":         {`{"command":"custom.a_requested","entity_kind":"x","payload":[]}`, "/payload"},
		"no time":         {`{"command":"custom.a_requested","entity_kind":"x","not_before":"tomorrow"}`, "/not_before"},
		"far future":      {`{"command":"custom.a_requested","entity_kind":"x","not_before":"2999-01-01T00:00:00Z"}`, "/not_before"},
		"policy":          {`{"command":"custom.a_requested","entity_kind":"x","singleton_key":"k","policy":"drop"}`, "/policy"},
		"policy of none":  {`{"command":"custom.a_requested","entity_kind":"x","policy":"refuse"}`, "/policy"},
		"long key":        {`{"command":"custom.a_requested","entity_kind":"x","singleton_key":"` + strings.Repeat("x", 256) + `"}`, "/singleton_key"},
		"unknown field":   {`{"command":"custom.a_requested","entity_kind":"x","delay":"7d"}`, ""},
		"idempotency key": {`{"command":"custom.a_requested","entity_kind":"x","metadata":{"idempotency_key":1}}`, "/metadata/idempotency_key"},
	} {
		t.Log(name)
		w.post("/v1/jobs", tt.body).wantFault(tt.pointer, "")
	}
	if items, _ := w.get("/v1/events").items(); len(items) != 0 {
		t.Errorf("%d events exist, want none", len(items))
	}
}

func TestJobOfTheCatalogueNeedsItsScope(t *testing.T) {
	t.Parallel()
	w := setup(t)
	writer := w.as(dbtest.Token(t, w.db, w.org, "events:write"))
	const send = `{"command":"message.send_requested","entity_kind":"message","not_before":"2026-12-31T00:00:00Z"}`
	writer.post("/v1/jobs", send).problem(http.StatusForbidden)
	made := w.post("/v1/jobs", strings.ReplaceAll(send, "2026-12-31T00:00:00Z", time.Now().Add(time.Hour).UTC().Format(time.RFC3339))).want(http.StatusCreated).fields()
	cancel := "/v1/jobs/" + made["id"].(string) + "/cancel"
	writer.post(cancel, `{"reason":"x"}`).problem(http.StatusForbidden)
	w.post(cancel, `{"reason":"x"}`).want(http.StatusOK)
}

func TestJobIsCancelledOnceAndByItsOrganization(t *testing.T) {
	t.Parallel()
	w := setup(t)
	made := w.post("/v1/jobs", exportJob("")).want(http.StatusCreated).fields()
	cancel := "/v1/jobs/" + made["id"].(string) + "/cancel"
	w.post(cancel, `{"reason":""}`).wantFault("/reason", "")
	stranger := w.as(dbtest.Token(t, w.db, dbtest.Org(t, w.db), "events:emit_any", "events:write"))
	stranger.post(cancel, `{"reason":"mine"}`).problem(http.StatusNotFound)
	if got := w.post(cancel, `{"reason":"the customer has paid"}`).want(http.StatusOK).fields(); got["status"] != "discarded" {
		t.Errorf("cancelled = %v, want discarded", got)
	}
	w.post(cancel, `{"reason":"again"}`).problem(http.StatusConflict)
	w.post("/v1/jobs/"+uuid.NewString()+"/cancel", `{"reason":"x"}`).problem(http.StatusNotFound)
	fact := w.post("/v1/events", custom).want(http.StatusCreated).fields()
	w.post("/v1/jobs/"+fact["id"].(string)+"/cancel", `{"reason":"x"}`).problem(http.StatusNotFound)
}
