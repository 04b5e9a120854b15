package admin_test

import (
	"html"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db"
)

func TestADecisionIsCarriedOutOnce(t *testing.T) {
	t.Parallel()
	for act, tt := range map[string]struct{ state, action, once, many, twice string }{
		"replay": {
			"replayed, 1 pending", "delivery.replayed", "1 delivery is being tried again.", "50 deliveries are being tried again.",
			"1 was left as it is: it is not dead any more, or its destination is gone.",
		},
		"discard": {
			"discarded, 0 pending", "delivery.discarded", "1 delivery was discarded.", "50 deliveries were discarded.",
			"1 was left as it is: it is not dead any more, or its destination is gone.",
		},
	} {
		t.Run(act, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			ids := w.bury(52)
			email := w.person(db.RoleAdmin)
			b := w.as(email)
			path := "/admin/dlq/" + act
			decide := func(want string, ids []uuid.UUID) {
				t.Helper()
				rec := b.post(path, idForm(ids, "reason", "a test"))
				if got := rec.Header().Get("Location"); rec.Code != http.StatusSeeOther || got != "/admin/dlq" {
					t.Errorf("%s of %d = %d to %s, want 303 to the list", act, len(ids), rec.Code, got)
				}
				if got := b.flash("/admin/dlq"); got != want {
					t.Errorf("%s of %d: %q, want %q", act, len(ids), got, want)
				}
				if got := b.flash("/admin/dlq"); got != "" {
					t.Errorf("the next page says it again: %q", got)
				}
			}
			decide(tt.once, ids[:1])
			decide(tt.twice, ids[:1])
			if rec := b.post(path, idForm(ids[1:], "reason", "a test")); rec.Code != http.StatusBadRequest || w.state(ids[1]) != "dead, 0 pending" {
				t.Errorf("%s of 51 = %d, and the first is %s", act, rec.Code, w.state(ids[1]))
			}
			if rec := b.get(path + "?" + idForm(ids[1:]).Encode()); rec.Code != http.StatusBadRequest {
				t.Errorf("the question about 51 = %d, want 400", rec.Code)
			}
			decide(tt.many, ids[1:51])
			decide("Choose at least one delivery.", nil)
			for i, id := range ids {
				want := tt.state
				if i == 51 {
					want = "dead, 0 pending"
				}
				if got := w.state(id); got != want {
					t.Errorf("delivery %d is %s, want %s", i, got, want)
				}
				if n := w.count("from audit_log where action = $1 and resource_id = $2 and actor_name = $3 and metadata ->> 'reason' = 'a test'",
					tt.action, id, email); (n != 1) != (i == 51) {
					t.Errorf("delivery %d has %d rows of audit", i, n)
				}
			}
		})
	}
}

func TestOneOfTwentyWins(t *testing.T) {
	t.Parallel()
	w := setup(t)
	id := w.bury(1)
	browsers := make([]*browser, 20)
	for i := range browsers {
		browsers[i] = w.as(w.person(db.RoleAdmin))
	}
	var wg sync.WaitGroup
	codes := make([]int, len(browsers))
	for i, b := range browsers {
		wg.Go(func() {
			path := []string{"/admin/dlq/replay", "/admin/dlq/discard"}[i%2]
			codes[i] = b.post(path, idForm(id, "reason", "a race")).Code
		})
	}
	wg.Wait()
	won := 0
	for i, b := range browsers {
		flash := b.flash("/admin/dlq")
		if !strings.Contains(flash, "left as it is") {
			won++
		}
		if codes[i] != http.StatusSeeOther || flash == "" {
			t.Errorf("browser %d = %d %q", i, codes[i], flash)
		}
	}
	if n := w.count("from audit_log where organization_id = $1 and action like 'delivery.%'", w.org); won != 1 || n != 1 {
		t.Errorf("%d were told that they won and %d are audited, want 1", won, n)
	}
	if got := w.state(id[0]); got != "replayed, 1 pending" && got != "discarded, 0 pending" {
		t.Errorf("the delivery is %s", got)
	}
}

