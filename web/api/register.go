package api

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/web/problem"
)

// route is what the contract says of one operation beside its input and output.
type route struct {
	id      string
	method  string
	path    string
	summary string
	about   string
	tag     string
	scopes  []string // the token needs one of them
	maxBody int64    // 0 means maxBody
	errors  []int    // beside those that every operation has
	yields  bool     // refuses under high pressure, before any work
}

type (
	output[Out any] struct{ Body Out }
	none            struct{}
)

// register adds an operation that answers with a body.
func register[In, Out any](s *Server, r route, fn func(ctx context.Context, t *db.OrgTx, in *In) (Out, error)) {
	huma.Register(s.api, s.describe(r), func(ctx context.Context, in *In) (*output[Out], error) {
		var out output[Out]
		err := s.inOrg(ctx, func(t *db.OrgTx) (err error) {
			out.Body, err = fn(ctx, t, in)
			return err
		})
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		return &out, nil
	})
}

// registerDelete adds an operation that answers without a body.
func registerDelete[In any](s *Server, r route, fn func(ctx context.Context, t *db.OrgTx, in *In) error) {
	r.method = http.MethodDelete
	huma.Register(s.api, s.describe(r), func(ctx context.Context, in *In) (*none, error) {
		if err := s.inOrg(ctx, func(t *db.OrgTx) error { return fn(ctx, t, in) }); err != nil {
			return nil, s.problem(ctx, err)
		}
		return &none{}, nil
	})
}

// creation is the input of an operation that creates.
type creation[Body any] struct {
	Key  string `header:"Idempotency-Key" maxLength:"255" doc:"Makes the request safe to repeat: the same key and body get the first answer again. Kept for 24 hours."`
	Body Body
}

// created is the output of an operation that creates: the body as it was first
// written, also when it is repeated.
type created[Out any] struct {
	Status   int
	Replayed string `header:"Idempotency-Replayed" doc:"true when the answer is that of an earlier request."`
	Body     written[Out]
}

// written is an Out that is JSON already.
type written[Out any] struct{ text []byte }

// MarshalJSON returns the text.
func (w written[Out]) MarshalJSON() ([]byte, error) { return w.text, nil }

// Schema is that of an Out.
func (written[Out]) Schema(r huma.Registry) *huma.Schema {
	return r.Schema(reflect.TypeFor[Out](), true, "")
}

// registerCreate adds a POST that creates, with an Idempotency-Key if the client
// gives one. check runs before the key is looked at: a token that may not do
// this learns nothing from an earlier answer. It may be nil.
func registerCreate[Body, Out any](s *Server, r route, check func(ctx context.Context, body *Body) error,
	fn func(ctx context.Context, t *db.OrgTx, body *Body) (Out, error),
) {
	registerAnswer[Body, Out](s, r, check, func(ctx context.Context, r route, in *creation[Body]) (db.Answer, bool, error) {
		return s.once(ctx, r, in.Key, in.Body, func(t *db.OrgTx) (any, error) { return fn(ctx, t, &in.Body) })
	})
}

// registerAnswer is registerCreate for what finds the answer to a key by itself.
func registerAnswer[Body, Out any](s *Server, r route, check func(ctx context.Context, body *Body) error,
	fn func(ctx context.Context, r route, in *creation[Body]) (answer db.Answer, again bool, err error),
) {
	r.method = http.MethodPost
	r.errors = append(r.errors, http.StatusConflict)
	op := s.describe(r)
	op.DefaultStatus = http.StatusCreated
	huma.Register(s.api, op, func(ctx context.Context, in *creation[Body]) (*created[Out], error) {
		if check != nil {
			if err := check(ctx, &in.Body); err != nil {
				return nil, s.problem(ctx, err)
			}
		}
		answer, again, err := fn(ctx, r, in)
		if err != nil {
			return nil, s.problem(ctx, err)
		}
		out := &created[Out]{Status: answer.Status, Body: written[Out]{answer.Body}}
		if again {
			out.Replayed = "true"
		}
		return out, nil
	})
}

