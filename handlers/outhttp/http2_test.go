package outhttp

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// Frame types of RFC 9113.
const (
	frameHeaders  = 1
	frameReset    = 3
	frameSettings = 4
	frameGoAway   = 7
)

func (x exchange) frame(kind, flags byte, stream uint32, payload ...byte) {
	head := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	head = binary.BigEndian.AppendUint32(append(head, flags), stream)
	_, _ = x.Write(append(head, payload...))
}

// serveFrames speaks just enough HTTP/2 to answer each request head with answer.
func (x exchange) serveFrames(answer func(stream uint32)) {
	preface := make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
	if _, err := io.ReadFull(x.r, preface); err != nil {
		return
	}
	x.frame(frameSettings, 0, 0)
	for head := make([]byte, 9); ; {
		if _, err := io.ReadFull(x.r, head); err != nil {
			return
		}
		size := int64(binary.BigEndian.Uint32(head) >> 8)
		if _, err := io.CopyN(io.Discard, x.r, size); err != nil {
			return
		}
		switch kind, flags := head[3], head[4]; {
		case kind == frameSettings && flags == 0:
			x.frame(frameSettings, 1, 0)
		case kind == frameHeaders:
			x.of.requests.Add(1)
			answer(binary.BigEndian.Uint32(head[5:]))
		}
	}
}

func TestAnHTTP2FailureIsNotResent(t *testing.T) {
	t.Parallel()
	cert, roots := authority(t)
	config := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}
	for name, answer := range map[string]func(x exchange, stream uint32){
		"refused stream": func(x exchange, stream uint32) { x.frame(frameReset, 0, stream, 0, 0, 0, 7) },
		"peer's protocol error": func(x exchange, stream uint32) {
			x.frame(frameReset, 0, stream, 0, 0, 0, 1)
		},
		"going away": func(x exchange, _ uint32) {
			x.frame(frameGoAway, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
		},
		"closed": func(x exchange, _ uint32) { _ = x.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := receiveTLS(t, config, func(x exchange) {
				x.serveFrames(func(stream uint32) { answer(x, stream) })
			})
			_, err := newClient(t, Options{RootCAs: roots}).Do(t.Context(), post(rec.URL))
			if got := errorOf(t, err); got.Cause != CauseProtocol && got.Cause != CauseConnectionReset || !got.Uncertain {
				t.Errorf("Do = %+v; want %q or %q, uncertain", got, CauseProtocol, CauseConnectionReset)
			}
			assertOneQuietRequest(t, rec, err)
		})
	}
}

func TestAnHTTP2HeadCountsWhenItsStreamIsReset(t *testing.T) {
	t.Parallel()
	cert, roots := authority(t)
	config := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2"}}
	rec := receiveTLS(t, config, func(x exchange) {
		x.serveFrames(func(stream uint32) {
			x.frame(frameHeaders, 4, stream, 0x88) // :status 200, from the static table
			x.frame(frameReset, 0, stream, 0, 0, 0, 2)
		})
	})
	res, err := newClient(t, Options{RootCAs: roots}).Do(t.Context(), post(rec.URL))
	if err != nil || res.Status != http.StatusOK || res.BodyNote != BodyBroken {
		t.Errorf("Do = %d, note %q, %v; want 200, %q", res.Status, res.BodyNote, err, BodyBroken)
	}
}

func TestHTTP2IsSpokenAndItsConnectionShared(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	remotes := map[string]int{}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		remotes[r.Proto+" "+r.RemoteAddr]++
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	c := newClient(t, Options{RootCAs: roots})
	for range 3 {
		if _, err := c.Do(t.Context(), post(srv.URL)); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for remote, got := range remotes {
		if want := 3; got != want || remote[:8] != "HTTP/2.0" {
			t.Errorf("%s: %d requests, want %d over HTTP/2.0", remote, got, want)
		}
	}
}
