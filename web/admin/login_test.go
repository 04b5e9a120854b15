package admin_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
	"github.com/deskcomm/deskcomm/web"
)

func sessionCookie(rec *httptest.ResponseRecorder) *http.Cookie {
	for _, c := range rec.Result().Cookies() {
		if c.Name == "deskcomm_session" {
			return c
		}
	}
	return nil
}

func TestTheSessionCookieIsForTheConsoleAlone(t *testing.T) {
	t.Parallel()
	for public, secure := range map[string]bool{
		"": false, "http://desk.example": false, "https://desk.example": true, "https://desk.example/": true,
	} {
		w := setupOn(t, dbtest.URL(t), web.Options{PublicURL: public})
		rec := w.browser().post("/admin/login", url.Values{"email": {w.person(db.RoleViewer)}, "password": {password}})
		c := sessionCookie(rec)
		if c == nil {
			t.Fatalf("%q: no cookie", public)
		}
		if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Path != "/admin" || c.Domain != "" || c.Secure != secure || c.MaxAge != 12*60*60 {
			t.Errorf("%q: cookie = %s", public, c)
		}
		if raw, err := base64.RawURLEncoding.DecodeString(c.Value); err != nil || len(raw) < 32 {
			t.Errorf("%q: a token of %d bytes: %v", public, len(raw), err)
		}
	}
}

func TestWhoHasNotLoggedInGetsNoSession(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := w.browser()
	for _, rec := range []*httptest.ResponseRecorder{
		b.get("/admin/"), b.get("/admin/login"), b.get("/admin/setup?token=x"), b.get("/admin/nowhere"),
		b.post("/admin/login", url.Values{"email": {"nobody@example.com"}, "password": {"x"}}), b.post("/admin/logout", nil),
	} {
		if rec.Header().Get("Set-Cookie") != "" {
			t.Errorf("an answer of %d sets %s", rec.Code, rec.Header().Get("Set-Cookie"))
		}
	}
}

func TestALoginMakesATokenOfItsOwn(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := w.as(w.person(db.RoleViewer))
	u, err := url.Parse(site + "/admin/")
	if err != nil {
		t.Fatal(err)
	}
	first := b.jar.Cookies(u)[0].Value
	other := w.person(db.RoleViewer)
	rec := b.post("/admin/login", url.Values{"email": {other}, "password": {password}})
	second := sessionCookie(rec)
	if rec.Code != http.StatusSeeOther || second == nil || second.Value == first {
		t.Fatalf("the second login = %d and leaves the token as it was", rec.Code)
	}
	if !strings.Contains(b.get("/admin/").Body.String(), other) {
		t.Error("the page does not name who logged in last")
	}
	planted := w.browser()
	planted.jar.SetCookies(u, []*http.Cookie{{Name: "deskcomm_session", Value: first, Path: "/admin"}})
	if rec := planted.get("/admin/"); rec.Code != http.StatusSeeOther {
		t.Errorf("the token from before the login opens the console: %d", rec.Code)
	}
	// A token that somebody made up is never taken over.
	made := strings.Repeat("A", 43)
	planted.jar.SetCookies(u, []*http.Cookie{{Name: "deskcomm_session", Value: made, Path: "/admin"}})
	rec = planted.post("/admin/login", url.Values{"email": {other}, "password": {password}})
	if c := sessionCookie(rec); c == nil || c.Value == made {
		t.Error("the login took over a token that the browser brought")
	}
}

func TestOnlyAHashOfTheTokenIsStored(t *testing.T) {
	t.Parallel()
	w := setup(t)
	rec := w.browser().post("/admin/login", url.Values{"email": {w.person(db.RoleViewer)}, "password": {password}})
	token := sessionCookie(rec).Value
	sum := sha256.Sum256([]byte(token))
	if n := w.count("from sessions where data <> '' and token = $1", token); n != 0 {
		t.Error("the token itself is stored")
	}
	if n := w.count("from sessions where token = $1 and expiry > clock_timestamp() + interval '11 hours' and expiry < clock_timestamp() + interval '13 hours'",
		base64.RawURLEncoding.EncodeToString(sum[:])); n != 1 {
		t.Errorf("%d sessions are stored under the token's hash, want 1", n)
	}
	if strings.Contains(w.log.String(), token) || strings.Contains(w.log.String(), password) {
		t.Error("the log holds a secret")
	}
}

