package outhttp

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"code.dny.dev/ssrf"
	"pgregory.net/rapid"

	"github.com/deskcomm/deskcomm/bus/urlpolicy"
)

// named replaces the address in a receiver's URL by a host name.
func named(rec *receiver, host string) string {
	return strings.Replace(rec.URL, "127.0.0.1", host, 1)
}

func TestANameThatLeadsInsideIsBlocked(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string][]netip.Addr{
		"rebound to loopback":         addrs("127.0.0.1"),
		"rebound to a mapped form":    addrs("::ffff:127.0.0.1"),
		"rebound to metadata":         addrs("169.254.169.254"),
		"metadata behind NAT64":       addrs("64:ff9b::a9fe:a9fe"),
		"metadata behind 6to4":        addrs("2002:a9fe:a9fe::1"),
		"metadata over IPv6":          addrs("fd00:ec2::254"),
		"host agent":                  addrs("168.63.129.16"),
		"unspecified":                 addrs("0.0.0.0"),
		"address with a zone":         addrs("fe80::1%lo"),
		"mixed, private last":         addrs("8.8.8.8", "10.0.0.1"),
		"mixed, private first":        addrs("10.0.0.1", "8.8.8.8"),
		"private beyond the tried":    addrs("8.8.8.8", "8.8.4.4", "1.1.1.1", "1.0.0.1", "9.9.9.9", "127.0.0.1"),
		"mixed over both IP versions": addrs("2606:4700::1111", "192.168.0.1"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := receive(t, func(x exchange) { x.request() })
			c := New(Options{Resolver: resolverFunc(func(string) ([]netip.Addr, error) { return answers, nil })})
			_, err := c.Do(t.Context(), post("https"+strings.TrimPrefix(named(rec, "hooks.example.com"), "http")))
			got := errorOf(t, err)
			if got.Cause != CauseBlockedAddress || got.Phase != PhaseDNS || got.Uncertain {
				t.Errorf("Do = %+v; want %q in phase %q, certain", got, CauseBlockedAddress, PhaseDNS)
			}
			assertQuiet(t, err)
			if got := rec.conns.Load(); got != 0 {
				t.Errorf("the receiver saw %d connections, want none", got)
			}
		})
	}
}

