package app_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// newSite serves pages by their path, each as a whole document with a policy like
// the console's.
func newSite(t *testing.T, pages map[string]string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, found := pages[r.URL.Path]
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'self'; img-src * data:; script-src 'self' 'sha256-none' 'nonce-n'")
		if !found {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprintf(w, "<!doctype html><html lang=en><title>t</title><link rel=icon href=data:,><body>%s", body) //nolint:errcheck // the browser left
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func TestBrowserReportsWhatAPageMustNotDo(t *testing.T) {
	t.Parallel()
	base := newSite(t, map[string]string{
		"/clean":     `<p>Hello</p><img alt="" src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">`,
		"/elsewhere": `<img alt="" src="http://elsewhere.invalid/pixel.gif">`,
		"/missing":   `<img alt="" src="/no-such.gif">`,
		"/inline":    `<script>window.ran = true</script>`,
		"/throws":    `<script nonce=n>null.x</script>`,
		"/logs":      `<script nonce=n>console.error("out of cheese")</script>`,
		"/violates":  `<p onclick="x()" style="color:red">x</p><script nonce=n>document.querySelector("p").click()</script>`, // some look at a handler when it is called
	})
	for path, faults := range map[string][]string{
		"/clean":     nil,
		"/elsewhere": {"left the origin: GET http://elsewhere.invalid/pixel.gif", "ERR_NAME_NOT_RESOLVED"},
		"/missing":   {"404 (Not Found) " + base + "/no-such.gif"},
		"/inline":    {"security: Executing inline script violates"},
		"/throws":    {"exception: Uncaught TypeError"},
		"/logs":      {"out of cheese"},
		"/violates":  {"security: Applying inline style", "security: Executing inline event handler"},
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			p := newPage(t, base, look{})
			p.open(path)
			for _, f := range faults {
				p.expect(f)
			}
			if eval[bool](p, "window.ran === true") {
				t.Error("an inline script ran")
			}
			p.settle()
		})
	}
}

func TestBrowserLooksAsAsked(t *testing.T) {
	t.Parallel()
	base := newSite(t, map[string]string{"/": `
		<a href="/form">a form</a> <input type=checkbox>
		<noscript>no scripts</noscript>`, "/form": `
		<form action="/sent"><input name=word value=old><button>Send</button></form>`, "/sent": "Sent"})
	for name, l := range map[string]look{
		"Portuguese in the dark on a phone": {lang: "pt-BR", dark: true, width: 360},
		"English":                           {},
		"without scripts":                   {noScript: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPage(t, base, l)
			if status := p.open("/"); status != http.StatusOK {
				t.Errorf("the page answers %d, want 200", status)
			}
			type seen struct {
				Languages string
				Dark      bool
				Width     int64
				Scripts   bool
			}
			want := seen{"en-US,en", l.dark, 1280, !l.noScript}
			if l.lang != "" {
				want.Languages, want.Width = "pt-BR,pt,en-US,en", l.width
			}
			got := eval[seen](p, `({languages: navigator.languages.join(), dark: matchMedia("(prefers-color-scheme: dark)").matches,
				width: innerWidth, scripts: !document.body.innerText.includes("no scripts")})`)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("what the page sees (-want +got):\n%s", diff)
			}
			p.press("[type=checkbox]")
			if !p.has("[type=checkbox]:checked") {
				t.Error("the box is not checked")
			}
			p.click("a")
			if status := p.submit("form", map[string]string{"word": "não"}); status != http.StatusOK || p.path() != "/sent?word=n%C3%A3o" {
				t.Errorf("after the form: %d at %s", status, p.path())
			}
			p.back()
			if p.path() != "/form" {
				t.Errorf("one page back is %s", p.path())
			}
			if status := p.open("/nowhere"); status != http.StatusNotFound {
				t.Errorf("a page that is not there answers %d, want 404", status)
			}
		})
	}
}

// newPlainSite serves one page without any policy: somebody else's.
func newPlainSite(t *testing.T, body string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, "<!doctype html><html lang=en><title>t</title><link rel=icon href=data:,><body>%s", body) //nolint:errcheck // the browser left
	}))
	t.Cleanup(server.Close)
	return server.URL
}