func TestALogoutEndsTheSessionOnTheServer(t *testing.T) {
	t.Parallel()
	w := setup(t)
	email := w.person(db.RoleViewer)
	b := w.as(email)
	u, err := url.Parse(site + "/admin/")
	if err != nil {
		t.Fatal(err)
	}
	kept := b.jar.Cookies(u)
	if rec := b.get("/admin/logout"); rec.Code != http.StatusNotFound {
		t.Errorf("a link to the logout = %d, want 404: a picture of another site could log people out", rec.Code)
	}
	rec := b.post("/admin/logout", nil)
	if c := sessionCookie(rec); rec.Code != http.StatusSeeOther || rec.Header().Get("Location") != "/admin/login" || c == nil || c.MaxAge >= 0 {
		t.Errorf("logout = %d to %s, cookie %v", rec.Code, rec.Header().Get("Location"), c)
	}
	sum := sha256.Sum256([]byte(kept[0].Value))
	if n := w.count("from sessions where data <> '' and token = $1", base64.RawURLEncoding.EncodeToString(sum[:])); n != 0 {
		t.Error("the session is still stored")
	}
	b.jar.SetCookies(u, kept)
	if rec := b.get("/admin/"); rec.Code != http.StatusSeeOther {
		t.Errorf("the kept cookie opens the console: %d", rec.Code)
	}
	for _, action := range []string{"user.logged_in", "user.logged_out"} {
		if n := w.audited(uuid.Nil, action, email); n != 1 {
			t.Errorf("%d rows of %s, want 1", n, action)
		}
	}
}

func TestALoginDoesNotTellWhoExists(t *testing.T) {
	t.Parallel()
	w := setup(t)
	email := w.person(db.RoleViewer)
	var pages []string
	for _, try := range [][2]string{
		{email, "wrong"},
		{"nobody-" + uuid.NewString() + "@example.com", "wrong"},
		{"not an address", "wrong"},
		{email, ""},
		{"", ""},
		{strings.ToUpper(email), password + " "},
		{email, strings.Repeat("x", 10000)},
		{"a\x00@example.com", "\x00"},
	} {
		b := w.browser()
		rec := b.post("/admin/login", url.Values{"email": {try[0]}, "password": {try[1]}, "next": {"/admin/dlq"}})
		if rec.Code != http.StatusUnauthorized || sessionCookie(rec) != nil {
			t.Errorf("login as %q = %d", try[0], rec.Code)
		}
		page := rec.Body.String()
		if try[1] != "" && strings.Contains(page, try[1]+`"`) && try[1] != "wrong" {
			t.Error("the page repeats the password")
		}
		if !strings.Contains(page, `name="next" value="/admin/dlq"`) {
			t.Errorf("the page forgets where to go on: %s", page)
		}
		page = regexp.MustCompile(`(name="email"[^>]*) value="[^"]*"`).ReplaceAllString(page, "$1")
		pages = append(pages, page)
	}
	for i, page := range pages[1:] {
		if page != pages[0] {
			t.Errorf("answer %d differs from that for a wrong password: %s", i+1, textOf(page))
		}
	}
	if !strings.Contains(textOf(pages[0]), "E-mail or password is wrong.") {
		t.Errorf("the page says: %s", textOf(pages[0]))
	}
	if strings.Contains(w.log.String(), email) {
		t.Error("the log names who tried")
	}
	if rec := w.browser().post("/admin/login", url.Values{"email": {"  " + strings.ToUpper(email) + " "}, "password": {password}}); rec.Code != http.StatusSeeOther {
		t.Errorf("an e-mail address in another case, with blanks around = %d, want 303", rec.Code)
	}
}

