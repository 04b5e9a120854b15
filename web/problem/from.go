package problem

import (
	"errors"
	"net/http"
	"strings"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

// From turns an error into the problem that a client may see. It returns false
// for an error that it does not know, which somebody must log; the problem is a
// bare 500 then.
func From(err error) (*Problem, bool) {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p, true
	}
	if field, ok := errors.AsType[*bus.FieldError](err); ok {
		return Invalid(faultOf(field)), true
	}
	if large, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return TooLarge(large.Limit), true
	}
	switch {
	case errors.Is(err, bus.ErrNotFound):
		return New(http.StatusNotFound, CodeNotFound, "there is no such resource in the token's organization"), true
	case errors.Is(err, db.ErrInFlight):
		return New(http.StatusConflict, CodeInFlight, "a request with the same Idempotency-Key is under way; repeat this one").
			WithHeader("Retry-After", "1"), true
	case errors.Is(err, bus.ErrConflict):
		return New(http.StatusConflict, CodeConflict, "the resource exists already or is not in a state that allows this"), true
	case errors.Is(err, bus.ErrUnauthorized):
		return Unauthorized(), true
	case errors.Is(err, db.ErrDiskFull):
		return New(http.StatusServiceUnavailable, CodeDiskFull, "the database's disk is full; repeat the request when there is room").
			WithHeader("Retry-After", "10"), true
	case errors.Is(err, bus.ErrUnavailable):
		return New(http.StatusServiceUnavailable, CodeUnavailable, "the database cannot do this now; repeat the request later").
			WithHeader("Retry-After", "2"), true
	default:
		return Internal(), false
	}
}

// faultOf places a field in the request: all fields are of the body but one.
func faultOf(e *bus.FieldError) Fault {
	if e.Field == "Idempotency-Key" {
		return InParameter(e.Field, e.Rule)
	}
	return InBody(Pointer(strings.Split(e.Field, ".")...), e.Rule)
}

// Pointer joins names and positions to a JSON pointer (RFC 6901).
func Pointer(path ...string) string {
	var b strings.Builder
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	for _, segment := range path {
		b.WriteByte('/')
		b.WriteString(escape.Replace(segment))
	}
	return b.String()
}
