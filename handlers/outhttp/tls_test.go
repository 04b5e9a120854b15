package outhttp

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// certificate returns a self-signed certificate for 127.0.0.1.
func certificate(t *testing.T, from, until time.Time) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestTLSFaultsHaveTheirReason(t *testing.T) {
	t.Parallel()
	now := time.Now()
	good, trusted := certificate(t, now.Add(-time.Hour), now.Add(time.Hour))
	expired, trustedExpired := certificate(t, now.Add(-2*time.Hour), now.Add(-time.Hour))
	early, trustedEarly := certificate(t, now.Add(time.Hour), now.Add(2*time.Hour))
	for name, tt := range map[string]struct {
		config *tls.Config
		roots  *x509.CertPool
		host   string
		want   string
	}{
		"expired":       {&tls.Config{Certificates: []tls.Certificate{expired}}, trustedExpired, "127.0.0.1", "certificate_expired"},
		"not yet valid": {&tls.Config{Certificates: []tls.Certificate{early}}, trustedEarly, "127.0.0.1", "certificate_not_yet_valid"},
		"wrong name":    {&tls.Config{Certificates: []tls.Certificate{good}}, trusted, "receiver", "certificate_wrong_name"},
		"unknown":       {&tls.Config{Certificates: []tls.Certificate{good}}, x509.NewCertPool(), "127.0.0.1", "certificate_unknown_authority"},
		"old protocol": {&tls.Config{
			Certificates: []tls.Certificate{good}, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11,
		}, trusted, "127.0.0.1", "handshake_failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := receiveTLS(t, tt.config, func(x exchange) { x.request() })
			c := newClient(t, Options{
				RootCAs:  tt.roots,
				Resolver: resolverFunc(func(string) ([]netip.Addr, error) { return addrs("127.0.0.1"), nil }),
			}, "receiver")
			_, err := c.Do(t.Context(), post(named(rec, tt.host)))
			if got, want := errorOf(t, err), (Error{CauseTLS, PhaseTLS, tt.want, false}); got != want {
				t.Errorf("Do = %+v, want %+v", got, want)
			}
			assertQuiet(t, err)
			if got := rec.requests.Load(); got != 0 {
				t.Errorf("the receiver saw %d requests, want none", got)
			}
		})
	}
}

func TestAPlainServerIsNotTLS(t *testing.T) {
	t.Parallel()
	rec := receive(t, func(x exchange) {
		if _, err := x.r.Peek(1); err == nil {
			x.say("HTTP/1.1 400 Bad Request\r\n\r\n")
		}
	})
	_, err := newClient(t, Options{}).Do(t.Context(), post("https"+strings.TrimPrefix(rec.URL, "http")))
	if got, want := errorOf(t, err), (Error{CauseTLS, PhaseTLS, "not_tls", false}); got != want {
		t.Errorf("Do = %+v, want %+v", got, want)
	}
}

func TestTLSVerifiesTheNameAndNotTheAddress(t *testing.T) {
	t.Parallel()
	names := make(chan string, 1)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		names <- r.TLS.ServerName
	}))
	srv.StartTLS()
	t.Cleanup(srv.Close)
	roots := x509.NewCertPool()
	roots.AddCert(srv.Certificate())
	c := newClient(t, Options{
		RootCAs:  roots,
		Resolver: resolverFunc(func(string) ([]netip.Addr, error) { return addrs("127.0.0.1"), nil }),
	})
	res, err := c.Do(t.Context(), post(strings.Replace(srv.URL, "127.0.0.1", "example.com", 1)))
	if err != nil || res.Status != http.StatusOK {
		t.Fatalf("Do = %d, %v; want 200", res.Status, err)
	}
	if got, want := <-names, "example.com"; got != want {
		t.Errorf("server name = %q, want %q", got, want)
	}
}
