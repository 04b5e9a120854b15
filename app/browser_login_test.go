package app_test

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestBrowserIsAskedToLogInAndLedBackToThePageThatWasWanted(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	dead := d.bury("custom.order", 1, nil)[0]
	for name, path := range map[string]string{
		"a filtered list":  "/admin/dlq?consumer=webhook-dispatch-worker&event_type=custom.order",
		"a decision":       "/admin/dlq/replay?id=" + dead,
		"a page not there": "/admin/nowhere?a=b%20c",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPage(t, d.base, look{})
			p.mustBe(http.StatusOK, p.open(path))
			if !strings.HasPrefix(p.path(), "/admin/login") {
				t.Fatalf("without a session %s shows %s:\n%s", path, p.path(), p.text("body"))
			}
			p.logIn(adminEmail, adminPassword)
			p.mustBeAt(path)
		})
	}
}

func TestConsolePagesWithoutASessionRedirectToTheLogin(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	id := uuid.NewString()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, path := range []string{
		"/admin/", "/admin/dlq", "/admin/dlq/" + id, "/admin/dlq/replay?id=" + id, "/admin/dlq/discard?id=" + id,
		"/admin/events/" + id, "/admin/dlq/news", "/admin/nowhere", "/admin/dlq?organization=" + id,
	} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			t.Run(method+" "+path, func(t *testing.T) {
				t.Parallel()
				req, err := http.NewRequestWithContext(t.Context(), method, d.base+path, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				res, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close() //nolint:errcheck,gosec // only the header is wanted
				want := "/admin/login"
				if method == http.MethodGet && path != "/admin/" {
					want += "?next=" + url.QueryEscape(path)
				}
				if got := res.Header.Get("Location"); method == http.MethodGet && (res.StatusCode != http.StatusSeeOther || got != want) {
					t.Errorf("%d to %q, want 303 to %q", res.StatusCode, got, want)
				}
				// What takes no post may say so to anybody.
				if method == http.MethodPost && res.StatusCode/100 == 2 {
					t.Errorf("%d, want no success", res.StatusCode)
				}
			})
		}
	}
}

func TestBrowserIsNotLedToAnotherSiteByALogin(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	for name, tt := range map[string]struct {
		nexts    []string
		loggedIn bool // before the address is opened, which leads on at once
	}{
		"no scheme":   {nexts: []string{"//elsewhere.invalid"}},
		"a whole URL": {nexts: []string{"https://elsewhere.invalid/admin/"}},
		"who is logged in": {loggedIn: true, nexts: []string{
			"//elsewhere.invalid", "https://elsewhere.invalid/admin/", `/\elsewhere.invalid`, `\\elsewhere.invalid`, "/admin/..//elsewhere.invalid",
			"/admin/%2e%2e//elsewhere.invalid", "javascript:alert(1)", "/admin/\r\nLocation: https://elsewhere.invalid", "https:elsewhere.invalid",
			"/\t/elsewhere.invalid", "/admin//elsewhere.invalid", "https://ana@elsewhere.invalid/admin/",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPage(t, d.base, look{})
			if tt.loggedIn {
				p.logIn(adminEmail, adminPassword)
			}
			for _, next := range tt.nexts {
				p.open("/admin/login?next=" + url.QueryEscape(next))
				if !tt.loggedIn {
					p.logIn(adminEmail, adminPassword)
				}
				// The harness reports a request to another site.
				if !strings.HasPrefix(p.path(), "/admin/") || strings.HasPrefix(p.path(), "/admin/login") {
					t.Errorf("%q leads to %s", next, p.path())
				}
				p.find("#logout")
			}
		})
	}
}

func TestBrowserLoginIsSlowedByWrongPasswordsButNeverLocked(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	p := newPage(t, d.base, look{lang: "pt-BR"})
	for range 5 {
		p.mustBe(http.StatusUnauthorized, p.logIn(adminEmail, "not the password"))
		p.find("[role=alert]")
	}
	if n := d.count("select count(*) from login_throttle where allowed_at > updated_at"); n != 1 {
		t.Errorf("%d counts of tries make the next one wait, want that of the address and e-mail", n)
	}
	d.sql("update login_throttle set allowed_at = now() + interval '50 seconds' where failures >= 5")
	p.mustBe(http.StatusTooManyRequests, p.logIn(adminEmail, adminPassword))
	if text := p.text("[role=alert]"); !strings.ContainsAny(text, "0123456789") {
		t.Errorf("the page says %q, want a time to wait", text)
	}
	if value := p.attribute("[name=email]", "value"); value != adminEmail {
		t.Errorf("the form holds %q, want what was typed", value)
	}
	wait, err := strconv.Atoi(p.retryAfter())
	if err != nil || wait < 1 || wait > 50 {
		t.Errorf("Retry-After is %q, want up to 50 seconds", p.retryAfter())
	}
	d.sql("update login_throttle set allowed_at = now()")
	p.mustBe(http.StatusOK, p.logIn(adminEmail, adminPassword))
	p.mustBeAt("/admin/")
	p.click("#logout button")
	p.mustBe(http.StatusUnauthorized, p.logIn(adminEmail, "not the password")) // the count began anew
}

// retryAfter is that header of a refused login.
func (p *page) retryAfter() string {
	p.Helper()
	form := url.Values{"email": {adminEmail}, "password": {"not the password"}}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, p.base+"/admin/login", strings.NewReader(form.Encode()))
	if err != nil {
		p.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		p.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // only the header is wanted
	return res.Header.Get("Retry-After")
}

func TestBrowserSetupLinkWorksUntilItIsUsedAndNotWhenItIsWrongOrOld(t *testing.T) {
	t.Parallel()
	server := onShared(t, consoleEnv...).serve()
	link := server.setupLink()
	p := newPage(t, server.base, look{})

	p.mustBe(http.StatusNotFound, p.open(link+"x"))
	p.mustBe(http.StatusNotFound, p.open("/admin/setup"))
	p.mustBe(http.StatusNotFound, p.open("/admin/setup?token="))
	if p.has("form#setup") {
		t.Error("a link without a token shows the form")
	}
	p.mustBe(http.StatusOK, p.open(link))
	p.mustBe(http.StatusOK, p.open(link)) // opening it uses nothing up

	server.sql("update installation set setup_expires_at = now() - interval '1 second'")
	p.fill("#setup [name=organization]", "Loja")
	p.mustBe(http.StatusNotFound, p.submit("form#setup", map[string]string{"email": adminEmail, "password": adminPassword}))
	p.mustBe(http.StatusNotFound, p.open(link))
	if n := server.count("select count(*) from users"); n != 0 {
		t.Errorf("an expired link made %d users", n)
	}
	server.sql("update installation set setup_expires_at = now() + interval '10 minutes'")

	p.mustBe(http.StatusOK, p.open(link))
	late := newPage(t, server.base, look{})
	late.mustBe(http.StatusOK, late.open(link))
	p.mustBe(http.StatusOK, p.submit("form#setup", map[string]string{"organization": "Loja", "email": adminEmail, "password": adminPassword}))
	p.find("#api-token")
	late.mustBe(http.StatusNotFound, late.submit("form#setup", map[string]string{
		"organization": "Other", "email": "eve@example.com", "password": adminPassword,
	}))
	late.mustBe(http.StatusNotFound, late.open(link))
	if n := server.count("select count(*) from users"); n != 1 {
		t.Errorf("there are %d users, want the first alone", n)
	}
	if late.mustBe(http.StatusOK, late.open("/admin/")); !strings.HasPrefix(late.path(), "/admin/login") {
		t.Errorf("who came late is let in to %s", late.path())
	}
}
