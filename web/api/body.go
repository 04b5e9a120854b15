package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/deskcomm/deskcomm/web/problem"
)

// Limits of a body. It is held in memory whole, and a batch has many events.
const (
	maxBody  = 1 << 20
	maxBatch = 8 << 20
)

// bodyTime is how long a body may take to arrive.
const bodyTime = 30 * time.Second

// readBody reads the whole body before huma does and refuses one that is too
// large, is no JSON or holds text that Postgres cannot.
func (s *Server) readBody(limit int64) func(huma.Context, func(huma.Context)) {
	if limit == 0 {
		limit = maxBody
	}
	return func(ctx huma.Context, next func(huma.Context)) {
		r, w := humachi.Unwrap(ctx)
		body, err := receive(w, r, limit)
		if err != nil {
			s.refuse(ctx, s.problem(ctx.Context(), err))
			return
		}
		required, schema := contract(ctx.Operation())
		if p := s.checkBody(body, r.Header.Get("Content-Type"), required, schema); p != nil {
			s.refuse(ctx, p)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/json") // it is; huma knows one spelling
		next(ctx)
	}
}

// receive reads a body of at most limit bytes in bounded time.
func receive(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	connection := http.NewResponseController(w)
	connection.SetReadDeadline(time.Now().Add(bodyTime)) //nolint:errcheck // a connection that has none keeps the server's
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	// Left in place, the deadline would cancel work that takes longer.
	connection.SetReadDeadline(time.Time{}) //nolint:errcheck // see above
	if network, ok := errors.AsType[net.Error](err); ok && network.Timeout() {
		return nil, problem.New(http.StatusRequestTimeout, problem.CodeTimeout, "the body did not arrive in time")
	}
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); err != nil && !tooLarge {
		return nil, problem.New(http.StatusBadRequest, problem.CodeBadRequest, "the body did not arrive whole")
	}
	return body, err
}

// contract returns what an operation says of its body.
func contract(op *huma.Operation) (required bool, schema *huma.Schema) {
	if op.RequestBody == nil {
		return false, nil
	}
	if media := op.RequestBody.Content["application/json"]; media != nil {
		schema = media.Schema
	}
	return op.RequestBody.Required, schema
}

func (s *Server) checkBody(body []byte, contentType string, required bool, schema *huma.Schema) *problem.Problem {
	if len(body) == 0 {
		if required {
			return problem.Invalid(problem.InBody("", "is required"))
		}
		return nil
	}
	if mediaType, _, err := mime.ParseMediaType(contentType); contentType != "" && (err != nil || mediaType != "application/json") {
		return problem.New(http.StatusUnsupportedMediaType, problem.CodeMediaType, "the Content-Type must be application/json")
	}
	switch {
	case bytes.IndexByte(body, 0) >= 0:
		return problem.Invalid(problem.InBody("", "must not contain NUL"))
	case !utf8.Valid(body):
		return problem.InvalidJSON("must be UTF-8")
	case !json.Valid(body):
		return problem.InvalidJSON("must be valid JSON")
	}
	scan := scanner{text: body, schemas: s.api.OpenAPI().Components.Schemas}
	if fault := scan.run(schema); fault != nil {
		return problem.Invalid(*fault)
	}
	return nil
}

// storable reports whether Postgres can hold text, and a log line show it.
func storable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}