func TestANameThatFlipsIsBlockedAtTheNextConnection(t *testing.T) {
	t.Parallel()
	rec := receive(t, func(x exchange) {
		if x.request() {
			x.say("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		}
	})
	var queries atomic.Int64
	c := newClient(t, Options{Resolver: resolverFunc(func(string) ([]netip.Addr, error) {
		if queries.Add(1) == 1 {
			return addrs("127.0.0.1"), nil
		}
		return addrs("169.254.169.254"), nil
	})}, "flip.example.com")
	r := post(named(rec, "flip.example.com"))
	if res, err := c.Do(t.Context(), r); err != nil || res.Status != http.StatusOK {
		t.Fatalf("first Do = %d, %v; want 200", res.Status, err)
	}
	_, err := c.Do(t.Context(), r)
	if got := errorOf(t, err); got.Cause != CauseBlockedAddress {
		t.Errorf("second Do = %q, want %q", got.Cause, CauseBlockedAddress)
	}
	if got, want := rec.requests.Load(), int64(1); got != want {
		t.Errorf("the receiver saw %d requests, want %d", got, want)
	}
}

// The check before the dial is skipped here, as if the kernel were given another
// address than the one that was judged.
func TestTheAddressIsJudgedAgainWhenTheSocketConnects(t *testing.T) {
	t.Parallel()
	rec := receive(t, func(x exchange) { x.request() })
	host, _, _ := strings.Cut(strings.TrimPrefix(rec.URL, "http://"), "/")
	d := &dialer{guard: ssrf.New(ssrf.WithAnyPort())}
	_, err := d.dial(t.Context(), "hooks.example.com", netip.MustParseAddrPort(host), 1)
	if err == nil || err.Cause != CauseBlockedAddress || err.Phase != PhaseConnect {
		t.Errorf("dial = %v, want %q in phase %q", err, CauseBlockedAddress, PhaseConnect)
	}
	if got := rec.conns.Load(); got != 0 {
		t.Errorf("the receiver saw %d connections, want none", got)
	}
}

func TestTheSecondTableIsAskedToo(t *testing.T) {
	t.Parallel()
	public := netip.MustParsePrefix("9.9.9.0/24") // as if the other table had learnt of a new special range
	d := &dialer{guard: ssrf.New(ssrf.WithAnyPort(), ssrf.WithDeniedV4Prefixes(public))}
	if err := d.control("hooks.example.com", "9.9.9.9:443"); err == nil || err.Cause != CauseBlockedAddress {
		t.Errorf("control = %v, want %q", err, CauseBlockedAddress)
	}
	if err := d.control("hooks.example.com", "8.8.8.8:443"); err != nil {
		t.Errorf("control = %v, want nil", err)
	}
	if err := d.control("hooks.example.com", "[64:ff9b::808:808]:443"); err != nil {
		t.Errorf("control of a public address behind NAT64 = %v, want nil", err)
	}
}

// If our table let through what the other refuses, a URL would pass registration
// and die at its first delivery.
func TestOurTableIsAtLeastAsStrictAsTheOther(t *testing.T) {
	t.Parallel()
	guard := ssrf.New(ssrf.WithAnyPort())
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{4, 16}).Draw(t, "size")
		addr, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), size, size).Draw(t, "address"))
		if urlpolicy.CheckAddr(addr) == nil && guard.SafeAddr(urlpolicy.Unwrap(addr)) != nil {
			t.Errorf("CheckAddr(%s) = nil, the second table refuses it", addr)
		}
	})
	for _, prefix := range append(ssrf.IPv4DeniedPrefixes, ssrf.IPv6DeniedPrefixes...) {
		if urlpolicy.CheckAddr(prefix.Addr()) == nil {
			t.Errorf("CheckAddr accepts %s, the second table refuses %s", prefix.Addr(), prefix)
		}
	}
}

func TestAnUnsafeURLIsBlockedBeforeItIsResolved(t *testing.T) {
	t.Parallel()
	c := New(Options{Resolver: resolverFunc(func(string) ([]netip.Addr, error) {
		t.Error("the name was resolved")
		return nil, errors.New("no")
	})})
	for _, url := range []string{
		"http://hooks.example.com/" + secret, "https://127.1/" + secret, "https://2130706433/" + secret, "https://0x7f000001/" + secret,
		"https://0177.0.0.1/" + secret, "https://localhost./" + secret, "https://0/" + secret, "https://127。0。0。1/" + secret,
		"https://①②⑦.0.0.1/" + secret, "https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/" + secret, "https://[::ffff:a9fe:a9fe]/" + secret,
		"https://[fe80::1%25eth0]/" + secret, "https://169.254.169.254/" + secret, "https://u:" + secret + "@hooks.example.com/",
		"file:///etc/passwd#" + secret, "https://hooks.example.com:22/" + secret, secret, "",
	} {
		_, err := c.Do(t.Context(), post(url))
		got := errorOf(t, err)
		if got.Cause != CauseBlockedAddress || got.Phase != PhaseWait || got.Reason == "" {
			t.Errorf("Do(%q) = %+v, want %q with a reason", url, got, CauseBlockedAddress)
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("Do(%q) = %q, which shows the URL", url, err)
		}
	}
}

func TestAnAllowedNameReachesLoopback(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		allow   string
		answers []netip.Addr
	}{
		"by name":                         {"receiver", addrs("127.0.0.1")},
		"localhost over both IP versions": {"localhost", addrs("::1", "127.0.0.1")},
		"after a dead address":            {"receiver", addrs("127.0.0.2", "127.0.0.1")},
		"in its mapped form":              {"receiver", addrs("::ffff:127.0.0.1")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := receive(t, func(x exchange) {
				for x.request() && x.say(ok200) {
					continue
				}
			})
			c := newClient(t, Options{
				Resolver: resolverFunc(func(string) ([]netip.Addr, error) { return tt.answers, nil }),
			}, tt.allow)
			res, err := c.Do(t.Context(), post(named(rec, tt.allow)))
			if err != nil || res.Status != http.StatusOK {
				t.Fatalf("Do = %d, %v; want 200", res.Status, err)
			}
			if got, want := res.RemoteIP.String(), "127.0.0.1"; got != want {
				t.Errorf("RemoteIP = %s, want %s", got, want)
			}
		})
	}
}

