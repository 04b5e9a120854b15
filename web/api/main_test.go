package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/deskcomm/deskcomm/bus/urlpolicy"
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

// world is the API over a database, asked by one organization's token.
type world struct {
	t       *testing.T
	server  *Server
	handler http.Handler
	db      *db.DB
	org     uuid.UUID
	token   string
	log     *bytes.Buffer
}

// setup gives a test an organization and a token of it; without scopes the token
// has all.
func setup(t *testing.T, scopes ...string) *world {
	t.Helper()
	return over(t, dbtest.DB(t), scopes...)
}

// over is the same over a database of its own.
func over(t *testing.T, d *db.DB, scopes ...string) *world {
	t.Helper()
	org := dbtest.Org(t, d)
	w := &world{t: t, db: d, org: org, token: dbtest.Token(t, d, org, scopes...), log: new(bytes.Buffer)}
	r := chi.NewRouter()
	w.server = Mount(r, Options{DB: d, Policy: urlpolicy.Policy{}, Logger: slog.New(slog.NewTextHandler(w.log, nil))})
	w.handler = r
	return w
}

// as is the same world asked with another token.
func (w *world) as(token string) *world {
	other := *w
	other.token = token
	return &other
}

// elsewhere is the same world asked by another organization.
func (w *world) elsewhere() *world {
	w.t.Helper()
	other := *w
	other.org = dbtest.Org(w.t, w.db)
	other.token = dbtest.Token(w.t, w.db, other.org)
	return &other
}

// answer is what came back.
type answer struct {
	t      *testing.T
	status int
	header http.Header
	text   string
}

// send asks with headers given as name, value, name, value.
func (w *world) send(method, path, body string, headers ...string) answer {
	w.t.Helper()
	r := httptest.NewRequestWithContext(w.t.Context(), method, path, strings.NewReader(body))
	r = r.WithContext(problem.WithRequestID(r.Context(), "req-1"))
	r.Header.Set("Authorization", "Bearer "+w.token)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	return answer{t: w.t, status: rec.Code, header: rec.Header(), text: rec.Body.String()}
}

func (w *world) get(path string) answer { w.t.Helper(); return w.send(http.MethodGet, path, "") }

func (w *world) post(path, body string, headers ...string) answer {
	w.t.Helper()
	return w.send(http.MethodPost, path, body, headers...)
}

// want fails the test unless the answer has the status.
func (a answer) want(status int) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("status = %d, want %d; body: %s", a.status, status, a.text)
	}
	return a
}

// into reads the body.
func (a answer) into(v any) {
	a.t.Helper()
	if err := json.Unmarshal([]byte(a.text), v); err != nil {
		a.t.Fatalf("body is not what was asked for: %v: %s", err, a.text)
	}
}

// fields reads the body as an object.
func (a answer) fields() map[string]any {
	a.t.Helper()
	var m map[string]any
	a.into(&m)
	return m
}

// problem reads the body as a problem of the status, with exactly one fault if
// there is any.
func (a answer) problem(status int) (problem.Problem, problem.Fault) {
	a.t.Helper()
	a.want(status)
	var p problem.Problem
	a.into(&p)
	if got, want := a.header.Get("Content-Type"), "application/problem+json"; got != want {
		a.t.Errorf("Content-Type = %q, want %q", got, want)
	}
	if p.Status != status || p.RequestID != "req-1" || p.Title != http.StatusText(status) || p.Code == "" || p.Detail == "" ||
		p.Type != "urn:deskcomm:problem:"+string(p.Code) {
		a.t.Errorf("problem is not complete: %s", a.text)
	}
	if len(p.Errors) == 1 {
		return p, p.Errors[0]
	}
	return p, problem.Fault{}
}

// wantFault fails the test unless the answer is a 422 with one fault at the JSON
// pointer or parameter.
func (a answer) wantFault(pointer, parameter string) problem.Fault {
	a.t.Helper()
	_, fault := a.problem(http.StatusUnprocessableEntity)
	got := "no pointer"
	if fault.Pointer != nil {
		got = *fault.Pointer
	}
	if fault.Parameter != parameter || parameter == "" && got != pointer {
		a.t.Errorf("fault at %q %q, want at %q %q: %s", got, fault.Parameter, pointer, parameter, a.text)
	}
	if fault.Rule == "" {
		a.t.Errorf("fault without a rule: %s", a.text)
	}
	return fault
}

// items reads the body as a list.
func (a answer) items() (items []map[string]any, next string) {
	a.t.Helper()
	var l struct {
		Items []map[string]any `json:"items"`
		Next  *string          `json:"next_cursor"`
	}
	a.want(http.StatusOK).into(&l)
	if l.Items == nil {
		a.t.Errorf("items is null: %s", a.text)
	}
	if l.Next != nil {
		next = *l.Next
	}
	return l.Items, next
}

func parseID(t *testing.T, text string) uuid.UUID {
	t.Helper()
	id, err := uuid.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return id
}
