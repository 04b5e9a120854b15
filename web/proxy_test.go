package web

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
)

// What a client says of itself is believed only when a proxy that we know says it.
func TestOnlyNamedProxiesAreBelieved(t *testing.T) {
	t.Parallel()
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	for name, tt := range map[string]struct {
		peer, said      string
		address, scheme string
	}{
		"a stranger":             {"203.0.113.9:1234", "198.51.100.1", "203.0.113.9:1234", ""},
		"a proxy":                {"10.1.2.3:1234", "198.51.100.1", "198.51.100.1:0", "https"},
		"a proxy over IPv6":      {"[::ffff:10.1.2.3]:1234", "2001:db8::1", "[2001:db8::1]:0", "https"},
		"a client that lied":     {"10.1.2.3:1234", "192.0.2.66, 198.51.100.1", "198.51.100.1:0", "https"},
		"a proxy without a list": {"10.1.2.3:1234", "", "10.1.2.3:1234", "https"},
		"a proxy with nonsense":  {"[::1]:1234", "unknown", "[::1]:1234", "https"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.RemoteAddr = tt.peer
		r.Header.Set("X-Forwarded-Proto", "https")
		if tt.said != "" {
			r.Header.Set("X-Forwarded-For", tt.said)
		}
		var address, scheme string
		believe(proxies)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			address, scheme = r.RemoteAddr, r.Header.Get("X-Forwarded-Proto")
		})).ServeHTTP(httptest.NewRecorder(), r)
		if address != tt.address || scheme != tt.scheme {
			t.Errorf("%s: %s by %q, want %s by %q", name, address, scheme, tt.address, tt.scheme)
		}
	}
}
