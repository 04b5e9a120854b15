package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	protocol "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// act runs one action in the tab; the test ends when it fails.
func act[T any](p *page, what string, a chromedp.Action[T]) T {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, hangs)
	defer cancel()
	v, err := chromedp.Run(ctx, a)
	if err != nil {
		p.Fatalf("%s at %s: %v", what, p.path(), err)
	}
	return v
}

// send sends a command of the browser's protocol to the tab.
func send[P, R any](p *page, command cdp.Command[P, R], params P) R {
	p.Helper()
	v, err := chromedp.Call(p.ctx, command, params)
	if err != nil {
		p.Fatalf("%T: %v", params, err)
	}
	return v
}

// eval runs a script in the tab. Neither a page's policy nor a browser without
// scripts stops it. Arguments replace %s in the script as literals.
func eval[T any](p *page, script string, args ...any) T {
	p.Helper()
	literals := make([]any, len(args))
	for i, arg := range args {
		text, err := json.Marshal(arg)
		if err != nil {
			p.Fatal(err)
		}
		literals[i] = string(text)
	}
	return act(p, script, chromedp.Evaluate[T](fmt.Sprintf(script, literals...), chromedp.EvalAwaitPromise))
}

// open goes to an address, typed by hand, and returns the status. One without a
// host is of the server.
func (p *page) open(address string) int {
	p.Helper()
	if strings.HasPrefix(address, "/") {
		address = p.base + address
	}
	return p.status("open "+address, chromedp.NavigateResponse(address))
}

// reload loads the page again.
func (p *page) reload() int {
	p.Helper()
	return p.leads("reload", chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := chromedp.Evaluate[chromedp.Void]("location.reload()")(ctx, t)
		return err
	}))
}

// back presses the browser's back button.
func (p *page) back() {
	p.Helper()
	history := act(p, "read the history", chromedp.NavigationEntries())
	before := history.Entries[history.CurrentIndex-1]
	send(p, protocol.NavigateToHistoryEntry, protocol.NavigateToHistoryEntryParams{EntryID: before.ID})
	// A page that the browser has kept comes back without a load to wait for.
	dbtest.Eventually(p.T, "the page before is back", func() bool {
		now, err := chromedp.Run(p.ctx, chromedp.NavigationEntries()) // fails while pages change places
		return err == nil && now.CurrentIndex == history.CurrentIndex-1
	})
	p.settle()
}

// click clicks on what leads to another page and returns the status of that.
func (p *page) click(selector string) int {
	p.Helper()
	p.find(selector)
	return p.leads("click "+selector, chromedp.Click(chromedp.CSS(selector)))
}

// press clicks on what leads nowhere, such as a checkbox.
func (p *page) press(selector string) {
	p.Helper()
	p.find(selector)
	act(p, "press "+selector, chromedp.Click(chromedp.CSS(selector)))
}

// submit fills in fields of a form, by their names, and sends it as a person
// would. It returns the status of the page that follows.
func (p *page) submit(form string, fields map[string]string) int {
	p.Helper()
	for name, value := range fields {
		p.fill(fmt.Sprintf("%s [name=%q]", form, name), value)
	}
	return p.click(form + " button:not([type=button])")
}

// fill types into a field, in place of what is there.
func (p *page) fill(selector, text string) {
	p.Helper()
	p.find(selector)
	if eval[bool](p, `(() => {
		const field = document.querySelector(%s), value = %s;
		field.focus();
		if (field.matches("textarea, input:not([type^=date])")) { field.select(); return true }
		field.value = value;
		field.dispatchEvent(new Event("change", {bubbles: true}));
		return false
	})()`, selector, text) {
		send(p, input.InsertText, input.InsertTextParams{Text: text})
	}
}

func (p *page) leads(what string, step chromedp.Action[chromedp.Void]) int {
	p.Helper()
	return p.status(what, func(ctx context.Context, _ *chromedp.Target) (*network.Response, error) {
		return chromedp.RunResponse(ctx, step)
	})
}

func (p *page) status(what string, a chromedp.Action[*network.Response]) int {
	p.Helper()
	res := act(p, what, a)
	if res == nil {
		p.Fatalf("%s: no page followed", what)
	}
	return int(res.Status)
}

// find ends the test when nothing on the page matches.
func (p *page) find(selector string) {
	p.Helper()
	if !p.has(selector) {
		p.Fatalf("nothing matches %s at %s, which says:\n%s", selector, p.path(), p.text("body"))
	}
}

func (p *page) has(selector string) bool {
	p.Helper()
	return eval[bool](p, `document.querySelector(%s) !== null`, selector)
}

// text is what a person reads in the first match.
func (p *page) text(selector string) string {
	p.Helper()
	if selector != "body" {
		p.find(selector)
	}
	return eval[string](p, `document.querySelector(%s).innerText`, selector)
}

// attribute is an attribute of the first match.
func (p *page) attribute(selector, name string) string {
	p.Helper()
	p.find(selector)
	return eval[string](p, `document.querySelector(%s).getAttribute(%s) ?? ""`, selector, name)
}

// attributes are an attribute of all matches.
func (p *page) attributes(selector, name string) []string {
	p.Helper()
	return eval[[]string](p, `Array.from(document.querySelectorAll(%s), e => e.getAttribute(%s) ?? "")`, selector, name)
}

// path is where the tab is, without the server's origin.
func (p *page) path() string {
	p.Helper()
	var address string
	if a, err := chromedp.Run(p.ctx, chromedp.Location()); err == nil {
		address = a
	}
	return strings.TrimPrefix(address, p.base)
}

// place is the path without the organization, which the address of who may look at
// several always names.
func (p *page) place() string {
	p.Helper()
	path, query, _ := strings.Cut(p.path(), "?")
	kept := slices.DeleteFunc(strings.Split(query, "&"), func(s string) bool { return s == "" || strings.HasPrefix(s, "organization=") })
	if len(kept) == 0 {
		return path
	}
	return path + "?" + strings.Join(kept, "&")
}

// settle waits until the page and what it asked for are loaded, also when another
// page is just taking its place.
func (p *page) settle() {
	p.Helper()
	dbtest.Eventually(p.T, "the page is loaded", func() bool {
		state, err := chromedp.Run(p.ctx, chromedp.Evaluate[string]("document.readyState"))
		return err == nil && state == "complete"
	})
}

// mustBe ends the test when a page has another status than it has to.
func (p *page) mustBe(want, got int) {
	p.Helper()
	if got != want {
		p.Fatalf("%s answers %d, want %d:\n%s", p.path(), got, want, p.text("body"))
	}
}

// mustBeAt ends the test when the tab is at another place.
func (p *page) mustBeAt(path string) {
	p.Helper()
	if got := p.place(); got != path {
		p.Fatalf("the tab is at %s, want %s:\n%s", got, path, p.text("body"))
	}
}

// says fails the test when the first match reads otherwise.
func (p *page) says(selector, want string) {
	p.Helper()
	if got := p.text(selector); got != want {
		p.Errorf("%s says %q, want %q", selector, got, want)
	}
}
