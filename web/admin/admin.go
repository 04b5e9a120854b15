package admin

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/alexedwards/scs/v2"
	"github.com/go-chi/chi/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

// Options are what the console works with.
type Options struct {
	DB        *db.DB
	Logger    *slog.Logger
	PublicURL string // where people reach the server; "" takes it from the request
}

// console serves the pages.
type console struct {
	db        *db.DB
	logger    *slog.Logger
	publicURL string
	locales   *locales
	assets    *assets
	sessions  *scs.SessionManager
}

// maxForm bounds a posted form, in bytes.
const maxForm = 64 << 10

// New returns the handler of everything below /admin. It panics when a catalogue
// lacks a text, which is a fault of the build.
func New(o Options) http.Handler {
	texts, err := newLocales()
	if err != nil {
		panic(err)
	}
	c := &console{
		db: o.DB, logger: o.Logger, publicURL: strings.TrimSuffix(o.PublicURL, "/"), locales: texts, assets: newAssets(),
	}
	c.sessions = c.newSessions()

	r := chi.NewRouter()
	r.Use(pageHeaders, c.withVisit, c.sameOrigin)
	r.Get("/static/{version}/{file}", c.assets.serve)
	r.Group(func(r chi.Router) {
		r.Use(limitForm, c.readForm, c.sessions.LoadAndSave)
		r.Get("/setup", c.page(c.showSetup))
		r.Post("/setup", c.page(c.setUp))
		r.Get("/login", c.page(c.showLogin))
		r.Post("/login", c.page(c.logIn))
		r.Group(func(r chi.Router) {
			r.Use(c.requirePerson)
			r.Post("/logout", c.page(c.logOut))
			r = r.With(c.requireScope)
			r.Get("/", c.page(c.showOverview))
			r.Get("/events/{id}", c.page(c.showEvent))
			r.Get("/dlq", c.page(c.listDead))
			r.Get("/dlq/news", c.page(c.countNews))
			for _, act := range []action{replay, discard, confirmDone} {
				r.Get("/dlq/"+string(act), c.page(c.confirm(act)))
				r.Post("/dlq/"+string(act), c.page(c.carryOut(act)))
			}
			r.Get("/dlq/{id}", c.page(c.showDead))
		})
	})
	noPage := c.page(func(http.ResponseWriter, *http.Request) error { return errNoPage })
	r.NotFound(chi.Chain(limitForm, c.readForm, c.sessions.LoadAndSave, c.requirePerson, c.requireScope).HandlerFunc(noPage).ServeHTTP)
	r.MethodNotAllowed(noPage)
	return r
}

// contentSecurityPolicy lets a page load what this server serves, post to it, and
// nothing else.
const contentSecurityPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func pageHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", contentSecurityPolicy)
		w.Header().Set("Cross-Origin-Opener-Policy", "same-origin")
		w.Header().Set("Referrer-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}

func limitForm(next http.Handler) http.Handler { return http.MaxBytesHandler(next, maxForm) }

// readForm reads a posted form before anything asks for its values: who asks later
// is not told that it could not be read.
func (c *console) readForm(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := r.ParseForm()
		if _, large := errors.AsType[*http.MaxBytesError](err); err != nil && !large {
			err = bus.Invalid("form", "must be a form")
		}
		if err != nil && r.Method == http.MethodPost {
			c.fail(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// sameOrigin refuses what another site's page posts here.
func (c *console) sameOrigin(next http.Handler) http.Handler {
	guard := http.NewCrossOriginProtection()
	guard.SetDenyHandler(c.page(func(http.ResponseWriter, *http.Request) error { return errForeignForm }))
	return guard.Handler(next)
}

// sessionLife is how long a login lasts: a working day. It does not grow with use,
// since a page that is left open asks for news all the time.
const sessionLife = 12 * time.Hour

// newSessions does without scs.New, which starts a goroutine for a store in memory
// that nobody can end.
func (c *console) newSessions() *scs.SessionManager {
	return &scs.SessionManager{
		Store:            c.db.SessionStore(),
		Codec:            scs.GobCodec{},
		HashTokenInStore: true,
		Lifetime:         sessionLife,
		Cookie: scs.SessionCookie{
			Name: "deskcomm_session", Path: "/admin", HttpOnly: true, SameSite: http.SameSiteLaxMode,
			Secure: strings.HasPrefix(c.publicURL, "https://"), Persist: true,
		},
		ErrorFunc: c.fail,
	}
}
