package app_test

import (
	"net/http"
	"net/url"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/google/go-cmp/cmp"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

func TestBrowserShowsOthersThanAdminsTheListAndNoWayToDecide(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	dead := d.bury("custom.order", 1, nil)[0]
	for _, role := range []string{"viewer", "agent", "manager"} {
		d.addUser(role+"@example.com", role)
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			p := newPage(t, d.base, look{})
			p.mustBe(http.StatusOK, p.logIn(role+"@example.com", adminPassword))
			for path, shown := range map[string]string{"/admin/dlq": row(dead), "/admin/dlq/" + dead: "#deliveries"} {
				p.mustBe(http.StatusOK, p.open(path))
				p.find(shown)
				if p.has("[data-act=replay], [data-act=discard], [type=checkbox][name=id]") {
					t.Errorf("%s offers a decision", path)
				}
			}
			p.expect("403 (Forbidden)")
			for _, act := range []string{"replay", "discard"} {
				p.mustBe(http.StatusOK, p.open("/admin/dlq"))
				if status := p.post("/admin/dlq/"+act, url.Values{"id": {dead}, "reason": {"because"}}); status != http.StatusForbidden {
					t.Errorf("a post to %s is answered with %d, want 403", act, status)
				}
				if status := p.open("/admin/dlq/" + act + "?id=" + dead); status != http.StatusForbidden || p.has("form#confirm") {
					t.Errorf("%s is asked for with %d, want 403 and no form", act, status)
				}
			}
			if !d.deadIDs()[dead] || d.decisions() != 0 {
				t.Error("something was decided")
			}
		})
	}
}

func TestBrowserRefusesFormsThatAnotherSitePosts(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	dead := d.bury("custom.order", 1, nil)[0]
	fields := `<input name=id value="` + dead + `"><input name=reason value=r><input name=email value="` + adminEmail + `"><input name=password value="` + adminPassword + `">`
	for name, tt := range map[string]struct {
		path     string
		loggedIn bool
	}{
		"replay":  {"/admin/dlq/replay", true},
		"discard": {"/admin/dlq/discard", true},
		"log out": {"/admin/logout", true},
		"log in":  {"/admin/login", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			evil := newPlainSite(t, `<form method=post action="`+d.base+tt.path+`">`+fields+`<button>Win a prize</button></form>`)
			p := newPage(t, d.base, look{})
			if tt.loggedIn {
				p.mustBe(http.StatusOK, p.logIn(adminEmail, adminPassword))
			}
			p.mayReach(evil)
			p.mustBe(http.StatusOK, p.open(evil+"/"))
			p.mustBe(http.StatusForbidden, p.click("button"))
			p.open("/admin/")
			if in := p.has("#logout"); in != tt.loggedIn {
				t.Errorf("logged in = %v afterwards, want %v", in, tt.loggedIn)
			}
			if !d.deadIDs()[dead] || d.decisions() != 0 {
				t.Error("something was decided")
			}
		})
	}
}

func TestBrowserDecidesOnceHoweverOftenTheFormIsSent(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	dead := d.bury("custom.order", 4, nil)
	p := d.asAdmin(t, look{})
	colleague := d.asAdmin(t, look{})
	decide := func(p *page, act, id string) {
		p.mustBe(http.StatusOK, p.open("/admin/dlq/"+act+"?id="+id))
		p.fill("#confirm [name=reason]", "seen by a person")
	}

	d.hook.status.Store(http.StatusOK)
	decide(p, "replay", dead[0])
	decide(colleague, "replay", dead[0])
	p.mustBe(http.StatusOK, p.click("#confirm button"))
	first := p.text("#flash")
	colleague.mustBe(http.StatusOK, colleague.click("#confirm button"))
	if second := colleague.text("#flash"); second == first {
		t.Errorf("the second time the page says the same: %q", second)
	}
	if p.reload(); p.has("#flash") {
		t.Error("the message is shown again")
	}
	p.back()
	p.mustBeAt("/admin/dlq/replay?id=" + dead[0])
	if p.has("#confirm button") {
		t.Error("a page with nothing left to decide has a button that decides")
	}

	decide(p, "discard", dead[1])
	act(p, "click twice", chromedp.DoubleClick(chromedp.CSS("#confirm button")))
	p.arriveAt("/admin/dlq")

	for _, id := range dead[:2] {
		if n := d.count("select count(*) from audit_log where resource_id = $1", id); n != 1 {
			t.Errorf("%d decisions about a delivery are audited, want 1", n)
		}
	}
	left := d.deadIDs()
	if left[dead[0]] || left[dead[1]] || !left[dead[2]] || !left[dead[3]] {
		t.Errorf("dead are %v, want the last two of %v", left, dead)
	}

	// Discarding needs a reason, and a browser that does not insist is told so.
	p.mustBe(http.StatusOK, p.open("/admin/dlq/discard?id="+dead[2]))
	eval[bool](p, `document.querySelector("#confirm").noValidate = true`)
	p.mustBe(http.StatusUnprocessableEntity, p.click("#confirm button"))
	p.find("[role=alert]")
	p.mustBe(http.StatusOK, p.submit("form#confirm", map[string]string{"reason": "a test order"}))
	if d.deadIDs()[dead[2]] {
		t.Error("the delivery is still dead")
	}
}