// once runs create in a transaction and keeps its answer under the key, or finds
// the answer that the key got before. Without a key it just runs.
func (s *Server) once(ctx context.Context, r route, key string, request any, create func(t *db.OrgTx) (any, error)) (answer db.Answer, again bool, err error) {
	hash, err := hashOf(request)
	if err != nil {
		return answer, false, err
	}
	place := r.place(ctx)
	err = s.inOrg(ctx, func(t *db.OrgTx) error {
		if key != "" {
			earlier, err := t.Recall(ctx, place, key, hash)
			if err != nil {
				return err
			}
			if earlier != nil {
				answer, again = *earlier, true
				return nil
			}
		}
		out, err := create(t)
		if err != nil {
			return err
		}
		if answer, err = newAnswer(out); err != nil {
			return err
		}
		if found, ok := out.(interface{ existed() bool }); ok && found.existed() {
			answer.Status = http.StatusOK
		}
		if key == "" {
			return nil
		}
		return t.Remember(ctx, place, key, hash, answer)
	})
	return answer, again, err
}

// place is where the keys of an operation belong: to it and to the token.
func (r route) place(ctx context.Context) string {
	return r.method + " " + r.path + " " + callerOf(ctx).TokenID.String()
}

// hashOf tells a request from another, whatever the form of its JSON.
func hashOf(request any) ([]byte, error) {
	canonical, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("read request: %w", err)
	}
	hash := sha256.Sum256(canonical)
	return hash[:], nil
}

func newAnswer(out any) (db.Answer, error) {
	text, err := json.Marshal(out)
	if err != nil {
		return db.Answer{}, fmt.Errorf("write answer: %w", err)
	}
	return db.Answer{Status: http.StatusCreated, Body: text}, nil
}

// describe makes huma's form of a route, with what all routes have in common.
func (s *Server) describe(r route) huma.Operation {
	op := huma.Operation{
		OperationID: r.id, Method: r.method, Path: r.path, Summary: r.summary, Tags: []string{r.tag},
		Description: strings.TrimSpace(r.about + " Needs the scope `" + strings.Join(r.scopes, "` or `") + "`."),
		Middlewares: huma.Middlewares{s.authenticate(r.scopes)},
		Errors:      append([]int{http.StatusUnauthorized, http.StatusForbidden, http.StatusServiceUnavailable}, r.errors...),
		// The body is read and bounded by readBody; huma's own deadline would also
		// end the work that follows.
		MaxBodyBytes: -1, BodyReadTimeout: -1,
	}
	if r.yields {
		op.Middlewares = append(op.Middlewares, s.yield)
		op.Errors = append(op.Errors, http.StatusTooManyRequests)
	}
	op.Middlewares = append(op.Middlewares, checkParameters)
	for _, scope := range r.scopes {
		op.Security = append(op.Security, map[string][]string{"bearer": {scope}})
	}
	if strings.Contains(r.path, "{") {
		op.Errors = append(op.Errors, http.StatusNotFound)
	}
	if r.method == http.MethodPost {
		op.Middlewares = append(op.Middlewares, s.readBody(r.maxBody))
		op.Errors = append(op.Errors, http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	return op
}

// checkParameters refuses text that Postgres cannot hold, and an empty header:
// who sends an empty Idempotency-Key believes to be safe.
func checkParameters(ctx huma.Context, next func(huma.Context)) {
	r, w := humachi.Unwrap(ctx)
	query := r.URL.Query()
	for _, p := range ctx.Operation().Parameters {
		values := query[p.Name]
		if p.In == "header" {
			values = r.Header.Values(p.Name)
		}
		for _, value := range values {
			rule := ""
			if p.In == "header" && value == "" {
				rule = "must not be empty"
			} else if !storable(value) {
				rule = "must be UTF-8 without control characters"
			}
			if rule != "" {
				problem.Write(w, r, problem.Invalid(problem.InParameter(p.Name, rule)))
				return
			}
		}
	}
	next(ctx)
}
