package admin

import (
	"cmp"
	"errors"
	"net/http"
	"strings"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/web/problem"
)

func (c *console) showSetup(w http.ResponseWriter, r *http.Request) error {
	valid, err := c.db.CheckSetup(r.Context(), r.FormValue("token"))
	if err != nil {
		return err
	}
	if !valid {
		return c.refuseSetup(w, r)
	}
	c.renderSetup(w, r, http.StatusOK, "")
	return nil
}

// renderSetup shows the form with what was typed, but not the password.
func (c *console) renderSetup(w http.ResponseWriter, r *http.Request, status int, alert string) {
	render(w, r, status, setupPage(setupView{
		frame: c.frame(r, visitOf(r).L.SetUpTitle), Token: r.FormValue("token"), Alert: alert,
		Organization: r.PostFormValue("organization"), Email: r.PostFormValue("email"),
	}))
}

// refuseSetup tells why a link does not work: somebody was first, or it is old.
func (c *console) refuseSetup(w http.ResponseWriter, r *http.Request) error {
	fresh, err := c.db.Fresh(r.Context())
	if err != nil {
		return err
	}
	v := visitOf(r)
	text := v.L.SetUpDone
	if fresh {
		text = v.L.SetUpVoid
	}
	render(w, r, http.StatusNotFound, setupGonePage(setupGoneView{frame: c.frame(r, v.L.SetUpTitle), Text: text, Done: !fresh}))
	return nil
}

// setUp makes the first organization and its admin. The API token is in the answer
// itself: it is shown once and kept nowhere, so there is no page to redirect to.
func (c *console) setUp(w http.ResponseWriter, r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return err
	}
	v := visitOf(r)
	// Before the password is hashed, which is dear. It also refuses an empty token, which the store takes for the command line.
	if valid, err := c.db.CheckSetup(r.Context(), r.PostFormValue("token")); err != nil {
		return err
	} else if !valid {
		return c.refuseSetup(w, r)
	}
	hash, err := db.HashPassword(r.Context(), r.PostFormValue("password"))
	var done db.Installed
	if err == nil {
		done, err = c.db.SetUp(r.Context(), db.NewInstallation{
			Organization: r.PostFormValue("organization"), Email: strings.TrimSpace(r.PostFormValue("email")),
			PasswordHash: hash, Scopes: db.Scopes(), SetupToken: r.PostFormValue("token"), RequestID: problem.RequestID(r.Context()),
		})
	}
	if field, ok := errors.AsType[*bus.FieldError](err); ok {
		c.renderSetup(w, r, http.StatusUnprocessableEntity, v.fieldFault(field))
		return nil
	}
	if errors.Is(err, bus.ErrConflict) || errors.Is(err, bus.ErrNotFound) {
		return c.refuseSetup(w, r) // somebody was faster
	}
	if err != nil {
		return err
	}
	user, email := db.Credentials{UserID: done.UserID, SessionVersion: 1}, strings.TrimSpace(r.PostFormValue("email"))
	if err := c.enter(w, r, user, email, db.Origin{Address: r.RemoteAddr}); err != nil {
		return err
	}
	render(w, r, http.StatusOK, setupDonePage(setupDoneView{
		frame: c.frame(r, v.L.SetUpReady), Token: done.APIToken,
		Example: exampleOf(cmp.Or(c.publicURL, "http://"+r.Host), done.APIToken),
	}))
	return nil
}

// fieldFault says in the person's language which field of a form is wrong.
func (v *visit) fieldFault(f *bus.FieldError) string {
	if id := "Fault_" + f.Field; v.has(id) {
		return v.text(id)
	}
	return v.text("ErrorField", "Field", f.Field, "Rule", f.Rule)
}
