package web

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
	"github.com/deskcomm/deskcomm/web/problem"
)

func TestMain(m *testing.M) {
	code := dbtest.Main(m)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// world is a server's handler and what it logged.
type world struct {
	handler http.Handler
	log     *logBuffer
}

// logBuffer may be read while others write.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func setup(t *testing.T, o Options) world {
	t.Helper()
	w := world{log: new(logBuffer)}
	if o.DB == nil {
		o.DB = dbtest.DB(t)
	}
	o.Logger = slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w.handler = New(o)
	return w
}

func (w world) send(t *testing.T, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	return rec
}

// wantProblem fails the test unless rec holds a problem of the status that names
// the request as the header does.
func wantProblem(t *testing.T, rec *httptest.ResponseRecorder, status int) problem.Problem {
	t.Helper()
	var p problem.Problem
	if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil {
		t.Fatalf("no problem: %v: %s", err, rec.Body)
	}
	if rec.Code != status || p.Status != status || rec.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("answer = %d %v, want a problem of %d", rec.Code, p, status)
	}
	if got, want := p.RequestID, rec.Header().Get("X-Request-Id"); got != want || got == "" {
		t.Errorf("request_id = %q, want %q as in X-Request-Id", got, want)
	}
	return p
}

func TestARequestKeepsItsID(t *testing.T) {
	t.Parallel()
	w := setup(t, Options{})
	for id, keep := range map[string]bool{
		"abc-DEF_1.2": true, strings.Repeat("a", 128): true,
		"": false, strings.Repeat("a", 129): false, "a b": false, "a\nb": false, "é": false, "<script>": false,
	} {
		got := w.send(t, http.MethodGet, "/livez", "", "X-Request-Id", id).Header().Get("X-Request-Id")
		if keep && got != id {
			t.Errorf("X-Request-Id %q became %q", id, got)
		}
		if !keep && (got == id || uuid.Validate(got) != nil) {
			t.Errorf("X-Request-Id %q became %q, want a UUID", id, got)
		}
	}
}

func TestAnEventKnowsTheRequestThatEmittedIt(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t)
	w := setup(t, Options{DB: d})
	authorization := "Bearer " + dbtest.Token(t, d, dbtest.Org(t, d))
	w.send(t, http.MethodPost, "/v1/events", `{"event_type":"custom.a","entity_kind":"x","metadata":{"request_id":"forged"}}`,
		"Authorization", authorization, "X-Request-Id", "req-42")
	if got := w.send(t, http.MethodGet, "/v1/events", "", "Authorization", authorization).Body.String(); !strings.Contains(got, `"request_id":"req-42"`) {
		t.Errorf("events lack the request's id: %s", got)
	}
}

func TestAPanicIsAProblemAndALogLine(t *testing.T) {
	t.Parallel()
	w := setup(t, Options{Inbound: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("boom-in-test") })})
	rec := w.send(t, http.MethodPost, "/v1/webhooks/waha/t0ken", "")
	if wantProblem(t, rec, http.StatusInternalServerError); strings.Contains(rec.Body.String(), "boom") {
		t.Errorf("the problem tells of the panic: %s", rec.Body)
	}
	for _, want := range []string{"level=ERROR", "boom-in-test", "web_test.go", rec.Header().Get("X-Request-Id"), "status=500"} {
		if !strings.Contains(w.log.String(), want) {
			t.Errorf("log lacks %s: %s", want, w.log)
		}
	}
}

func TestAPanicLeavesAnAnswerThatHasBegun(t *testing.T) {
	t.Parallel()
	w := setup(t, Options{Inbound: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		panic("late")
	})})
	if rec := w.send(t, http.MethodPost, "/v1/webhooks/x", ""); rec.Code != http.StatusAccepted || rec.Body.Len() != 0 {
		t.Errorf("answer = %d %s, want the one that had begun", rec.Code, rec.Body)
	}
}

func TestAnAbortedHandlerStaysAborted(t *testing.T) {
	t.Parallel()
	w := setup(t, Options{Inbound: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })})
	defer func() {
		if got := recover(); got != http.ErrAbortHandler { //nolint:errorlint // the very value
			t.Errorf("panic = %v, want http.ErrAbortHandler", got)
		}
	}()
	w.send(t, http.MethodPost, "/v1/webhooks/x", "")
}

func TestUnknownPathsAndMethodsAreProblems(t *testing.T) {
	t.Parallel()
	w := setup(t, Options{})
	for _, path := range []string{"/v1", "/v1/nope", "/v1/events/", "/v1/webhooks/waha/x", "/docs", "/schemas/Event.json", "/v1/events/1/2"} {
		if p := wantProblem(t, w.send(t, http.MethodGet, path, ""), http.StatusNotFound); p.Code != problem.CodeNotFound {
			t.Errorf("%s: code = %s", path, p.Code)
		}
	}
	for request, want := range map[string]string{
		"PUT /v1/events": "GET, POST", "DELETE /livez": "GET", "POST /v1/events/0190b4a8-0000-7000-8000-000000000000": "GET",
		"PATCH /v1/tokens/x": "DELETE", "OPTIONS /v1/dlq": "GET",
	} {
		method, path, _ := strings.Cut(request, " ")
		rec := w.send(t, method, path, "")
		wantProblem(t, rec, http.StatusMethodNotAllowed)
		if got := rec.Header().Get("Allow"); got != want {
			t.Errorf("%s: Allow = %q, want %q", request, got, want)
		}
	}
}

func TestTheRootLeadsToTheConsole(t *testing.T) {
	t.Parallel()
	rec := setup(t, Options{}).send(t, http.MethodGet, "/", "")
	if got := rec.Header().Get("Location"); rec.Code != http.StatusSeeOther || got != "/admin/" {
		t.Errorf("/ = %d to %q, want 303 to /admin/", rec.Code, got)
	}
}

func TestTheAccessLogHoldsNoSecrets(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t)
	w := setup(t, Options{DB: d, Inbound: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})})
	token := dbtest.Token(t, d, dbtest.Org(t, d))
	w.send(t, http.MethodPost, "/v1/webhooks/waha/p4th-t0ken?q=qu3ry", "b0dy")
	w.send(t, http.MethodGet, "/admin/setup?token=s3tup", "")
	w.send(t, http.MethodGet, "/nowhere/unr0uted", "")
	w.send(t, http.MethodPost, "/v1/events?q=qu3ry", `{"event_type":"custom.a","entity_kind":"b0dy"}`, "Authorization", "Bearer "+token)
	for _, probe := range []string{"/livez", "/readyz", "/healthz"} {
		w.send(t, http.MethodGet, probe, "", "X-Request-Id", "a-probe")
	}
	log := w.log.String()
	for _, secret := range []string{"p4th-t0ken", "qu3ry", "b0dy", "s3tup", "unr0uted", token, "a-probe"} {
		if strings.Contains(log, secret) {
			t.Errorf("log holds %q: %s", secret, log)
		}
	}
	for _, want := range []string{"method=POST route=/v1/webhooks/* status=200", "route=/v1/events status=201", "request_id="} {
		if !strings.Contains(log, want) {
			t.Errorf("log lacks %q: %s", want, log)
		}
	}
}

func TestAnInboundRequestArrivesAsItWasSent(t *testing.T) {
	t.Parallel()
	var token string
	var size int
	inbound := chi.NewRouter()
	inbound.Post("/v1/webhooks/waha/{token}", func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		token, size = r.PathValue("token"), len(body)
	})
	w := setup(t, Options{Inbound: inbound})
	w.send(t, http.MethodPost, "/v1/webhooks/waha/t0ken", strings.Repeat("a", 20<<20))
	if want := "t0ken"; token != want || size != 20<<20 {
		t.Errorf("inbound saw %d bytes for %q, want %d for %q", size, token, 20<<20, want)
	}
	if !strings.Contains(w.log.String(), "route=/v1/webhooks/* ") {
		t.Errorf("log lacks the route: %s", w.log)
	}
}