func TestTooManyTriesWait(t *testing.T) {
	t.Parallel()
	w := setup(t)
	email := w.person(db.RoleViewer)
	b := w.browser()
	b.client = "198.51.100.7:4321"
	for i := range 5 {
		if rec := b.post("/admin/login", url.Values{"email": {email}, "password": {"wrong"}}); rec.Code != http.StatusUnauthorized {
			t.Errorf("try %d = %d, want 401", i, rec.Code)
		}
	}
	key := sha256.Sum256([]byte("email from network\x00" + email + "\x00198.51.100.7")) // as the store names it
	if n := w.count("from login_throttle where key = $1 and failures = 5", key[:]); n != 1 {
		t.Fatalf("the tries are not counted under the address")
	}
	w.exec("update login_throttle set allowed_at = clock_timestamp() + interval '55 seconds' where key = $1", key[:])
	rec := b.post("/admin/login", url.Values{"email": {email}, "password": {password}, "next": {"/admin/dlq"}})
	after, err := strconv.Atoi(rec.Header().Get("Retry-After"))
	if rec.Code != http.StatusTooManyRequests || err != nil || after < 1 || after > 55 || sessionCookie(rec) != nil {
		t.Errorf("the sixth try = %d, Retry-After %q", rec.Code, rec.Header().Get("Retry-After"))
	}
	if page := rec.Body.String(); !strings.Contains(textOf(page), "Too many tries. Wait "+strconv.Itoa(after)+" second") ||
		!strings.Contains(page, `name="next" value="/admin/dlq"`) || strings.Contains(page, password) {
		t.Errorf("the page says: %s", textOf(page))
	}
	if n := w.count("from login_throttle where key = $1 and failures = 5", key[:]); n != 1 {
		t.Error("a try that was not looked at is counted")
	}
	elsewhere := w.browser()
	elsewhere.client = "203.0.113.9:1"
	if rec := elsewhere.post("/admin/login", url.Values{"email": {email}, "password": {password}}); rec.Code != http.StatusSeeOther {
		t.Errorf("the owner from elsewhere = %d, want 303", rec.Code)
	}
}

