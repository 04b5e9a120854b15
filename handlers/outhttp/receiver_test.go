package outhttp

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/deskcomm/deskcomm/bus/urlpolicy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// secret is in every URL, header and body of these tests and in no error.
const secret = "zq-secret"

// receiver is a TCP server that behaves badly. It counts what reaches it.
type receiver struct {
	URL      string
	conns    atomic.Int64
	requests atomic.Int64
}

// exchange is one connection to a receiver.
type exchange struct {
	net.Conn
	r  *bufio.Reader
	of *receiver
}

// request reads one whole request and counts it; false when none comes.
func (x exchange) request() bool {
	req, err := http.ReadRequest(x.r)
	if err != nil {
		return false
	}
	x.of.requests.Add(1)
	_, err = io.Copy(io.Discard, req.Body)
	return err == nil
}

func (x exchange) say(text string) bool {
	_, err := io.WriteString(x, text)
	return err == nil
}

// silence waits until the client gives up.
func (x exchange) silence() { _, _ = io.Copy(io.Discard, x.r) }

// reset closes the connection with RST.
func (x exchange) reset() {
	if c, ok := x.Conn.(*net.TCPConn); ok {
		_ = c.SetLinger(0)
	}
	_ = x.Close()
}

func receive(t *testing.T, serve func(exchange)) *receiver {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return receiveOn(t, l, "http", serve)
}

func receiveOn(t *testing.T, l net.Listener, scheme string, serve func(exchange)) *receiver {
	t.Helper()
	rec := &receiver{URL: scheme + "://" + l.Addr().String() + "/hook?token=" + secret}
	var mu sync.Mutex
	var open []net.Conn
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			rec.conns.Add(1)
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				serve(exchange{c, bufio.NewReader(c), rec})
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return rec
}

// resolverFunc is a resolver that lies.
type resolverFunc func(host string) ([]netip.Addr, error)

func (f resolverFunc) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	return f(host)
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

// newClient builds a client that may reach 127.0.0.1 and what allow adds.
func newClient(t *testing.T, o Options, allow ...string) *Client {
	t.Helper()
	p, err := urlpolicy.New(append([]string{"127.0.0.1"}, allow...))
	if err != nil {
		t.Fatal(err)
	}
	o.Policy = p
	if o.Timeout == 0 {
		o.Timeout = time.Minute // a test that needs less says so
	}
	c := New(o)
	t.Cleanup(c.CloseIdle)
	return c
}

func post(url string) Request {
	return Request{
		URL:    url,
		Header: http.Header{"Content-Type": {"application/json"}, "X-Signature": {secret}},
		Body:   []byte(`{"k":"` + secret + `"}`),
	}
}

func errorOf(t *testing.T, err error) Error {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("Do: error = %v, want an *Error", err)
	}
	return *e
}

// manualDeadline is a context whose deadline passes when the test says so.
type manualDeadline struct {
	context.Context
	passed chan struct{}
}

func newDeadline(t *testing.T) manualDeadline {
	t.Helper()
	return manualDeadline{t.Context(), make(chan struct{})}
}

func (d manualDeadline) Done() <-chan struct{} { return d.passed }

func (d manualDeadline) Err() error {
	select {
	case <-d.passed:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// authority returns a certificate for 127.0.0.1 and example.com, and a pool that trusts it.
func authority(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	defer srv.Close()
	pool := x509.NewCertPool()
	pool.AddCert(srv.Certificate())
	return srv.TLS.Certificates[0], pool
}

func receiveTLS(t *testing.T, config *tls.Config, serve func(exchange)) *receiver {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return receiveOn(t, tls.NewListener(l, config), "https", serve)
}