// arriveAt waits until the tab is at a page.
func (p *page) arriveAt(path string) {
	p.Helper()
	dbtest.Eventually(p.T, "the tab is at "+path, func() bool { return p.place() == path })
	p.settle()
}

func TestBrowserKeepsTheFilterInTheAddressThroughPagesAndDecisions(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.buryMany("custom.noise", 2)
	d.buryMany("custom.order", 53)
	p := d.asAdmin(t, look{})

	p.mustBe(http.StatusOK, p.open("/admin/dlq"))
	p.mustBe(http.StatusOK, p.submit("form#filter", map[string]string{"event_type": "custom.order"}))
	p.filtered("event_type", "custom.order")
	if value := eval[string](p, `document.querySelector("#filter [name=event_type]").value`); value != "custom.order" {
		t.Errorf("the form shows %q", value)
	}
	top := p.attributes("#dead tr[data-delivery]", "data-delivery")
	if len(top) != 50 {
		t.Fatalf("the first page has %d rows, want 50", len(top))
	}
	p.mustBe(http.StatusOK, p.click("a[rel=next]"))
	p.filtered("event_type", "custom.order")
	rest := p.attributes("#dead tr[data-delivery]", "data-delivery")
	if len(rest) != 3 || slices.Contains(top, rest[0]) || p.has("a[rel=next]") {
		t.Fatalf("the second page has %d rows, want the last 3", len(rest))
	}
	second := p.path()

	p.mustBe(http.StatusOK, p.click(row(rest[0])+" a[data-act=discard]"))
	p.mustBe(http.StatusOK, p.submit("form#confirm", map[string]string{"reason": "a test order"}))
	p.find("#flash")
	if p.path() != second {
		t.Errorf("after a decision the tab is at %s, want the page it came from: %s", p.path(), second)
	}
	if diff := cmp.Diff(rest[1:], p.attributes("#dead tr[data-delivery]", "data-delivery")); diff != "" {
		t.Errorf("rows after a decision (-want +got):\n%s", diff)
	}

	for _, id := range rest[1:] {
		p.press(row(id) + " [name=id]")
	}
	p.mustBe(http.StatusOK, p.click("#selection button[data-act=discard]"))
	p.mustBe(http.StatusOK, p.submit("form#confirm", map[string]string{"reason": "test orders"}))
	p.filtered("event_type", "custom.order")
	p.find("#empty")

	p.mustBe(http.StatusOK, p.open("/admin/dlq"))
	p.mustBe(http.StatusOK, p.click("#selection button[data-act=replay]")) // nothing is chosen
	p.mustBeAt("/admin/dlq")
	p.find("#flash")
	for name, value := range map[string]string{
		"consumer": "webhook-dispatch-worker", "entity_kind": "order", "since": "2020-01-01T00:00", "until": "2999-01-01T00:00",
	} {
		p.mustBe(http.StatusOK, p.open("/admin/dlq?"+url.Values{name: {value}}.Encode()))
		if len(p.attributes("#dead tr[data-delivery]", "data-delivery")) != 50 {
			t.Errorf("the filter %s=%s leaves something out", name, value)
		}
	}
	for name, value := range map[string]string{
		"consumer": "another-worker", "entity_kind": "lead", "since": "2999-01-01T00:00", "until": "2020-01-01T00:00", "event_type": "custom.other",
	} {
		p.mustBe(http.StatusOK, p.open("/admin/dlq?"+url.Values{name: {value}}.Encode()))
		if !p.has("#empty") {
			t.Errorf("the filter %s=%s leaves something in", name, value)
		}
	}
}

// filtered proves that a filter stands in the address.
func (p *page) filtered(name, want string) {
	p.Helper()
	u, err := url.Parse(p.path())
	if err != nil || u.Path != "/admin/dlq" || u.Query().Get(name) != want {
		p.Errorf("the tab is at %s, want the list with %s=%s", p.path(), name, want)
	}
}