func TestResolutionFailuresAreNamed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answers []netip.Addr
		err     error
		want    Error
	}{
		"no such name": {nil, &net.DNSError{Err: "no such host", Name: secret, IsNotFound: true}, Error{CauseDNS, PhaseDNS, "not_found", false}},
		"server fails": {nil, &net.DNSError{Err: "server misbehaving", Name: secret}, Error{CauseDNS, PhaseDNS, "", false}},
		"server slow":  {nil, &net.DNSError{Err: "timeout", Name: secret, IsTimeout: true}, Error{CauseTimeout, PhaseDNS, "", false}},
		"no addresses": {nil, nil, Error{CauseDNS, PhaseDNS, "no_addresses", false}},
	} {
		c := New(Options{Resolver: resolverFunc(func(string) ([]netip.Addr, error) { return tt.answers, tt.err })})
		_, err := c.Do(t.Context(), post("https://hooks.example.com/"+secret))
		if got := errorOf(t, err); got != tt.want {
			t.Errorf("%s: Do = %+v, want %+v", name, got, tt.want)
		}
		assertQuiet(t, err)
	}
}

// hangingResolver answers only when its context ends.
type hangingResolver struct{ asked func() }

func (r hangingResolver) LookupNetIP(ctx context.Context, _, _ string) ([]netip.Addr, error) {
	r.asked()
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestASlowResolverEndsWithTheBudget(t *testing.T) {
	t.Parallel()
	deadline := newDeadline(t)
	c := New(Options{Resolver: hangingResolver{func() { close(deadline.passed) }}})
	_, err := c.Do(deadline, post("https://hooks.example.com/"))
	if got, want := errorOf(t, err), (Error{CauseTimeout, PhaseDNS, "", false}); got != want {
		t.Errorf("Do = %+v, want %+v", got, want)
	}
}

func TestAtMostFourAddressesAreTried(t *testing.T) {
	t.Parallel()
	many := make([]netip.Addr, 200)
	for i := range many {
		many[i] = netip.AddrFrom4([4]byte{8, 8, 8, byte(i)})
	}
	d := &dialer{resolver: resolverFunc(func(string) ([]netip.Addr, error) { return many, nil })}
	got, err := d.resolve(t.Context(), "hooks.example.com", 443)
	if err != nil || len(got) != 4 {
		t.Errorf("resolve = %d addresses, %v; want 4", len(got), err)
	}
}

func TestARefusedConnectionIsCertain(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = newClient(t, Options{}).Do(t.Context(), post(url))
	if got, want := errorOf(t, err), (Error{CauseConnect, PhaseConnect, "refused", false}); got != want {
		t.Errorf("Do = %+v, want %+v", got, want)
	}
	assertQuiet(t, err)
}

// The host name matters, because net/http never sends 127.0.0.1 through a proxy.
func TestTheProxyOfTheEnvironmentIsIgnored(t *testing.T) { //nolint:paralleltest // it changes the environment
	var proxied atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { proxied.Add(1) }))
	t.Cleanup(proxy.Close)
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"} {
		t.Setenv(name, proxy.URL)
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		t.Setenv(name, "")
	}
	rec := receive(t, func(x exchange) {
		for x.request() && x.say(ok200) {
			continue
		}
	})
	c := newClient(t, Options{
		Resolver: resolverFunc(func(string) ([]netip.Addr, error) { return addrs("127.0.0.1"), nil }),
	}, "receiver.example.com")
	if _, err := c.Do(t.Context(), post(named(rec, "receiver.example.com"))); err != nil {
		t.Fatal(err)
	}
	if got, want := rec.requests.Load(), int64(1); got != want || proxied.Load() != 0 {
		t.Errorf("receiver saw %d requests and the proxy %d; want %d and 0", got, proxied.Load(), want)
	}
}
