package outhttp

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestAProtocolViolationIsAnError(t *testing.T) {
	t.Parallel()
	for name, response := range map[string]string{
		"malformed status":        "HTTP/1.1 20x OK\r\n\r\n",
		"status 000":              "HTTP/1.1 000 Zero\r\nContent-Length: 0\r\n\r\n",
		"status 999":              "HTTP/1.1 999 Nine\r\nContent-Length: 0\r\n\r\n",
		"status 600":              "HTTP/1.1 600 Six\r\nContent-Length: 0\r\n\r\n",
		"status 101":              "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
		"text of HTTP/0.9":        "hello, this is not a head\r\n",
		"two Content-Lengths":     "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk",
		"negative Content-Length": "HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\nok",
		"NUL in a header":         "HTTP/1.1 200 OK\r\nX-A: a\x00b\r\nContent-Length: 2\r\n\r\nok",
		"headers of 4 MiB":        "HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 4<<20) + "\r\n\r\n",
		"5000 early hints":        strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", 5000) + ok200,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := receive(t, func(x exchange) {
				if x.request() && x.say(response) {
					x.silence()
				}
			})
			_, err := newClient(t, Options{}).Do(t.Context(), post(rec.URL))
			got := errorOf(t, err)
			if got.Cause != CauseProtocol || !got.Uncertain {
				t.Errorf("Do = %q, uncertain %v; want %q, true", got.Cause, got.Uncertain, CauseProtocol)
			}
			assertOneQuietRequest(t, rec, err)
		})
	}
}

// assertOneQuietRequest checks that an attempt was one request and that its error
// shows nothing of it.
func assertOneQuietRequest(t *testing.T, rec *receiver, err error) {
	t.Helper()
	if got, want := rec.requests.Load(), int64(1); got != want {
		t.Errorf("the receiver saw %d requests, want %d", got, want)
	}
	assertQuiet(t, err)
}

func assertQuiet(t *testing.T, err error) {
	t.Helper()
	for _, word := range []string{secret, "127.0.0", "169.254", "http:", "https:", "example.com"} {
		if strings.Contains(err.Error(), word) {
			t.Errorf("error %q shows %q", err, word)
		}
	}
}

func TestAReceiverThatBreaksOffLeavesTheAttemptUncertain(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(exchange){
		"reset after the request": func(x exchange) { x.reset() },
		"close after the request": func(x exchange) { _ = x.Close() },
		"close inside the status": func(x exchange) { x.say("HTTP/1.1 200 O") },
		"close inside the head":   func(x exchange) { x.say("HTTP/1.1 200 OK\r\nX-A: b") },
		"reset inside the head":   func(x exchange) { x.say("HTTP/1.1 200 OK\r\n"); x.reset() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := receive(t, func(x exchange) {
				if x.request() {
					end(x)
				}
			})
			_, err := newClient(t, Options{}).Do(t.Context(), post(rec.URL))
			got := errorOf(t, err)
			if got.Cause != CauseConnectionReset || got.Phase != PhaseHeaders || !got.Uncertain {
				t.Errorf("Do = %+v; want %q in phase %q, uncertain", got, CauseConnectionReset, PhaseHeaders)
			}
			assertOneQuietRequest(t, rec, err)
		})
	}
}

func TestARequestOnADyingConnectionIsNotResent(t *testing.T) {
	t.Parallel()
	rec := receive(t, func(x exchange) {
		if x.request() && x.say(ok200) { // kept alive, and then
			x.request()
			x.reset()
		}
	})
	c := newClient(t, Options{})
	if _, err := c.Do(t.Context(), post(rec.URL)); err != nil {
		t.Fatal(err)
	}
	_, err := c.Do(t.Context(), post(rec.URL))
	got := errorOf(t, err)
	if got.Cause != CauseConnectionReset || !got.Uncertain {
		t.Errorf("Do = %+v; want %q, uncertain", got, CauseConnectionReset)
	}
	if got, want := rec.requests.Load(), int64(2); got != want {
		t.Errorf("the receiver saw %d requests for two attempts, want %d", got, want)
	}
}

