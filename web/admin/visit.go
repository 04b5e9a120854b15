package admin

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/web/problem"
)

// everywhere is the value of the parameter "organization" for all of them.
const everywhere = "all"

// visit is what is known about a request before its page is made.
type visit struct {
	*locale
	person *db.Person // nil when nobody is logged in
	scope  scope
	now    time.Time
}

// scope is what a person looks at: one organization, or all.
type scope struct {
	org      uuid.UUID // nil for all
	name     string
	zone     *time.Location
	platform bool   // seen by a right over the platform only
	param    string // what "organization" says in URLs; "" for the person's first
	mayAct   bool   // may replay and discard
	mayShow  bool   // may see personal data
}

func (s scope) all() bool { return s.org == uuid.Nil }

type visitKey struct{}

func visitOf(r *http.Request) *visit { return r.Context().Value(visitKey{}).(*visit) } // withVisit set it

// withVisit gives each request its visit, of nobody yet.
func (c *console) withVisit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept-Language") // scs adds Cookie
		v := &visit{locale: c.locales.of(r), now: time.Now()}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), visitKey{}, v)))
	})
}

// requirePerson lets only people who are logged in pass.
func (c *console) requirePerson(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := visitOf(r)
		person, err := c.currentPerson(r.Context())
		if errors.Is(err, bus.ErrNotFound) {
			c.askToLogIn(w, r)
			return
		}
		if err != nil {
			c.fail(w, r, err)
			return
		}
		v.person = &person
		next.ServeHTTP(w, r)
	})
}

// requireScope finds out what the person looks at, and lets nobody pass who may
// not.
func (c *console) requireScope(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v := visitOf(r)
		var err error
		if v.scope, err = c.scopeOf(r.Context(), *v.person, r.FormValue("organization")); err != nil {
			c.fail(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// currentPerson is who is logged in, or bus.ErrNotFound.
func (c *console) currentPerson(ctx context.Context) (db.Person, error) {
	id, err := uuid.Parse(c.sessions.GetString(ctx, sessionUser))
	if err != nil {
		return db.Person{}, bus.ErrNotFound
	}
	person, err := c.db.Person(ctx, id)
	if err == nil && person.SessionVersion != c.sessions.GetInt(ctx, sessionVersion) {
		return db.Person{}, bus.ErrNotFound // the password was changed since
	}
	return person, err
}

// askToLogIn sends a browser to the login and back to the page it wanted. What a
// script asked for just fails: its page stays as it is.
func (c *console) askToLogIn(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("HX-Request") != "" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	target := "/admin/login"
	if r.Method == http.MethodGet && r.URL.RequestURI() != "/admin/" {
		target += "?next=" + url.QueryEscape(r.URL.RequestURI())
	}
	http.Redirect(w, r, target, http.StatusSeeOther)
}

// scopeOf finds what the parameter "organization" names for a person. What they
// may not see does not exist.
func (c *console) scopeOf(ctx context.Context, p db.Person, param string) (scope, error) {
	if param == "" && len(p.Memberships) > 0 {
		if len(p.Memberships) > 1 || p.Platform != db.PlatformNone {
			param = p.Memberships[0].OrgID.String() // named, for whom a link may be passed on to
		}
		return memberScope(p, p.Memberships[0], param), nil
	}
	if param == "" || param == everywhere {
		if p.Platform == db.PlatformNone {
			return scope{}, errNoOrganization
		}
		return platformScope(p, scope{param: everywhere, zone: zoneOf("")}), nil
	}
	id, err := uuid.Parse(param)
	if err != nil {
		return scope{}, bus.Invalid("organization", "must be an id")
	}
	for _, m := range p.Memberships {
		if m.OrgID == id {
			return memberScope(p, m, id.String()), nil
		}
	}
	if p.Platform == db.PlatformNone {
		return scope{}, bus.ErrNotFound
	}
	m, err := c.db.OrganizationName(ctx, id)
	return platformScope(p, scopeIn(m, id.String())), err
}

// memberScope is an organization that the person belongs to. Who may more by a
// right over the platform than by the role acts by that right.
func memberScope(p db.Person, m db.Membership, param string) scope {
	s := scopeIn(m, param)
	s.mayAct, s.mayShow = m.Role.AtLeast(db.RoleAdmin), m.Role.AtLeast(db.RoleManager)
	if !s.mayAct && p.Platform == db.PlatformFull {
		return platformScope(p, s)
	}
	return s
}

// platformScope is seen by a right over the platform, which may be to read only.
func platformScope(p db.Person, s scope) scope {
	s.platform = true
	s.mayAct, s.mayShow = p.Platform == db.PlatformFull, p.Platform == db.PlatformFull
	return s
}

func scopeIn(m db.Membership, param string) scope {
	return scope{org: m.OrgID, name: m.Organization, zone: zoneOf(m.Timezone), param: param}
}

// defaultZone is where most of our organizations are.
const defaultZone = "America/Sao_Paulo"

func zoneOf(name string) *time.Location {
	for _, try := range []string{name, defaultZone} {
		if zone, err := time.LoadLocation(try); err == nil && try != "" {
			return zone
		}
	}
	return time.UTC
}

// actor is the person of a request, for the audit log.
func (v *visit) actor(r *http.Request) db.Actor {
	return db.Actor{
		Kind: db.ActorUser, ID: uuid.NullUUID{UUID: v.person.ID, Valid: true}, Name: v.person.Email,
		RequestID: problem.RequestID(r.Context()), Platform: v.scope.platform,
	}
}

// inScope runs fn on behalf of the organization that is looked at. A look by a
// right over the platform is audited.
func (c *console) inScope(r *http.Request, fn func(t *db.OrgTx) error) error {
	v := visitOf(r)
	if v.scope.all() {
		return errNoOrganization
	}
	return c.db.InOrg(r.Context(), v.scope.org, v.actor(r), func(t *db.OrgTx) error {
		if v.scope.platform {
			if err := t.Record(r.Context(), "platform.read", "organization", v.scope.org); err != nil {
				return err
			}
		}
		return fn(t)
	})
}