func TestASetupLinkWorksOnceAndInTime(t *testing.T) {
	t.Parallel()
	w := fresh(t)
	token, err := w.db.OpenSetup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := w.browser()
	fields := func(token string) url.Values {
		return url.Values{"token": {token}, "organization": {"Padaria Sol"}, "email": {"Ana@Example.com"}, "password": {"a good password"}}
	}
	refused := func(what, token, says string) {
		t.Helper()
		for _, rec := range []*httptest.ResponseRecorder{b.get("/admin/setup?token=" + url.QueryEscape(token)), b.post("/admin/setup", fields(token))} {
			if rec.Code != http.StatusNotFound || !strings.Contains(textOf(rec.Body.String()), says) || sessionCookie(rec) != nil {
				t.Errorf("%s = %d %s", what, rec.Code, textOf(rec.Body.String()))
			}
		}
	}
	if rec := b.get("/admin/login"); !strings.Contains(textOf(rec.Body.String()), "Nobody has set this installation up yet.") {
		t.Errorf("the login of a new installation says: %s", textOf(rec.Body.String()))
	}
	refused("no token", "", "This link is wrong")
	refused("a wrong token", token[1:], "This link is wrong")
	refused("a token that is no text", "\xff\x00", "This link is wrong")
	w.exec("update installation set setup_expires_at = clock_timestamp() - interval '1 second'")
	refused("an old token", token, "more than 15 minutes old")
	earlier := token
	if token, err = w.db.OpenSetup(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused("the link before the last", earlier, "This link is wrong")
	if n := w.count("from users"); n != 0 {
		t.Fatalf("%d users after links that are void", n)
	}

	page := b.get("/admin/setup?token=" + token)
	if page.Code != http.StatusOK || !strings.Contains(page.Body.String(), `name="token" value="`+token+`"`) {
		t.Fatalf("the setup page = %d %s", page.Code, textOf(page.Body.String()))
	}
	for name, tt := range map[string]struct{ field, value, says string }{
		"a short password": {"password", "1234567", "8 to 200 characters"},
		"a long password":  {"password", strings.Repeat("x", 201), "8 to 200 characters"},
		"no organization":  {"organization", " ", "The organization needs a name"},
		"no e-mail":        {"email", "ana", "The e-mail must be an address"},
	} {
		form := fields(token)
		form.Set(tt.field, tt.value)
		rec := b.post("/admin/setup", form)
		body := rec.Body.String()
		if rec.Code != http.StatusUnprocessableEntity || !strings.Contains(textOf(body), tt.says) || !strings.Contains(body, `name="token" value="`+token) ||
			strings.Contains(body, form.Get("password")) || sessionCookie(rec) != nil {
			t.Errorf("%s = %d %s", name, rec.Code, textOf(body))
		}
	}
	if n := w.count("from organizations where name <> $1", t.Name()) + w.count("from users"); n != 0 {
		t.Errorf("a form at fault left %d rows", n)
	}

	rec := b.post("/admin/setup", fields(token))
	secrets := regexp.MustCompile(`dsk_[0-9a-f]{8}_[A-Za-z0-9_-]{43}`).FindAllString(rec.Body.String(), -1)
	if rec.Code != http.StatusOK || len(secrets) != 2 || secrets[0] != secrets[1] || sessionCookie(rec) == nil {
		t.Fatalf("setup = %d, %d tokens: %s", rec.Code, len(secrets), textOf(rec.Body.String()))
	}
	if api := b.send(http.MethodGet, "/v1/events", "", "Authorization", "Bearer "+secrets[0]); api.Code != http.StatusOK {
		t.Errorf("the token opens nothing: %d %s", api.Code, api.Body)
	}
	if page := b.get("/admin/"); page.Code != http.StatusOK || !strings.Contains(page.Body.String(), "ana@example.com") || strings.Contains(page.Body.String(), secrets[0]) {
		t.Errorf("the console after the setup = %d %s", page.Code, textOf(page.Body.String()))
	}
	if n := w.count("from audit_log where action = 'user.created' and actor_kind = 'user' and actor_name = 'ana@example.com' and request_id is not null"); n != 1 {
		t.Errorf("%d rows of audit name who set up and the request, want 1", n)
	}
	if n := w.count("from platform_admins p join users u on u.id = p.user_id where u.email = 'ana@example.com' and p.scope = 'full'"); n != 1 {
		t.Error("the first admin does not administer the platform")
	}
	var stored []byte
	if err := dbtest.Conn(t, w.url).QueryRow(t.Context(), "select coalesce(string_agg(data, ''), '') from sessions").Scan(&stored); err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(stored, []byte(secrets[0][:12])) || strings.Contains(w.log.String(), secrets[0]) || strings.Contains(w.log.String(), token) {
		t.Error("a secret is stored in a session or logged")
	}
	b = w.browser()
	refused("a link that was used", token, "is set up already")
	if n := w.count("from users"); n != 1 {
		t.Errorf("%d users, want 1", n)
	}
	if again, err := w.db.OpenSetup(t.Context()); err != nil || again != "" {
		t.Errorf("a set-up installation opens another link: %v", err)
	}
	login := b.post("/admin/login", url.Values{"email": {"ana@example.com"}, "password": {"a good password"}})
	if login.Code != http.StatusSeeOther {
		t.Errorf("login with what was set up = %d", login.Code)
	}
}

func TestOneOfTwoSetupsWins(t *testing.T) {
	t.Parallel()
	w := fresh(t)
	token, err := w.db.OpenSetup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	gate, err := dbtest.Conn(t, w.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gate.Exec(t.Context(), "select id from installation for update"); err != nil {
		t.Fatal(err)
	}
	done := make(chan int)
	for _, email := range []string{"a@example.com", "b@example.com"} {
		b := w.browser()
		go func() {
			done <- b.post("/admin/setup", url.Values{"token": {token}, "organization": {"X"}, "email": {email}, "password": {"a good password"}}).Code
		}()
	}
	dbtest.Eventually(t, "both setups wait for their turn", func() bool {
		return w.count("from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") == 2
	})
	if err := gate.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a, b := <-done, <-done; a+b != http.StatusOK+http.StatusNotFound || w.count("from users") != 1 {
		t.Errorf("two setups at once = %d and %d, %d users", a, b, w.count("from users"))
	}
}

// fresh is a world on an installation that nobody has set up.
func fresh(t *testing.T) *world {
	t.Helper()
	return setupOn(t, dbtest.Fresh(t), web.Options{})
}
