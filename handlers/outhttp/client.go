package outhttp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"time"

	"code.dny.dev/ssrf"

	"github.com/deskcomm/deskcomm/bus/urlpolicy"
)

// Limits of one attempt.
const (
	defaultTimeout     = 10 * time.Second
	defaultBodyTimeout = 5 * time.Second
	defaultIdlePerHost = 32
	leastIdle          = 512 // connections kept to all hosts together
	maxHeader          = 64 << 10
	// MaxBody is how much of a response body is kept.
	MaxBody = 64 << 10
)

// Resolver turns a name into addresses; [*net.Resolver] is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options configure a [Client]. The zero value reaches public addresses only.
type Options struct {
	Policy      urlpolicy.Policy
	Timeout     time.Duration  // budget of one attempt; default 10 s
	BodyTimeout time.Duration  // of it, for the body; default 5 s
	Resolver    Resolver       // default: the resolver of Go, not that of the C library
	RootCAs     *x509.CertPool // default: those of the system
	UserAgent   string         // default "deskcomm"
	// MaxConnsPerHost limits connections to one host and port; a request that
	// waits for one spends its budget. 0 means no limit.
	MaxConnsPerHost int
	// MaxIdleConnsPerHost is how many are kept for reuse; default 32.
	MaxIdleConnsPerHost int
}

// Client makes attempts. It is safe for concurrent use and keeps connections;
// one per process is enough.
type Client struct {
	transport   *http.Transport
	policy      urlpolicy.Policy
	timeout     time.Duration
	bodyTimeout time.Duration
	userAgent   string
}

// New builds a Client.
func New(o Options) *Client {
	d := &dialer{
		policy:   o.Policy,
		resolver: o.Resolver,
		guard:    ssrf.New(ssrf.WithAnyPort()),
		tls:      &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.RootCAs, NextProtos: []string{"h2", "http/1.1"}},
	}
	if d.resolver == nil {
		d.resolver = &net.Resolver{PreferGo: true} // a C resolver reads 0x7f.1 as an address
	}
	return &Client{
		policy:      o.Policy,
		timeout:     cmp.Or(o.Timeout, defaultTimeout),
		bodyTimeout: cmp.Or(o.BodyTimeout, defaultBodyTimeout),
		userAgent:   cmp.Or(o.UserAgent, "deskcomm"),
		transport: &http.Transport{
			Proxy:                  nil, // the dial check would see the proxy only
			DialContext:            d.plain,
			DialTLSContext:         d.secure,
			ForceAttemptHTTP2:      true,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxHeader,
			MaxConnsPerHost:        o.MaxConnsPerHost,
			MaxIdleConns:           max(leastIdle, 2*o.MaxIdleConnsPerHost),
			MaxIdleConnsPerHost:    cmp.Or(o.MaxIdleConnsPerHost, defaultIdlePerHost),
			IdleConnTimeout:        time.Minute,
			// A peer that vanished would otherwise take every later stream with it.
			HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second},
		},
	}
}

// Request is what one attempt sends.
type Request struct {
	Method string // default POST
	URL    string
	Header http.Header
	Body   []byte // must not be changed afterwards: its writing may outlive Do
	// Timeout replaces the client's budget when it is not zero.
	Timeout time.Duration
}

// build turns r into a request that net/http will send once: without GetBody and
// without a key that declares it repeatable, nothing is resent.
func (c *Client) build(ctx context.Context, r Request) (*http.Request, error) {
	target, err := c.policy.CheckURL(r.URL)
	if err != nil {
		return nil, blocked(PhaseWait, err)
	}
	req, err := http.NewRequestWithContext(ctx, cmp.Or(r.Method, http.MethodPost), target.String(), bytes.NewReader(r.Body))
	if err != nil {
		return nil, &Error{Cause: CauseInvalidRequest, Phase: PhaseWait, Reason: "method"}
	}
	req.GetBody = nil
	req.Header = maps.Clone(r.Header) // a name is added, and no value of the caller's changed
	if req.Header == nil {
		req.Header = http.Header{}
	}
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if _, found := req.Header[name]; found {
			return nil, &Error{Cause: CauseInvalidRequest, Phase: PhaseWait, Reason: "header " + name + " is not allowed"}
		}
	}
	if req.Header.Get("User-Agent") == "" {
		req.Header.Set("User-Agent", c.userAgent)
	}
	return req, nil
}