func TestAKeyThatInvitesResendingIsRefused(t *testing.T) {
	t.Parallel()
	rec := receive(t, func(x exchange) { x.request() })
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		r := post(rec.URL)
		r.Header.Set(name, secret)
		_, err := newClient(t, Options{}).Do(t.Context(), r)
		if got := errorOf(t, err); got.Cause != CauseInvalidRequest || got.Uncertain {
			t.Errorf("Do with %s = %+v, want %q", name, got, CauseInvalidRequest)
		}
		assertQuiet(t, err)
	}
	if got, want := rec.conns.Load(), int64(0); got != want {
		t.Errorf("the receiver saw %d connections, want %d", got, want)
	}
}

func TestAMalformedRequestIsRefusedBeforeItConnects(t *testing.T) {
	t.Parallel()
	rec := receive(t, func(x exchange) { x.request() })
	for name, change := range map[string]func(*Request){
		"line break in a header": func(r *Request) { r.Header.Set("X-A", secret+"\r\nX-B: c") },
		"space in a header name": func(r *Request) { r.Header["X A"] = []string{secret} },
		"bad method":             func(r *Request) { r.Method = "PO ST" },
	} {
		r := post(rec.URL)
		change(&r)
		_, err := newClient(t, Options{}).Do(t.Context(), r)
		if got := errorOf(t, err); got.Cause != CauseInvalidRequest || got.Uncertain {
			t.Errorf("%s: Do = %+v, want %q", name, got, CauseInvalidRequest)
		}
		assertQuiet(t, err)
	}
	if got, want := rec.conns.Load(), int64(0); got != want {
		t.Errorf("the receiver saw %d connections, want %d", got, want)
	}
}

func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	for _, status := range []int{301, 302, 303, 307, 308} {
		var second atomic.Int64
		target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { second.Add(1) }))
		t.Cleanup(target.Close)
		first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, target.URL+"/login", status)
		}))
		t.Cleanup(first.Close)

		res, err := newClient(t, Options{}).Do(t.Context(), post(first.URL))
		if err != nil || res.Status != status {
			t.Errorf("Do = %d, %v; want %d", res.Status, err, status)
		}
		if got, want := res.Header.Get("Location"), target.URL+"/login"; got != want {
			t.Errorf("Location = %q, want %q", got, want)
		}
		if got := second.Load(); got != 0 {
			t.Errorf("%d: the second host saw %d requests, want none", status, got)
		}
	}
}

func TestAnAnswerBeforeTheBodyIsSentCounts(t *testing.T) {
	t.Parallel()
	for _, response := range []string{ok200, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"} {
		rec := receive(t, func(x exchange) {
			if _, err := http.ReadRequest(x.r); err == nil { // the head only
				x.of.requests.Add(1)
				x.say(response)
				<-t.Context().Done() // reads no more, so that the body never fits
			}
		})
		r := post(rec.URL)
		r.Body = make([]byte, 20<<20)
		res, err := newClient(t, Options{}).Do(t.Context(), r)
		if err != nil {
			t.Fatalf("Do: %v", err)
		}
		if got, want := res.Status, map[bool]int{true: 200, false: 413}[response == ok200]; got != want {
			t.Errorf("Do = %d, want %d", got, want)
		}
		if got, want := rec.requests.Load(), int64(1); got != want {
			t.Errorf("the receiver saw %d requests, want %d", got, want)
		}
	}
}

