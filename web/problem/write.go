package problem

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
)

// Write answers r with p, for handlers that are no operations of the API.
func Write(w http.ResponseWriter, r *http.Request, p *Problem) {
	p.RequestID = RequestID(r.Context())
	body, err := json.Marshal(p)
	if err != nil { // impossible: p holds strings and numbers
		http.Error(w, http.StatusText(p.Status), p.Status)
		return
	}
	header := w.Header()
	maps.Copy(header, p.header)
	header.Set("Content-Type", p.ContentType(""))
	w.WriteHeader(p.Status)
	w.Write(append(body, '\n')) //nolint:errcheck // the client is gone then
}

type requestIDKey struct{}

// WithRequestID returns a context that knows the id of its request.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}

// RequestID is the id of the request that ctx belongs to, or "".
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}
