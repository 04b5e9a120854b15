package problem

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

func TestEveryErrorHasItsProblem(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err    error
		status int
		code   Code
		known  bool
		header string // name: value
	}{
		"field":        {bus.Invalid("a", "b"), 422, CodeInvalid, true, ""},
		"not found":    {bus.ErrNotFound, 404, CodeNotFound, true, ""},
		"conflict":     {bus.ErrConflict, 409, CodeConflict, true, ""},
		"in flight":    {db.ErrInFlight, 409, CodeInFlight, true, "Retry-After: 1"},
		"unauthorized": {bus.ErrUnauthorized, 401, CodeUnauthorized, true, "Www-Authenticate: Bearer"},
		"unavailable":  {bus.ErrUnavailable, 503, CodeUnavailable, true, "Retry-After: 2"},
		"disk full":    {db.ErrDiskFull, 503, CodeDiskFull, true, "Retry-After: 10"},
		"too large":    {&http.MaxBytesError{Limit: 7}, 413, CodeTooLarge, true, ""},
		"problem":      {NotFound(), 404, CodeNotFound, true, ""},
		"anything":     {errors.New("s3cr3t"), 500, CodeInternal, false, ""},
	} {
		p, known := From(fmt.Errorf("do something: %w", tt.err))
		if p.Status != tt.status || p.Code != tt.code || known != tt.known {
			t.Errorf("%s: problem = %d %s, known %t; want %d %s, %t", name, p.Status, p.Code, known, tt.status, tt.code, tt.known)
		}
		var header strings.Builder
		if err := p.GetHeaders().Write(&header); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(header.String()); got != tt.header {
			t.Errorf("%s: header = %q, want %q", name, got, tt.header)
		}
	}
}

func TestAFieldIsPlacedWhereItStands(t *testing.T) {
	t.Parallel()
	for field, want := range map[string]string{"event_type": "/event_type", "events.3.entity_id": "/events/3/entity_id", "a/b.c~d": "/a~1b/c~0d"} {
		p, _ := From(bus.Invalid(field, "r"))
		if got := *p.Errors[0].Pointer; got != want {
			t.Errorf("pointer of %s = %s, want %s", field, got, want)
		}
	}
	p, _ := From(bus.Invalid("Idempotency-Key", "r"))
	if got := p.Errors[0]; got.Pointer != nil || got.Parameter != "Idempotency-Key" || got.Rule != "r" {
		t.Errorf("fault = %v, want the parameter", got)
	}
}

func TestAProblemIsWrittenWhole(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequestWithContext(WithRequestID(t.Context(), "req-1"), http.MethodGet, "/", nil)
	rec := httptest.NewRecorder()
	Write(rec, r, Invalid(InBody("", "r"), InParameter("limit", "s")))
	want := `{"type":"urn:deskcomm:problem:validation_failed","title":"Unprocessable Entity","status":422,` +
		`"detail":"the request breaks a rule; see errors","code":"validation_failed","request_id":"req-1",` +
		`"errors":[{"pointer":"","rule":"r"},{"parameter":"limit","rule":"s"}]}` + "\n"
	if got := rec.Body.String(); got != want || rec.Code != 422 || rec.Header().Get("Content-Type") != "application/problem+json" {
		t.Errorf("answer = %d %s, want %s", rec.Code, got, want)
	}
}
