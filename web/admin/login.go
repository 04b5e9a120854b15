package admin

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/web/problem"
)

// What a session holds.
const (
	sessionUser    = "user"
	sessionVersion = "version"
	sessionFlash   = "flash"
)

func (c *console) showLogin(w http.ResponseWriter, r *http.Request) error {
	if _, err := c.currentPerson(r.Context()); err == nil {
		http.Redirect(w, r, localPage(r.FormValue("next")), http.StatusSeeOther)
		return nil
	}
	fresh, err := c.db.Fresh(r.Context())
	if err != nil {
		return err
	}
	c.renderLogin(w, r, http.StatusOK, loginView{Fresh: fresh})
	return nil
}

// renderLogin shows the form with what was typed, but not the password.
func (c *console) renderLogin(w http.ResponseWriter, r *http.Request, status int, view loginView) {
	view.frame = c.frame(r, visitOf(r).L.LogIn)
	view.Email, view.Next = r.PostFormValue("email"), r.FormValue("next")
	render(w, r, status, loginPage(view))
}

func (c *console) logIn(w http.ResponseWriter, r *http.Request) error {
	if err := r.ParseForm(); err != nil {
		return err
	}
	v := visitOf(r)
	email, from := strings.TrimSpace(r.PostFormValue("email")), db.Origin{Address: r.RemoteAddr}
	if device, err := r.Cookie(deviceCookie); err == nil {
		from.Device = device.Value
	}
	wait, err := c.db.BeginLogin(r.Context(), email, from)
	if err != nil {
		return err
	}
	if wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(seconds(wait)))
		c.renderLogin(w, r, http.StatusTooManyRequests, loginView{Alert: v.count("LoginTooMany", seconds(wait))})
		return nil
	}
	user, err := c.checkPassword(r.Context(), email, r.PostFormValue("password"))
	if errors.Is(err, bus.ErrUnauthorized) {
		c.logger.WarnContext(r.Context(), "login refused", "request_id", problem.RequestID(r.Context()))
		c.renderLogin(w, r, http.StatusUnauthorized, loginView{Alert: v.L.LoginWrong})
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.enter(w, r, user, email, from); err != nil {
		return err
	}
	http.Redirect(w, r, localPage(r.PostFormValue("next")), http.StatusSeeOther)
	return nil
}

// checkPassword returns the user whose e-mail and password these are, or
// bus.ErrUnauthorized. It takes as long for an e-mail that nobody has.
func (c *console) checkPassword(ctx context.Context, email, password string) (db.Credentials, error) {
	user, err := c.db.Credentials(ctx, email)
	if err != nil && !errors.Is(err, bus.ErrNotFound) {
		return db.Credentials{}, err
	}
	if err != nil {
		return db.Credentials{}, cmp.Or(db.VerifyNothing(ctx, password), bus.ErrUnauthorized)
	}
	ok, err := db.VerifyPassword(ctx, password, user.PasswordHash)
	if err == nil && !ok {
		err = bus.ErrUnauthorized
	}
	return user, err
}

// deviceCookie is what a browser keeps of its last login; see db.NewDevice.
const (
	deviceCookie = "deskcomm_device"
	deviceLife   = 180 * 24 * time.Hour
)

// enter logs a person in.
func (c *console) enter(w http.ResponseWriter, r *http.Request, user db.Credentials, email string, from db.Origin) error {
	if err := c.startSession(r.Context(), user.UserID, user.SessionVersion); err != nil {
		return err
	}
	device, err := c.db.NewDevice(email)
	if err != nil {
		return err
	}
	if err := c.db.LoggedIn(r.Context(), user.UserID, email, from, problem.RequestID(r.Context())); err != nil {
		return errors.Join(err, c.sessions.Destroy(r.Context()))
	}
	http.SetCookie(w, &http.Cookie{
		Name: deviceCookie, Value: device, Path: "/admin/login", MaxAge: int(deviceLife.Seconds()),
		HttpOnly: true, Secure: c.sessions.Cookie.Secure, SameSite: http.SameSiteStrictMode,
	})
	return nil
}

// startSession makes a session under a new token: one that was planted in the
// browser before the login is worth nothing.
func (c *console) startSession(ctx context.Context, user uuid.UUID, version int) error {
	if err := c.sessions.RenewToken(ctx); err != nil {
		return err
	}
	c.sessions.Put(ctx, sessionUser, user.String())
	c.sessions.Put(ctx, sessionVersion, version)
	// Now and not with the answer: what cannot be kept must not look like a login.
	_, _, err := c.sessions.Commit(ctx)
	return err
}

func (c *console) logOut(w http.ResponseWriter, r *http.Request) error {
	v := visitOf(r)
	if err := c.db.LoggedOut(r.Context(), v.person.ID, v.person.Email, problem.RequestID(r.Context())); err != nil {
		return err
	}
	if err := c.sessions.Destroy(r.Context()); err != nil {
		return err
	}
	http.Redirect(w, r, "/admin/login", http.StatusSeeOther)
	return nil
}

// localPage is target when it is a page of the console, else the overview: a login
// must not send people to another site.
func localPage(target string) string {
	u, err := url.Parse(target)
	if err != nil || u.IsAbs() || u.Host != "" || u.User != nil || !strings.HasPrefix(u.Path, "/admin/") ||
		strings.ContainsAny(target, "\\\r\n\t") || strings.Contains(u.Path, "..") {
		return "/admin/"
	}
	return u.RequestURI()
}
