package app_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// Everything that others write into the console is shown as they wrote it and
// never run.
func TestBrowserShowsWhatOthersWroteAsText(t *testing.T) {
	t.Parallel()
	// hostile marks text by where it comes from.
	hostile := func(from string) string {
		return from + `<script>window.ran="` + from + `"</script><img src=x onerror='window.ran=1'>"></script><svg onload=window.ran=1>'"--><b>`
	}
	in := onShared(t, consoleEnv...)
	d := &desk{process: in.serve()}
	v := in.runJSON(adminPassword+"\n", "setup", "--organization", hostile("org"), "--email", adminEmail, "--password-file", "-")
	d.org, d.token = v["organization_id"].(string), v["api_token"].(string)
	address := newRefuser(t, hostile("response")) + `/?q=<script>window.ran=1</script>"><svg/onload=window.ran=1>`
	d.subscribe(address)
	dead := d.bury("custom.order", 1, map[string]any{"note": hostile("payload"), hostile("key"): 1, "contact": map[string]any{"name": hostile("name")}})[0]
	d.sql("update dead_delivery set last_error = $1, entity_kind = $2 where delivery_id = $3", hostile("error"), hostile("kind"), dead)
	event := d.ask("select event_id::text from dead_delivery where delivery_id = $1", dead)
	d.sql("update attempt set error = $1 where delivery_id = $2", hostile("tried"), dead)
	p := d.asAdmin(t, look{})

	for path, shown := range map[string][]string{
		"/admin/":                                                   {hostile("org")},
		"/admin/?organization=all":                                  {hostile("org")},
		"/admin/dlq":                                                {hostile("error"), hostile("kind"), hostile("org")},
		"/admin/dlq?organization=all":                               {hostile("error"), hostile("org")},
		"/admin/dlq/" + dead + "?reveal=1":                          {hostile("error"), hostile("tried"), hostile("response"), hostile("kind"), jsonText(hostile("payload")), jsonText(hostile("name")), jsonText(hostile("key"))},
		"/admin/events/" + event + "?reveal=1":                      {hostile("tried"), jsonText(hostile("payload"))},
		"/admin/dlq/replay?id=" + dead:                              {hostile("error")},
		"/admin/dlq/discard?id=" + dead:                             {hostile("error")},
		"/admin/dlq?event_type=" + url.QueryEscape(hostile("type")): nil,
		"/admin/login?next=" + url.QueryEscape(hostile("next")):     nil,
	} {
		p.mustBe(http.StatusOK, p.open(path))
		p.settle()
		eval[bool](p, `document.querySelectorAll("details").forEach(d => d.open = true) ?? true`)
		text := p.text("body")
		for _, want := range shown {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not show %q as text:\n%s", path, want, text)
			}
		}
		p.inert(path)
	}

	p.mustBe(http.StatusOK, p.open("/admin/dlq/discard?id="+dead))
	p.mustBe(http.StatusOK, p.submit("form#confirm", map[string]string{"reason": hostile("reason")}))
	p.mustBe(http.StatusOK, p.open("/admin/dlq/"+dead))
	if text := p.text("body"); !strings.Contains(text, hostile("reason")) {
		t.Errorf("the reason is not shown as text:\n%s", text)
	}
	p.inert("a discarded delivery")
	p.mustBe(http.StatusOK, p.click("#logout button"))
	eval[bool](p, `document.querySelector("#login").noValidate = true`)
	p.mustBe(http.StatusUnauthorized, p.submit("form#login", map[string]string{"email": `"><svg/onload=window.ran=1>@example.com`, "password": "not the password"}))
	p.inert("a refused login")
}

// inert proves that nothing written by others became part of the page.
func (p *page) inert(what string) {
	p.Helper()
	if eval[bool](p, `"ran" in window`) {
		p.Errorf("%s: a script ran", what)
	}
	if n := eval[int](p, `document.querySelectorAll("svg, b, [onload], [onerror], script:not([src])").length`); n != 0 {
		p.Errorf("%s: %d elements were made of text", what, n)
	}
}

func (d *desk) ask(query string, args ...any) (text string) {
	d.Helper()
	if err := dbtest.Row(d.T, d.databaseURL(), query, args, &text); err != nil {
		d.Fatal(err)
	}
	return text
}

// jsonText is a string as it stands inside printed JSON.
func jsonText(s string) string { return strings.ReplaceAll(s, `"`, `\"`) }
