package api

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/web/problem"
)

// caller is who asks, and under which address the server was asked.
type caller struct {
	db.Principal
	baseURL string
}

type callerKey struct{}

// callerOf returns who asks. Every operation is behind authenticate.
func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)
	return c
}

// inOrg runs fn in one transaction of the caller's organization.
func (s *Server) inOrg(ctx context.Context, fn func(t *db.OrgTx) error) error {
	c := callerOf(ctx)
	return s.db.InOrg(ctx, c.OrgID, c.Actor(problem.RequestID(ctx)), fn)
}

// authenticate lets a request pass whose token has one of the scopes.
func (s *Server) authenticate(scopes []string) func(huma.Context, func(huma.Context)) {
	return func(ctx huma.Context, next func(huma.Context)) {
		token, ok := bearer(ctx.Header("Authorization"))
		if !ok {
			s.refuse(ctx, problem.Unauthorized())
			return
		}
		principal, err := s.db.Authenticate(ctx.Context(), token)
		if err != nil {
			s.refuse(ctx, s.problem(ctx.Context(), err))
			return
		}
		if !slices.ContainsFunc(scopes, principal.Has) {
			s.refuse(ctx, missingScope(scopes...))
			return
		}
		r, _ := humachi.Unwrap(ctx)
		next(huma.WithValue(ctx, callerKey{}, caller{Principal: principal, baseURL: s.baseURL(r)}))
	}
}

// refuse answers with p in place of the operation.
func (s *Server) refuse(ctx huma.Context, p *problem.Problem) {
	r, w := humachi.Unwrap(ctx)
	problem.Write(w, r, p)
}

// bearer reads an Authorization header; the name of the scheme has no case.
func bearer(header string) (string, bool) {
	scheme, token, ok := strings.Cut(header, " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(scheme, "Bearer")
}

func missingScope(scopes ...string) *problem.Problem {
	return problem.New(http.StatusForbidden, problem.CodeMissingScope, "the token lacks the scope "+strings.Join(scopes, " or "))
}

// baseURL is where the client reaches this server.
func (s *Server) baseURL(r *http.Request) string {
	if s.publicURL != "" {
		return s.publicURL
	}
	scheme := "http"
	if r.TLS != nil || strings.EqualFold(r.Header.Get("X-Forwarded-Proto"), "https") {
		scheme = "https"
	}
	return (&url.URL{Scheme: scheme, Host: r.Host}).String()
}
