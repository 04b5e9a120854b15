package problem

import (
	"net/http"
	"strconv"
)

// Code names a kind of problem for machines. Codes are part of the API.
type Code string

// The codes.
const (
	CodeInvalidJSON      Code = "invalid_json"
	CodeBadRequest       Code = "bad_request"
	CodeUnauthorized     Code = "unauthorized"
	CodeMissingScope     Code = "missing_scope"
	CodeNotFound         Code = "not_found"
	CodeMethodNotAllowed Code = "method_not_allowed"
	CodeNotAcceptable    Code = "not_acceptable"
	CodeTimeout          Code = "request_timeout"
	CodeConflict         Code = "conflict"
	CodeInFlight         Code = "request_in_flight"
	CodeTooLarge         Code = "body_too_large"
	CodeMediaType        Code = "unsupported_media_type"
	CodeInvalid          Code = "validation_failed"
	CodePressure         Code = "pressure"
	CodeInternal         Code = "internal_error"
	CodeUnavailable      Code = "unavailable"
	CodeDiskFull         Code = "disk_full"
)

// typePrefix makes a URI of a code.
const typePrefix = "urn:deskcomm:problem:"

// Problem is an error as a client sees it.
type Problem struct { //nolint:errname // the word of RFC 9457
	Type      string  `json:"type" format:"uri" doc:"Identifies the kind of problem; ends in the code."`
	Title     string  `json:"title" doc:"The meaning of the status."`
	Status    int     `json:"status" doc:"The status of the answer."`
	Detail    string  `json:"detail" doc:"What is wrong, for people."`
	Code      Code    `json:"code" doc:"Identifies the kind of problem to programs."`
	RequestID string  `json:"request_id" doc:"Names the request in the server's log."`
	Errors    []Fault `json:"errors,omitempty" nullable:"false" doc:"Each fault of the request."`

	header http.Header
}

// Fault is one fault of a request: where it stands and the rule it breaks. It
// has either a pointer or a parameter.
type Fault struct {
	Pointer   *string `json:"pointer,omitempty" doc:"JSON pointer into the body; empty is the whole body."`
	Parameter string  `json:"parameter,omitempty" doc:"Name of the path, query or header parameter."`
	Rule      string  `json:"rule" doc:"What is accepted there."`
	Code      string  `json:"code,omitempty" doc:"Identifies the rule to programs, where rules have codes."`
}

// New returns a problem of one kind.
func New(status int, code Code, detail string) *Problem {
	return &Problem{
		Type: typePrefix + string(code), Title: http.StatusText(status), Status: status, Detail: detail, Code: code,
	}
}

// Invalid returns the problem of a request with faults.
func Invalid(faults ...Fault) *Problem {
	p := New(http.StatusUnprocessableEntity, CodeInvalid, "the request breaks a rule; see errors")
	p.Errors = faults
	return p
}

// InvalidJSON returns the problem of a body that cannot be read at all.
func InvalidJSON(rule string) *Problem {
	p := New(http.StatusBadRequest, CodeInvalidJSON, "the body cannot be read as JSON")
	p.Errors = []Fault{InBody("", rule)}
	return p
}

// Unauthorized returns the problem of a request without a valid token.
func Unauthorized() *Problem {
	p := New(http.StatusUnauthorized, CodeUnauthorized, "a valid bearer token is required")
	p.Errors = []Fault{InParameter("Authorization", "must be Bearer and a token that is neither revoked nor expired")}
	return p.WithHeader("WWW-Authenticate", "Bearer")
}

// TooLarge returns the problem of a body above its limit.
func TooLarge(limit int64) *Problem {
	rule := "must have at most " + strconv.FormatInt(limit, 10) + " bytes"
	p := New(http.StatusRequestEntityTooLarge, CodeTooLarge, "the body "+rule)
	p.Errors = []Fault{InBody("", rule)}
	return p
}

// Pressure returns the problem of an emission that should come later, after the
// given seconds.
func Pressure(seconds int) *Problem {
	return New(http.StatusTooManyRequests, CodePressure, "too many events wait to be handled; repeat the request later").
		WithHeader("Retry-After", strconv.Itoa(seconds))
}

// NotFound returns the problem of an address that leads nowhere.
func NotFound() *Problem { return New(http.StatusNotFound, CodeNotFound, "there is nothing here") }

// Internal returns the problem of a failure that is ours; the log says more.
func Internal() *Problem {
	return New(http.StatusInternalServerError, CodeInternal, "the server failed; its log has more under the request_id")
}

// InBody is a fault at a JSON pointer into the body.
func InBody(pointer, rule string) Fault { return Fault{Pointer: &pointer, Rule: rule} }

// InParameter is a fault of a path, query or header parameter.
func InParameter(name, rule string) Fault { return Fault{Parameter: name, Rule: rule} }

// WithHeader adds a header to the answer that carries p.
func (p *Problem) WithHeader(name, value string) *Problem {
	if p.header == nil {
		p.header = make(http.Header, 1)
	}
	p.header.Set(name, value)
	return p
}

// Error is the detail: a problem can travel as an error.
func (p *Problem) Error() string { return p.Detail }

// GetStatus is the status of the answer that carries p.
func (p *Problem) GetStatus() int { return p.Status }

// GetHeaders are the headers of the answer that carries p.
func (p *Problem) GetHeaders() http.Header { return p.header }

// ContentType is the media type of a problem.
func (p *Problem) ContentType(string) string { return "application/problem+json" }
