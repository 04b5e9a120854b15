package app_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// chromium is the one browser of a run of the tests. Each page has a context of
// its own in it, as private windows have: they share no cookie and no storage.
var chromium struct {
	*running
	once sync.Once
	err  error
}

// running is a browser that was started.
type running struct {
	ctx   context.Context
	agent string // what it calls itself
	stop  func() // waits until its directory is removed
}

// hangs bounds one step in a page: for a test that hangs, not an expectation.
const hangs = time.Minute

// browserContext starts the browser when a test needs it for the first time.
func browserContext(t *testing.T) context.Context {
	t.Helper()
	chromium.once.Do(func() { chromium.running, chromium.err = startBrowser() })
	if chromium.err != nil {
		t.Fatalf("start a browser, which .ci/deps test installs: %v", chromium.err)
	}
	return chromium.ctx
}

func startBrowser() (*running, error) {
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.DisableGPU,
		// Each window would have two more processes, made in advance or for its frame.
		chromedp.Flag("disable-features", "Translate,BlinkGenPropertyTrees,PreloadTopChromeWebUI,SpareRendererForSitePerProcess"),
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.Flag("disable-domain-reliability", true),
		chromedp.Flag("hide-scrollbars", true),
		chromedp.Flag("no-pings", true),
		// Nothing but this machine has an address.
		chromedp.Flag("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
	)
	if path := os.Getenv("CHROME"); path != "" {
		options = append(options, chromedp.ExecPath(path))
	}
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, _ := chromedp.NewContext(allocator)
	version, err := chromedp.CallBrowser(ctx, browser.GetVersion, cdp.Empty{})
	if err != nil {
		stop()
		return nil, err
	}
	return &running{ctx, strings.Replace(version.UserAgent, "Headless", "", 1), stop}, nil
}

// closeBrowser ends the browser, if one was started, and removes its directory.
func closeBrowser() error {
	if chromium.running == nil {
		return nil
	}
	defer chromium.stop()
	ctx, cancel := context.WithTimeout(chromium.ctx, hangs)
	defer cancel()
	return chromedp.Cancel(ctx)
}

// look is who looks at a page and through what. The zero look reads English on a
// bright, wide screen.
type look struct {
	lang     string // the language that the browser prefers, besides English
	dark     bool
	width    int64
	noScript bool
}

func (l look) String() string {
	theme, width, lang := "light", l.width, l.lang
	if l.dark {
		theme = "dark"
	}
	if width == 0 {
		width = 1280
	}
	if lang == "" {
		lang = "en"
	}
	return fmt.Sprintf("%s-%s-%d", lang, theme, width)
}

// page is one tab. It keeps what went wrong in it, and the test fails at its end
// when that is not what the test expected.
type page struct {
	*testing.T
	ctx  context.Context
	base string

	mu        sync.Mutex
	origins   []string // where requests may go
	documents map[string]bool
	faults    []fault
	expected  []string
}

// fault is something that no page may do: ask another origin, break the content
// security policy, log an error, throw, miss a file.
type fault struct{ text, url string }

// newPage opens an empty tab for the pages of base.
func newPage(t *testing.T, base string, l look) *page {
	t.Helper()
	ctx, _ := chromedp.NewContext(browserContext(t), chromedp.WithNewBrowserContext())
	p := &page{T: t, ctx: ctx, base: base, origins: []string{base}, documents: map[string]bool{}}
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Error("close the page:", err)
		}
		p.judge()
	})
	if err := chromedp.Listen(ctx, p.watch); err != nil {
		t.Fatal(err)
	}
	p.looks(l)
	return p
}

// looks changes how the pages are looked at from now on.
func (p *page) looks(l look) {
	p.Helper()
	languages := "en-US,en"
	if l.lang != "" && l.lang != "en" {
		languages = l.lang + "," + strings.Split(l.lang, "-")[0] + "," + languages
	}
	theme, width := "light", int64(1280)
	if l.dark {
		theme = "dark"
	}
	if l.width != 0 {
		width = l.width
	}
	send(p, emulation.SetUserAgentOverride, emulation.SetUserAgentOverrideParams{UserAgent: chromium.agent, AcceptLanguage: languages})
	send(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}},
	})
	// Not as a mobile one: that would zoom out until what is too wide fits.
	send(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 800, DeviceScaleFactor: 1})
	send(p, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: l.noScript})
	// Several tabs are in use at once, and each of them has to think that it is in front.
	send(p, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
}

// watch collects the faults. It runs inside the loop that reads from the browser.
func (p *page) watch(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		p.request(e.Request.Method, e.Request.URL)
	case *network.EventWebSocketCreated:
		p.request("WebSocket", e.URL)
	case *network.EventResponseReceived:
		if e.Type == network.ResourceTypeDocument {
			p.documents[e.Response.URL] = true
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError {
			p.faults = append(p.faults, fault{fmt.Sprintf("%s: %s", e.Entry.Source, e.Entry.Text), e.Entry.URL})
		}
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		p.faults = append(p.faults, fault{"exception: " + text, e.ExceptionDetails.URL})
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeAssert {
			var words []string
			for _, arg := range e.Args {
				words = append(words, string(arg.Value)+arg.Description)
			}
			p.faults = append(p.faults, fault{text: "console: " + strings.Join(words, " ")})
		}
	}
}

func (p *page) request(method, address string) {
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "ws" && u.Scheme != "wss") {
		return // data: and the like ask nobody
	}
	for _, origin := range p.origins {
		if address == origin || strings.HasPrefix(address, origin+"/") {
			return
		}
	}
	p.faults = append(p.faults, fault{"left the origin: " + method, address})
}

// mayReach lets the page ask another origin too.
func (p *page) mayReach(origin string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.origins = append(p.origins, origin)
}

// expect declares a fault that the test provokes, by a part of its text or
// address. It has to happen.
func (p *page) expect(part string) { p.expected = append(p.expected, part) }

// judge compares the faults with what the test has declared.
func (p *page) judge() {
	p.mu.Lock()
	defer p.mu.Unlock()
	missing := map[string]bool{}
	for _, part := range p.expected {
		missing[part] = true
	}
	for _, f := range p.faults {
		// The status of a page itself is for the test to judge.
		if strings.HasPrefix(f.text, "network: ") && p.documents[f.url] {
			continue
		}
		declared := false
		for _, part := range p.expected {
			if strings.Contains(f.text+" "+f.url, part) {
				declared = true
				delete(missing, part)
			}
		}
		if !declared {
			p.Errorf("the browser reports: %s (%s)", f.text, f.url)
		}
	}
	for part := range missing {
		p.Errorf("the browser never reported %q", part)
	}
}