func TestADecisionKeepsToItsRuleOfReasons(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := w.as(w.person(db.RoleAdmin))
	for name, tt := range map[string]struct {
		act, reason string
		done        bool
	}{
		"replay without":                       {"replay", "", true},
		"replay with one":                      {"replay", "repaired", true},
		"replay with too long a one":           {"replay", strings.Repeat("x", 501), false},
		"discard without":                      {"discard", "", false},
		"discard with blanks":                  {"discard", " \r\n\t ", false},
		"discard with 500 characters":          {"discard", strings.Repeat("ç", 500), true},
		"discard with 501 characters":          {"discard", strings.Repeat("ç", 501), false},
		"discard with what is no text":         {"discard", "a\xff", false},
		"discard with a NUL":                   {"discard", "a\x00b", false},
		"discard with markup, which is a text": {"discard", "<b>&\"'", true},
	} {
		id := w.bury(1)
		rec := b.post("/admin/dlq/"+tt.act, idForm(id, "reason", tt.reason, "back", "event_type=custom.console"))
		want, state := http.StatusUnprocessableEntity, w.state(id[0])
		if tt.done {
			want = http.StatusSeeOther
		}
		if rec.Code != want || (state == "dead, 0 pending") == tt.done {
			t.Errorf("%s = %d and the delivery is %s, want %d", name, rec.Code, state, want)
		}
		if page := rec.Body.String(); !tt.done && (!strings.Contains(textOf(page), "A reason of 1 to 500 characters is required.") ||
			!strings.Contains(page, id[0].String()) || !strings.Contains(page, `name="back" value="event_type=custom.console"`) ||
			len(tt.reason) > 2 && tt.reason[0] == 'x' && !strings.Contains(page, tt.reason)) {
			t.Errorf("%s: the page does not ask again: %s", name, textOf(page))
		}
	}
}

// What a person is led back to is the list as they had filtered it.
func TestADecisionLeadsBackToTheFilteredList(t *testing.T) {
	t.Parallel()
	w := setup(t)
	email := w.platform(db.PlatformFull)
	b := w.as(email)
	filter := url.Values{"event_type": {"custom.console"}, "entity_kind": {"a b&c=d"}, "since": {"2026-07-04T10:20"}, "before": {"mk2_" + uuid.NewString()}}
	ids := w.bury(2, func(_ int, d *dead) { d.kind = filter.Get("entity_kind") })
	filter.Del("before")
	filter.Set("since", "2020-01-01T00:00")
	for _, org := range []string{w.org.String(), "all"} {
		id := ids[0]
		ids = ids[1:]
		list := b.get("/admin/dlq?organization=" + org + "&" + filter.Encode()).Body.String()
		href := regexp.MustCompile(`data-act="discard" href="([^"]*)"`).FindStringSubmatch(list)
		if href == nil {
			t.Fatalf("no button in the list of %s: %s", org, textOf(list))
		}
		page := b.get(html.UnescapeString(href[1])).Body.String()
		form := url.Values{}
		for _, input := range regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)"`).FindAllStringSubmatch(page, -1) {
			form.Add(input[1], html.UnescapeString(input[2]))
		}
		if !slices.Contains(form["id"], id.String()) {
			t.Fatalf("the page asks about %v, want %s", form["id"], id)
		}
		form.Set("reason", "a test")
		rec := b.post("/admin/dlq/discard", form)
		back, err := url.Parse(rec.Header().Get("Location"))
		if err != nil || rec.Code != http.StatusSeeOther {
			t.Fatalf("discard = %d %v", rec.Code, err)
		}
		want := url.Values{"organization": {org}}
		maps.Copy(want, filter)
		if got := back.Query().Encode(); back.Path != "/admin/dlq" || got != want.Encode() || w.state(id) != "discarded, 0 pending" {
			t.Errorf("led to %s, want the list with %s; the delivery is %s", back, want.Encode(), w.state(id))
		}
	}
}

func TestHostileFieldsNeverLeadOutOfTheSite(t *testing.T) {
	t.Parallel()
	w := setup(t)
	email := w.person(db.RoleAdmin)
	b := w.as(email)
	hostile := []string{
		"https://evil.example/", "//evil.example", "\\\\evil.example", "/\\evil.example", "javascript:alert(1)", "?x=//evil.example", "a=b\r\nSet-Cookie: x=y",
		"organization=all", "\x00", "%zz;", "event_type=//evil.example", `"><script>alert(1)</script>`, "back=https://evil.example", "before=//evil.example",
	}
	safe := func(what string, location string) {
		t.Helper()
		u, err := url.Parse(location)
		if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(location, "/admin/") || strings.ContainsAny(location, "\\\r\n") {
			t.Errorf("%s leads to %q", what, location)
		}
	}
	for _, value := range hostile {
		for _, act := range []string{"replay", "discard"} {
			id := w.bury(1)
			page := b.get("/admin/dlq/" + act + "?" + url.Values{"id": {id[0].String()}, "back": {value}, "next": {value}}.Encode())
			if page.Code != http.StatusOK || strings.Contains(page.Body.String(), "<script>alert") || strings.Contains(page.Body.String(), `href="https:`) {
				t.Errorf("the question before %s with back %q = %d", act, value, page.Code)
			}
			rec := b.post("/admin/dlq/"+act, idForm(id, "reason", "x", "back", value, "next", value))
			if rec.Code != http.StatusSeeOther {
				t.Errorf("%s with back %q = %d", act, value, rec.Code)
			}
			safe(act+" with back "+value, rec.Header().Get("Location"))
			rec = b.post("/admin/dlq/"+act, idForm(nil, "back", value))
			safe(act+" of nothing with back "+value, rec.Header().Get("Location"))
			rec = b.post("/admin/dlq/"+act, idForm(id, "reason", "x", "organization", value))
			if rec.Code != http.StatusBadRequest && rec.Code != http.StatusNotFound || strings.Contains(rec.Body.String(), "<script>alert") {
				t.Errorf("%s with organization %q = %d", act, value, rec.Code)
			}
		}
		rec := w.browser().post("/admin/login", url.Values{"email": {email}, "password": {password}, "next": {value}})
		if rec.Code != http.StatusSeeOther {
			t.Errorf("login with next %q = %d", value, rec.Code)
		}
		safe("login with next "+value, rec.Header().Get("Location"))
		if rec := b.get("/admin/login?" + url.Values{"next": {value}}.Encode()); rec.Code == http.StatusSeeOther {
			safe("login of who is logged in with next "+value, rec.Header().Get("Location"))
		}
		if rec := w.browser().get("/admin/login?" + url.Values{"next": {value}}.Encode()); strings.Contains(rec.Body.String(), "<script>alert") {
			t.Errorf("the login page prints next %q as markup", value)
		}
		for _, name := range []string{"event_type", "entity_kind", "consumer", "since", "until", "before", "after", "reveal"} {
			for _, path := range []string{"/admin/dlq", "/admin/dlq/news"} {
				rec := b.get(path + "?" + url.Values{name: {value}}.Encode())
				if rec.Code != http.StatusOK && rec.Code != http.StatusBadRequest || strings.Contains(rec.Body.String(), "<script>alert") {
					t.Errorf("%s with %s %q = %d", path, name, value, rec.Code)
				}
			}
		}
	}
	if strings.Contains(w.log.String(), "level=ERROR") {
		t.Errorf("an error was logged: %s", w.log)
	}
}

func TestAnotherSitesFormChangesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	email := w.person(db.RoleAdmin)
	b := w.as(email)
	for name, headers := range map[string][]string{
		"says the browser":           {"Sec-Fetch-Site", "cross-site"},
		"of the same domain":         {"Sec-Fetch-Site", "same-site"},
		"says an old browser":        {"Sec-Fetch-Site", "", "Origin", "https://evil.example"},
		"of another port":            {"Sec-Fetch-Site", "", "Origin", site + ":81"},
		"of no origin":               {"Sec-Fetch-Site", "", "Origin", "null"},
		"that lies about its origin": {"Sec-Fetch-Site", "cross-site", "Origin", site},
	} {
		id := w.bury(1)
		sessions := w.count("from sessions")
		for path, form := range map[string]url.Values{
			"/admin/dlq/replay":  idForm(id),
			"/admin/dlq/discard": idForm(id, "reason", "forged"),
			"/admin/logout":      nil,
			"/admin/login":       {"email": {email}, "password": {password}},
			"/admin/setup":       {"token": {"x"}},
			"/admin/dlq":         nil,
		} {
			rec := b.post(path, form, headers...)
			if rec.Code != http.StatusForbidden || !strings.Contains(textOf(rec.Body.String()), "came from another site") || rec.Header().Get("Set-Cookie") != "" {
				t.Errorf("a form %s to %s = %d %s, want 403", name, path, rec.Code, textOf(rec.Body.String()))
			}
		}
		if got := w.state(id[0]); got != "dead, 0 pending" {
			t.Errorf("a form %s left the delivery %s", name, got)
		}
		if rec := b.get("/admin/dlq"); rec.Code != http.StatusOK {
			t.Errorf("a form %s ended the session: %d", name, rec.Code)
		}
		if now := w.count("from sessions"); now < sessions {
			t.Errorf("a form %s: %d sessions of %d are left", name, now, sessions)
		}
	}
	// What no browser sends: a program with a cookie that it was given.
	if rec := b.post("/admin/logout", nil, "Sec-Fetch-Site", "", "Origin", ""); rec.Code != http.StatusSeeOther {
		t.Errorf("a post without any origin = %d, want 303", rec.Code)
	}
}

func TestAFormThatCannotBeReadIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := w.as(w.person(db.RoleAdmin))
	id := w.bury(1)[0]
	const form = "application/x-www-form-urlencoded"
	for name, tt := range map[string]struct {
		body string
		want int
	}{
		"too large":         {"id=" + id.String() + "&reason=" + strings.Repeat("x", 64<<10), http.StatusRequestEntityTooLarge},
		"a broken escape":   {"id=" + id.String() + "&reason=%zz", http.StatusBadRequest},
		"a semicolon":       {"id=" + id.String() + ";reason=x", http.StatusBadRequest},
		"an id that is not": {"id=x&reason=x", http.StatusBadRequest},
	} {
		for _, path := range []string{"/admin/dlq/discard", "/admin/dlq/replay", "/admin/login", "/admin/setup"} {
			want := tt.want
			if name == "an id that is not" && (path == "/admin/login" || path == "/admin/setup") {
				continue
			}
			if rec := b.send(http.MethodPost, path, tt.body, "Content-Type", form); rec.Code != want {
				t.Errorf("%s: POST %s = %d, want %d", name, path, rec.Code, want)
			}
		}
	}
	if got := w.state(id); got != "dead, 0 pending" {
		t.Errorf("the delivery is %s", got)
	}
	if strings.Contains(w.log.String(), "level=ERROR") {
		t.Errorf("an error was logged: %s", w.log)
	}
}

func TestTheNewsCountWhatHasDiedSince(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := w.as(w.person(db.RoleViewer))
	ask := func(page string) string {
		t.Helper()
		news := regexp.MustCompile(`id="news"[^>]*data-hx-get="([^"]*)"`).FindStringSubmatch(page)
		if news == nil {
			t.Fatalf("the page does not ask for news: %s", textOf(page))
		}
		rec := b.get(html.UnescapeString(news[1]), "HX-Request", "true")
		if rec.Code != http.StatusOK {
			t.Fatalf("news = %d", rec.Code)
		}
		return html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(rec.Body.String(), ""))
	}
	empty := b.get("/admin/dlq").Body.String()
	if got := ask(empty); strings.TrimSpace(got) != "" {
		t.Errorf("news of nothing: %q", got)
	}
	w.bury(3, func(i int, d *dead) { d.typ = "custom.t" + strconv.Itoa(i) })
	if got := ask(empty); got != "3 more died since. Show them" {
		t.Errorf("news of three: %q", got)
	}
	page, filtered := b.get("/admin/dlq").Body.String(), b.get("/admin/dlq?event_type=custom.t0").Body.String()
	if got := ask(page) + ask(filtered); strings.TrimSpace(got) != "" {
		t.Errorf("news of what is shown: %q", got)
	}
	w.bury(1, func(_ int, d *dead) { d.typ, d.ago = "custom.t1", 0 })
	if got := ask(page); got != "1 more died since. Show it" {
		t.Errorf("news of one: %q", got)
	}
	if got := ask(filtered); strings.TrimSpace(got) != "" {
		t.Errorf("news of another type: %q", got)
	}
}

func TestAReplayFromTheConsoleIsDeliveredAgain(t *testing.T) {
	t.Parallel()
	w := setup(t)
	ids := w.bury(1)
	w.as(w.person(db.RoleAdmin)).post("/admin/dlq/replay", idForm(ids))
	n := w.count(`from delivery d join dead_delivery x on x.event_id = d.event_id and x.consumer_id = d.consumer_id
		where x.delivery_id = $1 and d.attempts = 0 and d.due_at <= clock_timestamp() and d.lease_token is null`, ids[0])
	if n != 1 {
		t.Errorf("%d deliveries are due with a fresh budget, want 1", n)
	}
}
