package app_test

import (
	"cmp"
	_ "embed"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

//go:embed testdata/axe.min.js
var axeScript string

var screenshots = flag.String("screenshots", "", "write pictures of the console's pages into this `folder`")

// Words without a place to break them, as ids, addresses and errors are.
var (
	longWord  = strings.Repeat("x", 190)
	longError = "dial tcp: " + strings.Repeat("connection-refused-", 40)
)

// Every page can be used by everybody: axe finds nothing serious, in either theme
// and language, and nothing makes a phone scroll sideways, however long.
func TestBrowserPagesAreAccessibleAndFitEveryScreen(t *testing.T) {
	t.Parallel()
	for _, lang := range []string{"pt-BR", "en"} {
		t.Run(lang, func(t *testing.T) {
			t.Parallel()
			in := onShared(t, consoleEnv...)
			d := &desk{process: in.serve(), hook: newReceiver(t)}
			p := &tour{page: newPage(t, d.base, look{lang: lang}), lang: lang}

			p.stop("setup-void", http.StatusNotFound, p.open("/admin/setup?token=x"))
			p.stop("setup", http.StatusOK, p.open(d.setupLink()))
			p.stop("setup-done", http.StatusOK, p.submit("form#setup", map[string]string{
				"organization": longWord, "email": adminEmail, "password": adminPassword,
			}))
			d.token = p.text("#api-token")
			p.stop("setup-used", http.StatusNotFound, p.open(d.setupLink()))
			p.stop("overview-empty", http.StatusOK, p.open("/admin/"))
			p.stop("dlq-empty", http.StatusOK, p.open("/admin/dlq"))
			p.stop("login", http.StatusOK, p.click("#logout button"))
			p.stop("login-error", http.StatusUnauthorized, p.logIn("bia@example.com", "not the password"))
			p.mustBe(http.StatusOK, p.logIn(adminEmail, adminPassword))

			id, event := p.fill(d)
			p.stop("overview", http.StatusOK, p.open("/admin/"))
			p.stop("organizations", http.StatusOK, p.open("/admin/?organization=all"))
			p.stop("dlq", http.StatusOK, p.open("/admin/dlq"))
			p.stop("dlq-everywhere", http.StatusOK, p.open("/admin/dlq?organization=all"))
			p.stop("dlq-bad-filter", http.StatusBadRequest, p.open("/admin/dlq?since=yesterday"))
			p.stop("delivery", http.StatusOK, p.open("/admin/dlq/"+id+"?reveal=1"))
			p.stop("event", http.StatusOK, p.open("/admin/events/"+event+"?reveal=1"))
			p.stop("replay", http.StatusOK, p.open("/admin/dlq/replay?id="+id))
			p.stop("discard", http.StatusOK, p.open("/admin/dlq/discard?id="+id))
			p.stop("discarded", http.StatusOK, p.submit("form#confirm", map[string]string{"reason": longError[:400]}))
			p.stop("delivery-decided", http.StatusOK, p.open("/admin/dlq/"+id))
			p.stop("not-found", http.StatusNotFound, p.open("/admin/"+longWord))
			p.click("#logout button")
			p.mustBe(http.StatusOK, p.logIn("caio@example.com", adminPassword))
			p.stop("forbidden", http.StatusForbidden, p.open("/admin/dlq/replay?id="+id))
			p.stop("dlq-viewer", http.StatusOK, p.open("/admin/dlq"))
		})
	}
}

// tour walks through the pages.
type tour struct {
	*page
	lang string
}

// fill makes an installation that has seen much: of each kind of row some, with
// the longest texts. It returns a dead delivery and its event.
func (p *tour) fill(d *desk) (delivery, event string) {
	p.Helper()
	d.org = d.ask("select id::text from organizations")
	d.subscribe(d.hook.URL)
	for range 3 {
		event := d.emit("custom.order_paid", map[string]any{"total": 12990})
		dbtest.Eventually(p.T, "an event is done", func() bool { return d.eventStatus(event) == "done" })
	}
	d.hook.status.Store(http.StatusUnprocessableEntity)
	d.subscribe(newRefuser(p.T, longError) + "/" + longWord)
	d.bury("custom."+longWord[:50], 2, map[string]any{longWord: longError, "contact": map[string]any{"phone_number": "+5511900000101"}})
	dbtest.Eventually(p.T, "both have died for both", func() bool { return len(d.deadIDs()) == 4 })
	delivery = d.ask("select max(delivery_id::text) from dead_delivery join webhook_subscriptions s on s.id = destination where url like $1", "%"+longWord)
	d.sql("update dead_delivery set last_error = $1", longError)
	d.sql("update attempt set error = $1 where error is not null", longError)
	d.addUser("caio@example.com", "viewer")
	return delivery, d.ask("select event_id::text from dead_delivery where delivery_id = $1", delivery)
}

// stop looks at the page that is open, which has to have been answered with want,
// in all ways.
func (p *tour) stop(name string, want, got int) {
	p.Helper()
	p.mustBe(want, got)
	if lang := p.attribute("html", "lang"); lang != p.lang {
		p.Errorf("%s is in %q, want %q", name, lang, p.lang)
	}
	eval[bool](p.page, `document.querySelectorAll("details").forEach(d => d.open = true) ?? true`)
	act(p.page, "load axe", chromedp.Evaluate[chromedp.Void](axeScript))
	for i, l := range []look{{width: 1280}, {width: 360, dark: true}, {width: 1280, dark: true}, {width: 360}} {
		// The languages share the looks: every two of language, theme and width meet.
		if *screenshots == "" && (i < 2) != (p.lang == "en") {
			continue
		}
		l.lang = p.lang
		p.looks(l)
		if *screenshots != "" {
			p.picture(name, l)
		}
		if wide := eval[int64](p.page, `document.scrollingElement.scrollWidth`); wide > l.width {
			p.Errorf("%s (%s) is %d wide:%s", name, l, wide, strings.Join(eval[[]string](p.page, widestScript), "\n\t"))
		}
		for _, v := range eval[[]violation](p.page, violationsScript) {
			if v.Impact == "serious" || v.Impact == "critical" {
				p.Errorf("%s (%s): %s", name, l, v)
			} else {
				p.Logf("%s (%s): %s", name, l, v)
			}
		}
	}
}

// widestScript names the elements that stick out.
const widestScript = `Array.from(document.querySelectorAll("body *"))
	.filter(e => e.getBoundingClientRect().right > innerWidth)
	.map(e => e.tagName + "." + e.className + " " + Math.round(e.getBoundingClientRect().right) + ": " + e.innerText.slice(0, 40)).slice(0, 8)`

// violation is a rule that a page breaks.
type violation struct{ ID, Impact, Help, Nodes string }

func (v violation) String() string {
	return cmp.Or(v.Impact, "minor") + " " + v.ID + ": " + v.Help + "\n\t" + v.Nodes
}

const violationsScript = `axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v => ({
	id: v.id, impact: v.impact ?? "", help: v.help,
	nodes: v.nodes.map(n => n.target.join(" ") + " " + n.any.concat(n.all, n.none).map(c => c.message).join("; ")).join("\n\t"),
})))`

// picture keeps how the whole page looks.
func (p *tour) picture(name string, l look) {
	p.Helper()
	const best = 100
	png := act(p.page, "take a picture", chromedp.FullScreenshot(best))
	if err := os.MkdirAll(*screenshots, 0o755); err != nil { //nolint:gosec // pictures for everybody
		p.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, name+"-"+l.String()+".png"), png, 0o600); err != nil {
		p.Fatal(err)
	}
}
