package admin

import (
	"bytes"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/web/problem"
)

// Errors that have a page of their own.
var (
	errNoPage         = errors.New("there is no such page")
	errForeignForm    = errors.New("the form was posted by another site")
	errForbidden      = errors.New("the person may not do this")
	errNoOrganization = errors.New("no organization is chosen")
)

// page makes a handler of a function that may fail.
func (c *console) page(fn func(w http.ResponseWriter, r *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := fn(w, r); err != nil {
			c.fail(w, r, err)
		}
	}
}

// fail answers with the page of an error. One that nobody expected is logged and
// told nothing of.
func (c *console) fail(w http.ResponseWriter, r *http.Request, err error) {
	v := visitOf(r)
	status, text := http.StatusInternalServerError, v.L.ErrorInternal
	var field *bus.FieldError
	var large *http.MaxBytesError
	switch {
	case errors.Is(err, errNoOrganization):
		status, text = http.StatusNotFound, v.L.ErrorNoOrganization
	case errors.Is(err, errNoPage), errors.Is(err, bus.ErrNotFound):
		status, text = http.StatusNotFound, v.L.ErrorNotFound
	case errors.Is(err, errForeignForm):
		status, text = http.StatusForbidden, v.L.ErrorForeignForm
	case errors.Is(err, errForbidden):
		status, text = http.StatusForbidden, v.L.ErrorForbidden
	case errors.Is(err, bus.ErrConflict):
		status, text = http.StatusConflict, v.L.ErrorConflict
	case errors.As(err, &field):
		status, text = http.StatusBadRequest, v.fieldFault(field)
	case errors.As(err, &large):
		status, text = http.StatusRequestEntityTooLarge, v.L.ErrorTooLarge
	case errors.Is(err, bus.ErrUnavailable):
		status, text = http.StatusServiceUnavailable, v.L.ErrorUnavailable
		w.Header().Set("Retry-After", "2")
	default:
		c.logger.ErrorContext(r.Context(), "page failed", "request_id", problem.RequestID(r.Context()), "error", err)
	}
	if r.Context().Err() != nil {
		return // the browser has left
	}
	f := c.frame(r, strconv.Itoa(status))
	render(w, r, status, errorPage(errorView{frame: f, Text: text, RequestID: v.text("RequestID", "ID", problem.RequestID(r.Context()))}))
}

// render writes a page when all of it is made, so that a page that fails is not
// half sent.
func render(w http.ResponseWriter, r *http.Request, status int, page templ.Component) {
	var body bytes.Buffer
	if err := page.Render(r.Context(), &body); err != nil {
		panic(err) // a buffer takes all; the router answers and logs
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	w.Write(body.Bytes()) //nolint:errcheck // the client is gone then
}

// frame is what surrounds the content of every page.
type frame struct {
	Lang   string
	Title  string
	L      labels
	CSS    string
	Script string
	HTMX   string
	Icon   string
	Person string // e-mail; "" when nobody is logged in
	Nav    []link
	Flash  string
	Scope  string // name of what is looked at
}

// link is one entry of a list of links.
type link struct {
	Text, URL string
	Current   bool
}

// frame makes the frame of the page called title. The flash is shown once.
func (c *console) frame(r *http.Request, title string) frame {
	v := visitOf(r)
	f := frame{
		Lang: v.Tag, Title: title, L: v.L,
		CSS: c.assets.url("app.css"), Script: c.assets.url("app.js"), HTMX: c.assets.url("htmx.min.js"), Icon: c.assets.url("icon.svg"),
	}
	if v.person == nil {
		return f
	}
	f.Person, f.Scope = v.person.Email, v.scope.name
	if v.scope.param == everywhere {
		f.Scope = v.L.AllOrganizations
	}
	f.Nav = []link{
		{Text: v.L.Overview, URL: v.scope.url("/admin/"), Current: r.URL.Path == "/admin/" || r.URL.Path == "/admin"},
		{Text: v.L.DeadLetters, URL: v.scope.url("/admin/dlq"), Current: strings.HasPrefix(r.URL.Path, "/admin/dlq")},
	}
	if r.Header.Get("HX-Request") == "" { // a part that refreshes itself shows none
		f.Flash = c.sessions.PopString(r.Context(), sessionFlash)
	}
	return f
}

// url is path with the scope kept, and more parameters as pairs of name and
// value.
func (s scope) url(path string, pairs ...string) string {
	q := url.Values{}
	if s.param != "" {
		q.Set("organization", s.param)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		q.Add(pairs[i], pairs[i+1])
	}
	if len(q) == 0 {
		return path
	}
	return path + "?" + q.Encode()
}

// seconds rounds a wait up, for people and for Retry-After.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }
