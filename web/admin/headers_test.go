package admin_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

const wantPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// every returns each page there is, by what it is, with what an attacker could
// have stored in it.
func every(t *testing.T) map[string]*httptest.ResponseRecorder {
	t.Helper()
	w := fresh(t)
	link, err := w.db.OpenSetup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	nobody := w.browser()
	pages := map[string]*httptest.ResponseRecorder{
		"login, fresh": nobody.get("/admin/login"),
		"setup":        nobody.get("/admin/setup?token=" + link),
		"setup void":   nobody.get("/admin/setup?token=x"),
		"setup fault":  nobody.post("/admin/setup", url.Values{"token": {link}}),
		"setup done": nobody.post("/admin/setup", url.Values{
			"token": {link}, "organization": {hostileText}, "email": {"ana@example.com"}, "password": {"a good password"},
		}),
	}
	ids := w.bury(55, func(_ int, d *dead) {
		d.typ, d.kind, d.err, d.payload = hostileText, hostileText, hostileText, `{"a":"</pre><script>alert(1)</script><img src=//evil.example onerror=alert(1)>"}`
	})
	event := w.emit(`{"a":"</pre><script>alert(1)</script>"}`)
	w.exec(`insert into webhook_subscriptions (organization_id, url, event_types) values ($1, $2, '{*}')`, w.org, "https://hooks.example/x?"+hostileText)
	admin, platform := w.as(w.person(db.RoleAdmin)), w.as(w.platform(db.PlatformFull))
	id := ids[0].String()
	attempt := uuid.MustParse(id)
	w.exec(`insert into attempt (delivery_id, number, organization_id, consumer_id, destination, event_id, outcome, error, status_code, response, started_at, duration)
		select $1, 1, $2, id, '00000000-0000-0000-0000-000000000000', $3, 'dead', $4, 500, $4, clock_timestamp(), interval '1 second'
		  from consumers where name = $5`, attempt, w.org, event, hostileText, w.consumer)
	for name, path := range map[string]string{
		"overview": "/admin/", "event": "/admin/events/" + event.String(), "event shown": "/admin/events/" + event.String() + "?reveal=1",
		"list": "/admin/dlq", "list at fault": "/admin/dlq?since=x", "list of nothing": "/admin/dlq?event_type=" + url.QueryEscape(hostileText+"x"),
		"news": "/admin/dlq/news", "delivery": "/admin/dlq/" + id, "delivery shown": "/admin/dlq/" + id + "?reveal=1",
		"question before replay": "/admin/dlq/replay?id=" + id, "question before discard": "/admin/dlq/discard?id=" + id,
		"no page": "/admin/nowhere", "no delivery": "/admin/dlq/" + uuid.NewString(), "no organization": "/admin/dlq?organization=x",
	} {
		pages[name] = admin.get(path)
	}
	pages["list in Portuguese"] = admin.get("/admin/dlq", "Accept-Language", "pt-BR")
	pages["discard without a reason"] = admin.post("/admin/dlq/discard", idForm(ids[:1]))
	pages["too many"] = admin.post("/admin/dlq/discard", idForm(ids))
	pages["forged"] = admin.post("/admin/dlq/discard", idForm(ids[:1]), "Sec-Fetch-Site", "cross-site")
	pages["too large"] = admin.post("/admin/dlq/discard", url.Values{"reason": {strings.Repeat("x", 70<<10)}})
	pages["no such method"] = admin.send(http.MethodDelete, "/admin/dlq", "", "Sec-Fetch-Site", "same-origin")
	pages["forbidden"] = w.as(w.person(db.RoleViewer)).post("/admin/dlq/discard", idForm(ids[:1], "reason", "x"))
	pages["organizations"] = platform.get("/admin/")
	pages["list of all"] = platform.get("/admin/dlq")
	pages["login"] = w.browser().get("/admin/login?next=" + url.QueryEscape(hostileText))
	pages["login refused"] = w.browser().post("/admin/login", url.Values{"email": {hostileText}, "password": {"x"}})
	pages["sent to the login"] = w.browser().get("/admin/dlq")
	u, err := url.Parse(w.url)
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{"drop database " + strings.TrimPrefix(u.Path, "/") + " with (force)"} {
		if _, err := dbtest.Conn(t, dbtest.URL(t)).Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	pages["database gone"] = admin.get("/admin/dlq")
	return pages
}

const hostileText = `"><script>alert(1)</script><img src=x onerror=alert(1) style=color:red> ' & //evil.example`

// elements are the start tags of a page, each with its attributes.
func elements(page string) [][2]string {
	var list [][2]string
	for _, m := range regexp.MustCompile(`<([a-zA-Z][a-zA-Z0-9-]*)((?:[^>"']|"[^"]*"|'[^']*')*)>`).FindAllStringSubmatch(page, -1) {
		list = append(list, [2]string{strings.ToLower(m[1]), m[2]})
	}
	return list
}

// attributes are the names of an element's attributes and their values.
func attributes(text string) map[string]string {
	list := make(map[string]string)
	for _, m := range regexp.MustCompile(`([^\s"'=<>/]+)(?:=(?:"([^"]*)"|'([^']*)'|([^\s"'=<>]+)))?`).FindAllStringSubmatch(text, -1) {
		list[strings.ToLower(m[1])] = m[2] + m[3] + m[4]
	}
	return list
}

func TestEveryPageKeepsToThePolicy(t *testing.T) {
	t.Parallel()
	wantCode := map[string]int{
		"login, fresh": 200, "setup": 200, "setup void": 404, "setup fault": 422, "setup done": 200, "overview": 200, "event": 200, "event shown": 200,
		"list": 200, "list at fault": 400, "list of nothing": 200, "news": 200, "delivery": 200, "delivery shown": 200, "question before replay": 200,
		"question before discard": 200, "no page": 404, "no delivery": 404, "no organization": 400, "list in Portuguese": 200,
		"discard without a reason": 422, "too many": 400, "forged": 403, "too large": 413, "no such method": 404, "forbidden": 403,
		"organizations": 200, "list of all": 200, "login": 200, "login refused": 401, "sent to the login": 303, "database gone": 503,
	}
	pages := every(t)
	if len(pages) != len(wantCode) {
		t.Errorf("%d pages, want %d", len(pages), len(wantCode))
	}
	for name, rec := range pages {
		header, page := rec.Header(), rec.Body.String()
		if rec.Code != wantCode[name] {
			t.Errorf("%s = %d, want %d: %.300s", name, rec.Code, wantCode[name], textOf(page))
		}
		for field, want := range map[string]string{
			"Content-Security-Policy": wantPolicy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "Content-Type": "text/html; charset=utf-8",
		} {
			if got := header.Values(field); len(got) != 1 || got[0] != want {
				t.Errorf("%s: %s = %q, want %q", name, field, got, want)
			}
		}
		if !strings.Contains(strings.Join(header.Values("Cache-Control"), ", "), "no-store") || !strings.Contains(strings.Join(header.Values("Vary"), ", "), "Accept-Language") {
			t.Errorf("%s: Cache-Control = %q, Vary = %q", name, header.Values("Cache-Control"), header.Values("Vary"))
		}
		if rec.Code == http.StatusSeeOther {
			continue
		}
		checkMarkup(t, name, page)
	}
	if text := textOf(pages["list in Portuguese"].Body.String()); !strings.Contains(text, "Entregas com falha") {
		t.Errorf("the list in Portuguese says: %.200s", text)
	}
}

// checkMarkup fails the test if a page runs or loads what the policy forbids, or
// if anything that was stored became markup.
func checkMarkup(t *testing.T, name, page string) {
	t.Helper()
	if strings.Count(page, "<script") != 2 && name != "news" {
		t.Errorf("%s has %d scripts, want 2", name, strings.Count(page, "<script"))
	}
	if strings.Contains(page, "<style") || strings.Contains(page, "</pre><script>") || strings.Contains(page, "<img src=x") {
		t.Errorf("%s holds markup that is not ours", name)
	}
	ids := make(map[string]bool)
	seen := 0
	for _, element := range elements(page) {
		seen++
		attrs := attributes(element[1])
		if id, ok := attrs["id"]; ok && ids[id] {
			t.Errorf("%s has two elements %s", name, id)
		} else if ok {
			ids[id] = true
		}
		for attr, value := range attrs {
			if strings.HasPrefix(attr, "on") || attr == "style" || attr == "srcdoc" || strings.HasPrefix(attr, "hx-on") || strings.HasPrefix(attr, "data-hx-on") {
				t.Errorf("%s: <%s %s=%q>", name, element[0], attr, value)
			}
			switch attr {
			case "href", "src", "action", "formaction", "data-hx-get", "data-hx-post":
				if !strings.HasPrefix(value, "/admin/") && !strings.HasPrefix(value, "#") {
					t.Errorf("%s: <%s %s=%q> leads out of the console", name, element[0], attr, value)
				}
			}
		}
		if _, inline := attrs["src"]; element[0] == "script" && !inline {
			t.Errorf("%s has an inline script", name)
		}
		switch element[0] {
		case "iframe", "object", "embed", "base":
			t.Errorf("%s has an element %s", name, element[0])
		}
	}
	if name != "news" && seen < 15 {
		t.Errorf("%s: only %d elements were read", name, seen)
	}
}

var address = regexp.MustCompile(`(?i)(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}`)

func TestAssetsAreKeptForEverAndLoadNothingForeign(t *testing.T) {
	t.Parallel()
	w := setup(t)
	page := w.browser().get("/admin/login").Body.String()
	found := 0
	for _, m := range regexp.MustCompile(`(?:href|src)="(/admin/static/([0-9a-f]{12})/([a-z.]+))"`).FindAllStringSubmatch(page, -1) {
		found++
		rec := w.browser().get(m[1])
		want := map[string]string{
			".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
		}[filepath.Ext(m[3])]
		if rec.Code != http.StatusOK || rec.Header().Get("Content-Type") != want || rec.Header().Get("Cache-Control") != "public, max-age=31536000, immutable" ||
			rec.Header().Get("X-Content-Type-Options") != "nosniff" || rec.Header().Get("Set-Cookie") != "" {
			t.Errorf("%s = %d %v, want %s", m[1], rec.Code, rec.Header(), want)
		}
		file, err := os.ReadFile(filepath.Join("static", m[3]))
		if err != nil || rec.Body.String() != string(file) {
			t.Errorf("%s is not the file: %v", m[1], err)
		}
		if rec := w.browser().send(http.MethodHead, m[1], ""); rec.Code != http.StatusOK || rec.Header().Get("Content-Type") != want {
			t.Errorf("HEAD %s = %d", m[1], rec.Code)
		}
		for _, link := range address.FindAllString(rec.Body.String(), -1) {
			if !strings.HasPrefix(link, "http://www.w3.org") {
				t.Errorf("%s names %s", m[1], link)
			}
		}
		for _, other := range []string{strings.Replace(m[1], m[2], "000000000000", 1), m[1] + "x", strings.Replace(m[1], m[3], "..%2fadmin.go", 1), "/admin/static/" + m[2] + "/"} {
			if rec := w.browser().get(other); rec.Code == http.StatusOK || strings.Contains(rec.Header().Get("Cache-Control"), "immutable") {
				t.Errorf("%s = %d, Cache-Control %s", other, rec.Code, rec.Header().Get("Cache-Control"))
			}
		}
	}
	files, err := os.ReadDir("static")
	if err != nil || found < len(files) {
		t.Errorf("pages load %d files of %d: %v", found, len(files), err)
	}
	for _, link := range address.FindAllString(page, -1) {
		t.Errorf("the login page names %s", link)
	}
}