func TestAnEarlyRefusalSurvivesTheBrokenPipe(t *testing.T) {
	t.Parallel()
	rec := receive(t, func(x exchange) {
		if _, err := http.ReadRequest(x.r); err == nil {
			x.say("HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
		} // and closes with most of the body unread
	})
	r := post(rec.URL)
	r.Body = make([]byte, 20<<20)
	c := newClient(t, Options{})
	for range 8 { // which of the two net/http notices first is a matter of luck
		res, err := c.Do(t.Context(), r)
		if err != nil || res.Status != http.StatusRequestEntityTooLarge {
			t.Fatalf("Do = %d, %v; want 413", res.Status, err)
		}
	}
}

func TestTheBudgetEndsEveryPhase(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		scheme string
		serve  func(x exchange, reached func())
		phase  Phase
		sent   bool
	}{
		"silence before TLS": {"https", func(x exchange, reached func()) {
			if _, err := x.r.Peek(1); err == nil {
				reached()
				x.silence()
			}
		}, PhaseTLS, false},
		"silence before the head": {"http", func(x exchange, reached func()) {
			if x.request() {
				reached()
				x.silence()
			}
		}, PhaseHeaders, true},
		"half a status line": {"http", func(x exchange, reached func()) {
			if x.request() && x.say("HTTP/1.1 2") {
				reached()
				x.silence()
			}
		}, PhaseHeaders, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deadline := newDeadline(t)
			rec := receive(t, func(x exchange) { tt.serve(x, func() { close(deadline.passed) }) })
			url := tt.scheme + strings.TrimPrefix(rec.URL, "http")
			res, err := newClient(t, Options{}).Do(deadline, post(url))
			got := errorOf(t, err)
			if got.Cause != CauseTimeout || got.Phase != tt.phase || got.Uncertain != tt.sent {
				t.Errorf("Do = %+v; want %q in phase %q, uncertain %v", got, CauseTimeout, tt.phase, tt.sent)
			}
			if !errors.Is(err, context.DeadlineExceeded) || res.Phase != tt.phase {
				t.Errorf("Do = phase %q, %v; want %q and a deadline", res.Phase, err, tt.phase)
			}
			assertQuiet(t, err)
		})
	}
}

func TestAHeadThatDripsDoesNotStretchTheBudget(t *testing.T) {
	t.Parallel()
	rec := receive(t, func(x exchange) {
		if !x.request() || !x.say("HTTP/1.1 200 OK\r\n") {
			return
		}
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for x.say("X-A: b\r\n") {
			<-tick.C
		}
	})
	r := post(rec.URL)
	r.Timeout = 300 * time.Millisecond
	_, err := newClient(t, Options{}).Do(t.Context(), r)
	if got := errorOf(t, err); got.Cause != CauseTimeout {
		t.Errorf("Do = %q, want %q", got.Cause, CauseTimeout)
	}
}

func TestTheCallersCancellationIsNotATimeout(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	rec := receive(t, func(x exchange) {
		if x.request() {
			cancel()
			x.silence()
		}
	})
	_, err := newClient(t, Options{}).Do(ctx, post(rec.URL))
	got := errorOf(t, err)
	if got.Cause != CauseCanceled || !got.Uncertain || !errors.Is(err, context.Canceled) {
		t.Errorf("Do = %+v, want %q, uncertain", got, CauseCanceled)
	}
}

func TestAWaitForAConnectionSpendsTheBudget(t *testing.T) {
	t.Parallel()
	busy := make(chan struct{})
	rec := receive(t, func(x exchange) {
		if x.request() {
			close(busy)
			x.silence()
		}
	})
	c := newClient(t, Options{MaxConnsPerHost: 1})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = c.Do(ctx, post(rec.URL))
	}()
	<-busy
	r := post(rec.URL)
	r.Timeout = 50 * time.Millisecond
	_, err := c.Do(t.Context(), r)
	if got := errorOf(t, err); got.Cause != CauseTimeout || got.Phase != PhaseWait || got.Uncertain {
		t.Errorf("Do = %+v; want %q in phase %q, certain", got, CauseTimeout, PhaseWait)
	}
	cancel()
	<-done
}

func TestABlackHoleFreesItsConnectionSlot(t *testing.T) {
	t.Parallel()
	deadlines := []manualDeadline{newDeadline(t), newDeadline(t)}
	var rec *receiver
	rec = receive(t, func(x exchange) {
		if _, err := x.r.Peek(1); err == nil { // the client's hello, never answered
			close(deadlines[rec.conns.Load()-1].passed)
			x.silence()
		}
	})
	c := newClient(t, Options{MaxConnsPerHost: 1, Timeout: 10 * time.Second})
	for _, deadline := range deadlines {
		_, err := c.Do(deadline, post("https"+strings.TrimPrefix(rec.URL, "http")))
		if got, want := errorOf(t, err), (Error{CauseTimeout, PhaseTLS, "", false}); got != want {
			t.Errorf("Do = %+v, want %+v", got, want)
		}
	}
}
