package api

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
	"github.com/deskcomm/deskcomm/web/problem"
)

func TestASubscriptionsSecretIsNeverShown(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const path, secret = "/v1/webhook-subscriptions", "a secret of twenty-eight bytes"
	made := w.post(path, `{"url":"https://Example.com/hook?a=b","event_types":["lead.*","custom.x"],"secret":"`+secret+`","ordering":"none","format":"native"}`).
		want(http.StatusCreated)
	id := made.fields()["id"].(string)
	for _, a := range []answer{made, w.get(path + "/" + id), w.get(path)} {
		if strings.Contains(a.text, secret) || !strings.Contains(a.text, `"has_secret":true`) {
			t.Errorf("answer shows the secret, or not that there is one: %s", a.text)
		}
	}
	if got, want := made.fields()["url"], "https://example.com/hook?a=b"; got != want {
		t.Errorf("url = %v, want %s", got, want)
	}
	send, err := w.db.FreezeBodies(t.Context(), []db.Sending{{OrgID: w.org, Destination: parseID(t, id), DeliveryID: uuid.New()}})
	if err != nil || send[0].Target.Secret != secret {
		t.Errorf("stored secret = %+v, %v; want the one that was given", send, err)
	}
	w.send(http.MethodDelete, path+"/"+id, "").want(http.StatusNoContent)
	w.send(http.MethodDelete, path+"/"+id, "").problem(http.StatusNotFound)
	w.get(path + "/" + id).problem(http.StatusNotFound)
}

func TestABadSubscriptionIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const ok = `"url":"https://example.com/hook","event_types":["*"]`
	for body, pointer := range map[string]string{
		`{"event_types":["*"]}`:                                                 "/url",
		`{"url":"http://example.com/","event_types":["*"]}`:                     "/url",
		`{"url":"https://127.0.0.1/","event_types":["*"]}`:                      "/url",
		`{"url":"https://localhost/","event_types":["*"]}`:                      "/url",
		`{"url":"https://user:pass@example.com/","event_types":["*"]}`:          "/url",
		`{"url":"https://example.com/"}`:                                        "/event_types",
		`{"url":"https://example.com/","event_types":[]}`:                       "/event_types",
		`{"url":"https://example.com/","event_types":null}`:                     "/event_types",
		`{"url":"https://example.com/","event_types":["*","LeadWon"]}`:          "/event_types/1",
		`{"url":"https://example.com/","event_types":["*",7]}`:                  "/event_types/1",
		`{` + ok + `,"secret":"short"}`:                                         "/secret",
		`{` + ok + `,"ordering":"lane"}`:                                        "/ordering",
		`{` + ok + `,"format":"legacy"}`:                                        "/format",
		`{` + ok + `,"organization_id":"0190b4a8-0000-7000-8000-000000000000"}`: "",
	} {
		w.post("/v1/webhook-subscriptions", body).wantFault(pointer, "")
	}
	fault := w.post("/v1/webhook-subscriptions", `{"url":"https://10.0.0.1/","event_types":["*"]}`).wantFault("/url", "")
	if got, want := fault.Code, "unsafe_url:private_ip"; got != want {
		t.Errorf("code = %q, want %q", got, want)
	}
	if items, _ := w.get("/v1/webhook-subscriptions").items(); len(items) != 0 {
		t.Errorf("%d subscriptions exist, want none", len(items))
	}
}

func TestAChannelSessionTellsItsTokensOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const path = "/v1/channel-sessions"
	made := w.post(path, `{"name":"sales","kind":"waha","phone_number":"+5511987654321","webhook_secret":"0123456789abcdef"}`,
		"X-Forwarded-Proto", "https").want(http.StatusCreated).fields()
	token := made["webhook_path_token"].(string)
	if got, want := made["webhook_url"], "https://example.com/v1/webhooks/waha/"+token; got != want {
		t.Errorf("webhook_url = %v, want %s", got, want)
	}
	channel, err := w.db.InboundChannel(t.Context(), token)
	if err != nil || channel.OrgID != w.org || channel.Secret != "0123456789abcdef" {
		t.Errorf("channel of the token = %v, %v; want that of the organization with its secret", channel, err)
	}
	shown := w.get(path + "/" + made["id"].(string)).want(http.StatusOK).fields()
	for _, once := range []string{"webhook_path_token", "webhook_url", "instance_token"} {
		if made[once] == "" || made[once] == nil {
			t.Errorf("%s is missing", once)
		}
		delete(made, once)
	}
	if diff := cmp.Diff(made, shown); diff != "" {
		t.Error(diff)
	}
	w.post(path, `{"name":"sales"}`).problem(http.StatusConflict)
	w.send(http.MethodDelete, path+"/"+made["id"].(string), "").want(http.StatusNoContent)
	w.get(path + "/" + made["id"].(string)).problem(http.StatusNotFound)
	w.send(http.MethodDelete, path+"/"+made["id"].(string), "").problem(http.StatusNotFound)
	w.post(path, `{"name":"sales"}`).want(http.StatusCreated)
}

func TestWebhookURLsBeginWithThePublicURL(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.server.publicURL = "https://crm.example.org/desk"
	made := w.post("/v1/channel-sessions", `{"name":"a"}`, "X-Forwarded-Proto", "http").want(http.StatusCreated).fields()
	if got, want := made["webhook_url"].(string), "https://crm.example.org/desk/v1/webhooks/waha/"; !strings.HasPrefix(got, want) {
		t.Errorf("webhook_url = %s, want it to begin with %s", got, want)
	}
}

func TestABadChannelSessionIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for body, pointer := range map[string]string{
		`{}`: "/name", `{"name":""}`: "/name", `{"name":"a b"}`: "/name", `{"name":"a","kind":"uazapi"}`: "/kind",
		`{"name":"a","phone_number":"11987654321"}`: "/phone_number", `{"name":"a","webhook_secret":"short"}`: "/webhook_secret",
	} {
		w.post("/v1/channel-sessions", body).wantFault(pointer, "")
	}
}

func TestATokenWorksUntilItIsRevoked(t *testing.T) {
	t.Parallel()
	w := setup(t)
	made := w.post("/v1/tokens", `{"name":"reader","scopes":["events:read"],"expires_in":"90d"}`).want(http.StatusCreated).fields()
	reader := w.as(made["token"].(string))
	reader.get("/v1/events").want(http.StatusOK)
	expires, err := time.Parse(time.RFC3339, made["expires_at"].(string))
	if err != nil {
		t.Fatal(err)
	}
	created, err := time.Parse(time.RFC3339, made["created_at"].(string))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := expires.Sub(created).Round(time.Minute), 90*24*time.Hour; got != want {
		t.Errorf("life of the token = %s, want %s", got, want)
	}
	listed := w.get("/v1/tokens").want(http.StatusOK)
	if strings.Contains(listed.text, made["token"].(string)) || !strings.Contains(listed.text, made["prefix"].(string)) {
		t.Errorf("list shows the token, or not its prefix: %s", listed.text)
	}
	for range 2 {
		w.send(http.MethodDelete, "/v1/tokens/"+made["id"].(string), "").want(http.StatusNoContent)
		reader.get("/v1/events").problem(http.StatusUnauthorized)
	}
}

func TestABadTokenIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for body, pointer := range map[string]string{
		`{"scopes":["admin"]}`: "/name", `{"name":"a","scopes":["admin"]}`: "/name", `{"name":"ab"}`: "/scopes", `{"name":"ab","scopes":[]}`: "/scopes",
		`{"name":"ab","scopes":["admin","root"]}`: "/scopes/1", `{"name":"ab","scopes":["admin"],"expires_in":"soon"}`: "/expires_in",
		`{"name":"ab","scopes":["admin"],"expires_in":"0d"}`: "/expires_in", `{"name":"ab","scopes":["admin"],"expires_in":"366d"}`: "/expires_in",
		`{"name":"ab","scopes":["admin"],"expires_in":90}`: "/expires_in", `{"name":"ab","scopes":["admin"],"expires_in":"-1d"}`: "/expires_in",
	} {
		w.post("/v1/tokens", body).wantFault(pointer, "")
	}
}

func TestTimesAreWrittenInUTC(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", -3*60*60))
	got, err := json.Marshal(instant(at))
	if want := `"2026-01-02T06:04:05.000000Z"`; err != nil || string(got) != want {
		t.Errorf("instant = %s, %v; want %s", got, err, want)
	}
}

func TestAnAnswerHasNoSchemaLink(t *testing.T) {
	t.Parallel()
	w := setup(t)
	a := w.get("/v1/events").want(http.StatusOK)
	if strings.Contains(a.text, "$schema") || a.header.Get("Link") != "" {
		t.Errorf("answer has a schema link: %s %v", a.text, a.header)
	}
}

func TestTheDescriptionNeedsNoToken(t *testing.T) {
	t.Parallel()
	w := setup(t).as("")
	if got := w.get("/openapi.json").want(http.StatusOK).fields()["openapi"]; got != "3.1.0" {
		t.Errorf("openapi = %v, want 3.1.0", got)
	}
	if got := w.get("/openapi.yaml").want(http.StatusOK).text; !strings.Contains(got, "openapi: 3.1.0") {
		t.Errorf("no OpenAPI document: %.100s", got)
	}
}

func TestAFailureOfOursIsLoggedOnceAndHidden(t *testing.T) {
	t.Parallel()
	w := setup(t)
	p := w.server.problem(t.Context(), http.ErrBodyNotAllowed)
	if p.Status != http.StatusInternalServerError || strings.Contains(p.Detail, "body") {
		t.Errorf("problem = %v, want a bare 500", p)
	}
	if got := strings.Count(w.log.String(), http.ErrBodyNotAllowed.Error()); got != 1 {
		t.Errorf("logged %d times, want once: %s", got, w.log)
	}
}

func TestADatabaseThatIsGoneIsUnavailable(t *testing.T) {
	t.Parallel()
	address := dbtest.Fresh(t)
	w := over(t, dbtest.Open(t, address, db.Options{}))
	w.get("/v1/events").want(http.StatusOK)
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimPrefix(u.Path, "/")
	if _, err := dbtest.Conn(t, dbtest.URL(t)).Exec(t.Context(), "drop database "+name+" with (force)"); err != nil {
		t.Fatal(err)
	}
	for range 3 { // the first finds its connection cut, the others get none
		a := w.get("/v1/events")
		if p, _ := a.problem(http.StatusServiceUnavailable); p.Code != problem.CodeUnavailable || a.header.Get("Retry-After") == "" {
			t.Errorf("problem = %s with Retry-After %q, want unavailable and a time", p.Code, a.header.Get("Retry-After"))
		}
	}
}
