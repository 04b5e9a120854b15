package outhttp

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

const ok200 = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func TestACompleteHeadDecidesWhateverTheBodyDoes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		response string
		hold     bool // keep the connection open afterwards
		flood    bool // send far more than anybody keeps
		status   int
		note     BodyNote
		body     string
	}{
		"whole body":            {response: ok200, hold: true, status: 200, body: "ok"},
		"body that drips":       {response: "HTTP/1.1 200 OK\r\n\r\nd", hold: true, status: 200, note: BodyTimeout, body: "d"},
		"endless fast body":     {response: "HTTP/1.1 200 OK\r\n\r\n", flood: true, status: 200, note: BodyTruncated},
		"short Content-Length":  {response: "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", status: 200, note: BodyBroken, body: "abc"},
		"invalid chunk size":    {response: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nabc", status: 200, note: BodyBroken},
		"204 with a body":       {response: "HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabc", hold: true, status: 204},
		"100 Continue first":    {response: "HTTP/1.1 100 Continue\r\n\r\n" + ok200, status: 200, body: "ok"},
		"server error":          {response: "HTTP/1.1 500 No\r\nContent-Length: 3\r\n\r\nabc", status: 500, body: "abc"},
		"early answer":          {response: "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", status: 413},
		"304":                   {response: "HTTP/1.1 304 Not Modified\r\n\r\n", status: 304},
		"300":                   {response: "HTTP/1.1 300 Multiple Choices\r\nContent-Length: 0\r\n\r\n", status: 300},
		"302 without Location":  {response: "HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n", status: 302},
		"upper end of statuses": {response: "HTTP/1.1 599 X\r\nContent-Length: 0\r\n\r\n", status: 599},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			flooded, chunk := 0, strings.Repeat("x", 1<<16)
			if tt.flood {
				flooded = 1
			}
			rec := receive(t, func(x exchange) {
				if !x.request() || !x.say(tt.response) {
					return
				}
				for range 4096 * flooded { // 256 MiB
					if !x.say(chunk) {
						return
					}
				}
				if tt.flood {
					t.Error("the client read 256 MiB")
				}
				if tt.hold {
					x.silence()
				}
			})
			o := Options{Timeout: time.Hour, BodyTimeout: time.Hour}
			if tt.note == BodyTimeout {
				o.BodyTimeout = 100 * time.Millisecond
			}
			c := newClient(t, o)
			res, err := c.Do(t.Context(), post(rec.URL))
			if err != nil {
				t.Fatalf("Do: %v", err)
			}
			if res.Status != tt.status || res.BodyNote != tt.note || res.Phase != PhaseBody {
				t.Errorf("Do = %d, note %q, phase %q; want %d, %q, %q", res.Status, res.BodyNote, res.Phase, tt.status, tt.note, PhaseBody)
			}
			if got := string(res.Body); got != tt.body && !tt.flood {
				t.Errorf("body = %q, want %q", got, tt.body)
			}
			if tt.flood && len(res.Body) != MaxBody {
				t.Errorf("body has %d bytes, want %d", len(res.Body), MaxBody)
			}
			if got, want := rec.requests.Load(), int64(1); got != want {
				t.Errorf("the receiver saw %d requests, want %d", got, want)
			}
			if got, want := res.RemoteIP.String(), "127.0.0.1"; got != want {
				t.Errorf("RemoteIP = %s, want %s", got, want)
			}
		})
	}
}

func TestAConnectionWithALeftoverBodyIsNotReused(t *testing.T) {
	t.Parallel()
	for name, response := range map[string]string{
		"cut body":                 "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", MaxBody+10),
		"bytes after the response": ok200 + "HTTP/1.1 500 Smuggled\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := receive(t, func(x exchange) {
				if x.request() && x.say(response) {
					x.silence()
				}
			})
			c := newClient(t, Options{})
			for range 2 {
				res, err := c.Do(t.Context(), post(rec.URL))
				if err != nil || res.Status != http.StatusOK {
					t.Fatalf("Do = %d, %v; want 200", res.Status, err)
				}
			}
			if got, want := rec.conns.Load(), int64(2); got != want {
				t.Errorf("the receiver saw %d connections, want %d", got, want)
			}
		})
	}
}

func TestAnHonestConnectionIsReused(t *testing.T) {
	t.Parallel()
	rec := receive(t, func(x exchange) {
		for x.request() && x.say(ok200) {
			continue
		}
	})
	c := newClient(t, Options{})
	for range 3 {
		if _, err := c.Do(t.Context(), post(rec.URL)); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := rec.conns.Load(), int64(1); got != want {
		t.Errorf("the receiver saw %d connections, want %d", got, want)
	}
}

func TestACompressedBodyIsNotUnpacked(t *testing.T) {
	t.Parallel()
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	if _, err := z.Write(make([]byte, 4<<20)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Accept-Encoding")
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(bomb.Bytes())
	}))
	t.Cleanup(srv.Close)

	res, err := newClient(t, Options{}).Do(t.Context(), post(srv.URL))
	if err != nil {
		t.Fatal(err)
	}
	if got := <-asked; got != "" {
		t.Errorf("Accept-Encoding = %q, want none", got)
	}
	if got, want := res.Body, bomb.Bytes()[:min(MaxBody, bomb.Len())]; !bytes.Equal(got, want) {
		t.Errorf("body has %d bytes, want the %d compressed ones", len(got), len(want))
	}
}

func TestAResponseIsSafeToStore(t *testing.T) {
	t.Parallel()
	page := "<script>alert(1)</script>\xe7\xe3o\x00" + strings.Repeat("y", 3<<20)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Set-Cookie", "session="+secret)
		w.Header().Set("Authorization", "Bearer "+secret)
		w.Header().Set("Retry-After", "5")
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte(page))
	}))
	t.Cleanup(srv.Close)

	res, err := newClient(t, Options{}).Do(t.Context(), post(srv.URL))
	if err != nil {
		t.Fatal(err)
	}
	if res.Status != http.StatusServiceUnavailable || len(res.Body) != MaxBody || res.BodyNote != BodyTruncated {
		t.Errorf("Do = %d, %d bytes, %q; want 503, %d, %q", res.Status, len(res.Body), res.BodyNote, MaxBody, BodyTruncated)
	}
	if got, want := res.Header.Get("Retry-After"), "5"; got != want {
		t.Errorf("Retry-After = %q, want %q", got, want)
	}
	for name, values := range res.Header {
		if strings.Contains(strings.Join(values, ""), secret) {
			t.Errorf("header %s holds a credential", name)
		}
	}
	text := res.Text()
	if !utf8.ValidString(text) || strings.Contains(text, "\x00") || !strings.HasPrefix(text, "<script>") {
		t.Errorf("Text() starts with %q, want valid UTF-8 without NUL", text[:40])
	}
}