func TestAnswersCarrySecurityHeaders(t *testing.T) {
	t.Parallel()
	w := setup(t, Options{})
	for _, path := range []string{"/livez", "/v1/events", "/nope", "/openapi.json"} {
		header := w.send(t, http.MethodGet, path, "").Header()
		for name, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
			"Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		} {
			if got := header.Get(name); got != want {
				t.Errorf("%s: %s = %q, want %q", path, name, got, want)
			}
		}
	}
}

func TestProbesTellWhichCheckFailed(t *testing.T) {
	t.Parallel()
	gone, old := dbtest.Fresh(t), dbtest.Fresh(t)
	goneDB, oldDB := dbtest.Open(t, gone, db.Options{}), dbtest.Open(t, old, db.Options{})
	u, err := url.Parse(gone)
	if err != nil {
		t.Fatal(err)
	}
	for address, sql := range map[string]string{
		dbtest.URL(t): "drop database " + strings.TrimPrefix(u.Path, "/") + " with (force)",
		old:           "delete from goose_db_version where version_id = (select max(version_id) from goose_db_version)",
	} {
		if _, err := dbtest.Conn(t, address).Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	still := func(context.Context) error { return errors.New("relay-of-host-7 stands still") }
	alive := func(context.Context) error { return nil }
	twice := func(context.Context) error { return fmt.Errorf("on host-7: %w", ReasonError("registered twice")) }
	loops := func(check func(context.Context) error) map[string]func(context.Context) error {
		return map[string]func(context.Context) error{"loops": check, "handlers": alive}
	}
	for name, tt := range map[string]struct {
		options Options
		status  int
		want    verdict
	}{
		"all is well":      {Options{Checks: loops(alive)}, http.StatusOK, verdict{Status: "ok"}},
		"no loops":         {Options{}, http.StatusOK, verdict{Status: "ok"}},
		"a loop is still":  {Options{Checks: loops(still)}, http.StatusServiceUnavailable, verdict{Status: "unavailable", Failed: []string{"loops"}}},
		"for a reason":     {Options{Checks: loops(twice)}, http.StatusServiceUnavailable, verdict{Status: "unavailable", Failed: []string{"loops"}, Reasons: map[string]string{"loops": "registered twice"}}},
		"schema is old":    {Options{DB: oldDB}, http.StatusServiceUnavailable, verdict{Status: "unavailable", Failed: []string{"schema"}}},
		"database is gone": {Options{DB: goneDB, Checks: loops(still)}, http.StatusServiceUnavailable, verdict{Status: "unavailable", Failed: []string{"database", "loops"}, Reasons: map[string]string{"database": "the database does not answer"}}},
	} {
		w := setup(t, tt.options)
		for _, path := range []string{"/readyz", "/healthz"} {
			rec := w.send(t, http.MethodGet, path, "")
			var got verdict
			if err := json.Unmarshal(rec.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); rec.Code != tt.status || diff != "" {
				t.Errorf("%s: %s = %d, want %d: %s", name, path, rec.Code, tt.status, diff)
			}
			if strings.Contains(rec.Body.String(), "host-7") {
				t.Errorf("%s: answer tells why: %s", name, rec.Body)
			}
		}
		if rec := w.send(t, http.MethodGet, "/livez", ""); rec.Code != http.StatusOK {
			t.Errorf("%s: /livez = %d, want 200", name, rec.Code)
		}
		if rec := w.send(t, http.MethodHead, "/livez", ""); rec.Code != http.StatusOK {
			t.Errorf("%s: HEAD /livez = %d, want 200", name, rec.Code)
		}
	}
}
