package api

import (
	"context"
	"errors"
	"log/slog"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/urlpolicy"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/web/problem"
)

// Options are what the API works with.
type Options struct {
	DB        *db.DB
	Policy    urlpolicy.Policy // what webhook subscriptions may point at
	Logger    *slog.Logger
	PublicURL string // for links; "" takes scheme and host from the request
}

// Server holds what all operations share.
type Server struct {
	db        *db.DB
	policy    urlpolicy.Policy
	logger    *slog.Logger
	publicURL string
	api       huma.API
}

// Mount adds the API's routes and its description to a router.
func Mount(r chi.Router, o Options) *Server {
	configureHuma()
	s := &Server{
		db: o.DB, policy: o.Policy, logger: o.Logger,
		publicURL: strings.TrimSuffix(o.PublicURL, "/"),
		api:       humachi.New(r, config()),
	}
	s.eventRoutes()
	s.subscriptionRoutes()
	s.dlqRoutes()
	s.laneRoutes()
	s.channelRoutes()
	s.contactRoutes()
	s.conversationRoutes()
	s.tokenRoutes()
	s.serveDescription(r)
	return s
}

// problem is the one bridge from errors to answers. An error that it does not
// know is logged here, once, and reaches the client as a bare 500.
func (s *Server) problem(ctx context.Context, err error) *problem.Problem {
	p, known := problem.From(err)
	p.RequestID = problem.RequestID(ctx)
	switch {
	case errors.Is(err, context.Canceled): // the client is gone and reads nothing
	case !known:
		s.logger.ErrorContext(ctx, "request failed", "request_id", p.RequestID, "error", err)
	case errors.Is(err, bus.ErrUnavailable):
		s.logger.WarnContext(ctx, "database unavailable", "request_id", p.RequestID, "error", err)
	}
	return p
}
