package web

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/deskcomm/deskcomm/bus/urlpolicy"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/web/admin"
	"github.com/deskcomm/deskcomm/web/api"
)

// Options are what the server's handler works with.
type Options struct {
	DB        *db.DB
	Policy    urlpolicy.Policy // what webhook subscriptions may point at
	Logger    *slog.Logger
	PublicURL string         // for links; "" takes scheme and host from the request
	Proxies   []netip.Prefix // whose word on the address and scheme of clients is believed

	// Inbound serves everything under /v1/webhooks/ and sees the whole path. It
	// authenticates and bounds its requests itself. It may be nil.
	Inbound http.Handler
	// ProbesOnly leaves everything out but the answers to probes, for a process
	// that does other work.
	ProbesOnly bool
	// Checks are what readiness asks beside the database, by name. An error that
	// is a ReasonError is told to whoever asks.
	Checks map[string]func(ctx context.Context) error
}

// New returns the handler of everything that the server answers.
func New(o Options) http.Handler {
	r := chi.NewRouter()
	r.Use(
		believe(o.Proxies),
		requestID,
		accessLog(o.Logger),
		recoverPanics(o.Logger),
		limitBody,
		securityHeaders,
		middleware.GetHead,
	)
	r.NotFound(notFound)
	r.MethodNotAllowed(methodNotAllowed(r))

	h := health{db: o.DB, checks: o.Checks, logger: o.Logger}
	r.Get("/livez", h.live)
	r.Get("/readyz", h.readiness)
	r.Get("/healthz", h.readiness)
	if o.ProbesOnly {
		return r
	}
	r.Mount("/admin", admin.New(admin.Options{DB: o.DB, Logger: o.Logger, PublicURL: o.PublicURL}))
	r.Get("/", http.RedirectHandler("/admin/", http.StatusSeeOther).ServeHTTP)
	if o.Inbound != nil {
		r.Handle("/v1/webhooks/*", apart(o.Inbound))
	}
	api.Mount(r, api.Options{DB: o.DB, Policy: o.Policy, Logger: o.Logger, PublicURL: o.PublicURL})
	return r
}
