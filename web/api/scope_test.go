package api

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
	"github.com/deskcomm/deskcomm/web/problem"
)

// contractScopes is what each operation needs, said a second time on purpose.
var contractScopes = map[string]string{
	"GET /v1/events":                        "events:read",
	"GET /v1/events/{id}":                   "events:read",
	"POST /v1/events":                       "events:write events:emit_any",
	"POST /v1/events/batch":                 "events:write events:emit_any",
	"POST /v1/jobs":                         "events:write events:emit_any",
	"POST /v1/jobs/{id}/cancel":             "events:write events:emit_any",
	"GET /v1/dlq":                           "dlq:read",
	"POST /v1/dlq/{id}/replay":              "dlq:replay",
	"POST /v1/dlq/{id}/confirm":             "dlq:replay",
	"POST /v1/dlq/{id}/discard":             "dlq:discard",
	"GET /v1/lanes":                         "dlq:read",
	"POST /v1/lanes/{id}/pause":             "dlq:replay",
	"POST /v1/lanes/{id}/resume":            "dlq:replay",
	"POST /v1/lanes/{id}/retry":             "dlq:replay",
	"POST /v1/lanes/{id}/skip":              "dlq:discard",
	"POST /v1/lanes/{id}/park":              "dlq:discard",
	"GET /v1/webhook-subscriptions":         "webhooks:read webhooks:manage",
	"GET /v1/webhook-subscriptions/{id}":    "webhooks:read webhooks:manage",
	"POST /v1/webhook-subscriptions":        "webhooks:manage",
	"DELETE /v1/webhook-subscriptions/{id}": "webhooks:manage",
	"GET /v1/channel-sessions":              "channels:manage",
	"GET /v1/channel-sessions/{id}":         "channels:manage",
	"POST /v1/channel-sessions":             "channels:manage",
	"DELETE /v1/channel-sessions/{id}":      "channels:manage",
	"GET /v1/contacts":                      "crm:read",
	"GET /v1/contacts/{id}":                 "crm:read",
	"GET /v1/conversations":                 "crm:read",
	"GET /v1/conversations/{id}":            "crm:read",
	"GET /v1/messages":                      "crm:read",
	"GET /v1/messages/{id}":                 "crm:read",
	"GET /v1/tokens":                        "admin",
	"POST /v1/tokens":                       "admin",
	"DELETE /v1/tokens/{id}":                "admin",
}

// passing are bodies of POSTs that their operation takes.
var passing = map[string]string{
	"/v1/events":                custom,
	"/v1/events/batch":          `{"events":[` + custom + `]}`,
	"/v1/jobs":                  `{"command":"custom.export_requested","entity_kind":"x"}`,
	"/v1/jobs/{id}/cancel":      `{"reason":"test"}`,
	"/v1/dlq/{id}/discard":      `{"reason":"test"}`,
	"/v1/lanes/{id}/pause":      `{"reason":"test"}`,
	"/v1/lanes/{id}/skip":       `{"reason":"test"}`,
	"/v1/lanes/{id}/park":       `{"reason":"test"}`,
	"/v1/webhook-subscriptions": `{"url":"https://example.com/hook","event_types":["*"]}`,
	"/v1/channel-sessions":      `{"name":"NAME"}`,
	"/v1/tokens":                `{"name":"another","scopes":["crm:read"]}`,
}

// operations returns everything that the document describes, by "METHOD /path".
func (w *world) operations() map[string]*huma.Operation {
	all := make(map[string]*huma.Operation)
	for path, item := range w.server.api.OpenAPI().Paths {
		for method, op := range map[string]*huma.Operation{
			http.MethodGet: item.Get, http.MethodPost: item.Post, http.MethodDelete: item.Delete, http.MethodPut: item.Put,
			http.MethodPatch: item.Patch, http.MethodHead: item.Head, http.MethodOptions: item.Options,
		} {
			if op != nil {
				all[method+" "+path] = op
			}
		}
	}
	return all
}

func TestOperationsNeedTheirScopeAndNoOther(t *testing.T) {
	t.Parallel()
	w := setup(t)
	byScope := make(map[string]*world)
	for _, scope := range db.Scopes() {
		byScope[scope] = w.as(dbtest.Token(t, w.db, w.org, scope))
	}
	operations := w.operations()
	if got, want := slices.Sorted(maps.Keys(operations)), slices.Sorted(maps.Keys(contractScopes)); !slices.Equal(got, want) {
		t.Fatalf("operations = %v, want %v", got, want)
	}
	for name := range operations {
		method, path, _ := strings.Cut(name, " ")
		allowed := http.StatusOK
		switch {
		case strings.Contains(path, "{id}"):
			allowed = http.StatusNotFound
		case method == http.MethodPost:
			allowed = http.StatusCreated
		}
		for scope, w := range byScope {
			body := strings.ReplaceAll(passing[path], "NAME", uuid.NewString())
			got := w.send(method, strings.ReplaceAll(path, "{id}", uuid.NewString()), body)
			if slices.Contains(strings.Fields(contractScopes[name]), scope) {
				if got.status != allowed {
					t.Errorf("%s with %s: status = %d, want %d: %s", name, scope, got.status, allowed, got.text)
				}
				continue
			}
			p, _ := got.problem(http.StatusForbidden)
			for needed := range strings.FieldsSeq(contractScopes[name]) {
				if !strings.Contains(p.Detail, needed) {
					t.Errorf("%s with %s: detail = %q, want it to name %s", name, scope, p.Detail, needed)
				}
			}
		}
	}
}

func TestOperationsNeedAValidToken(t *testing.T) {
	t.Parallel()
	w := setup(t)
	revoked, expired := w.post("/v1/tokens", `{"name":"revoked","scopes":["admin"]}`).fields(), w.post("/v1/tokens", `{"name":"expired","scopes":["admin"]}`).fields()
	w.send(http.MethodDelete, "/v1/tokens/"+revoked["id"].(string), "").want(http.StatusNoContent)
	if _, err := dbtest.Conn(t, dbtest.URL(t)).Exec(t.Context(),
		"update api_tokens set expires_at = clock_timestamp() - interval '1 second' where id = $1", expired["id"]); err != nil {
		t.Fatal(err)
	}
	unknown := "dsk_00000000_" + strings.Repeat("a", 43)
	for name := range w.operations() {
		method, path, _ := strings.Cut(name, " ")
		for _, authorization := range []string{
			"", "Bearer", "Bearer ", w.token, "Basic " + w.token, "Bearer x", "Bearer " + w.token + "a", "Bearer " + unknown,
			"Bearer " + revoked["token"].(string), "Bearer " + expired["token"].(string),
		} {
			// The body is bad, too: who is nobody learns nothing of the contract.
			got := w.send(method, strings.ReplaceAll(path, "{id}", "x"), "{", "Authorization", authorization)
			if p, _ := got.problem(http.StatusUnauthorized); p.Code != problem.CodeUnauthorized {
				t.Errorf("%s with %q: code = %s", name, authorization, p.Code)
			}
			if got, want := got.header.Get("WWW-Authenticate"), "Bearer"; got != want {
				t.Errorf("%s with %q: WWW-Authenticate = %q, want %q", name, authorization, got, want)
			}
		}
	}
}

func TestTheSchemeOfATokenHasNoCase(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.send(http.MethodGet, "/v1/events", "", "Authorization", "bearer  "+w.token).want(http.StatusOK)
}
