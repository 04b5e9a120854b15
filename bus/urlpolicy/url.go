package urlpolicy

import (
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// maxURL is the length a call_webhook action may have.
const maxURL = 2000

// minUnprivileged is the first port that needs no entry of its own. Below it live
// mail, shells and other protocols that a POST body could speak to by accident.
const minUnprivileged = 1024

// CheckURL judges the text of a URL when it is registered and returns it parsed,
// with its host in lower case. Its error is always an [*Error]. A nil error says
// nothing about where the host leads: see [Policy.CheckDial].
func (p Policy) CheckURL(raw string) (*url.URL, error) {
	u, err := parse(raw)
	if err != nil {
		return nil, err
	}
	port, err := portOf(u)
	if err != nil {
		return nil, err
	}
	allowed, named, err := p.checkHost(u, port)
	if err != nil {
		return nil, err
	}
	if u.Scheme == "http" && !allowed {
		return nil, &Error{CodeHTTPSRequired, "must use https, unless its host and port are in the operator's allow list"}
	}
	if !named && port < minUnprivileged && port != defaultPort(u.Scheme) {
		return nil, &Error{CodePort, "must use port 443 or one from 1024 on"}
	}
	return u, nil
}

// parse reads raw and checks everything that does not depend on the policy.
func parse(raw string) (*url.URL, error) {
	switch {
	case raw == "":
		return nil, &Error{CodeInvalid, "must not be empty"}
	case len(raw) > maxURL:
		return nil, &Error{CodeTooLong, "must have at most 2000 characters"}
	case strings.ContainsFunc(raw, isForbidden):
		return nil, &Error{CodeCharacters, "must not contain spaces, control characters or backslashes"}
	}
	u, err := url.Parse(raw) // its error holds the URL and goes no further
	if err != nil {
		return nil, &Error{CodeInvalid, "must be an absolute URL such as https://example.com/path"}
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, &Error{CodeScheme, "must start with https://"}
	case u.Opaque != "" || u.Host == "":
		return nil, &Error{CodeInvalid, "must be an absolute URL such as https://example.com/path"}
	case u.User != nil:
		return nil, &Error{CodeUserinfo, "must not contain a user or password"}
	case strings.Contains(raw, "#"):
		return nil, &Error{CodeFragment, "must not have a fragment"}
	case !isASCII(u.Host):
		return nil, &Error{CodeHostNotASCII, "must write the host in its ASCII (punycode) form"}
	case !isASCII(raw):
		return nil, &Error{CodeCharacters, "must percent-encode characters outside ASCII"}
	case hasEncodedControl(raw):
		return nil, &Error{CodeCharacters, "must not contain percent-encoded control characters"}
	}
	u.Host = strings.ToLower(u.Host)
	return u, nil
}

func isForbidden(r rune) bool { return r <= ' ' || r == 0x7f || r == '\\' }

// hasEncodedControl finds %00 to %1f and %7f, which servers behind a careless
// proxy turn back into line breaks.
func hasEncodedControl(raw string) bool {
	for i := 0; i+2 < len(raw); i++ {
		if raw[i] != '%' {
			continue
		}
		code := raw[i+1 : i+3]
		if code[0] == '0' || code[0] == '1' || strings.EqualFold(code, "7f") {
			return true
		}
	}
	return false
}

func portOf(u *url.URL) (uint16, error) {
	text := u.Port()
	if text == "" && !strings.HasSuffix(u.Host, ":") {
		return defaultPort(u.Scheme), nil
	}
	port, ok := parsePort(text)
	if !ok {
		return 0, &Error{CodePort, "must have a port number from 1 to 65535"}
	}
	return port, nil
}

func defaultPort(scheme string) uint16 {
	if scheme == "http" {
		return 80
	}
	return 443
}

// checkHost reports whether an entry opens the host, and whether that entry
// names the port.
func (p Policy) checkHost(u *url.URL, port uint16) (allowed, named bool, err error) {
	host := u.Hostname()
	if strings.HasPrefix(u.Host, "[") {
		return p.checkIPv6(u, host, port)
	}
	if addr, err := netip.ParseAddr(host); err == nil && addr.Is4() {
		e, ok := p.addrEntry(addr, port)
		if !ok {
			return false, false, CheckAddr(addr)
		}
		return true, e.port != 0, nil
	}
	if err := checkName(host); err != nil {
		return false, false, err
	}
	e, ok := p.hostEntry(host, port)
	if !ok && isPrivateName(host) {
		return false, false, &Error{CodePrivateHost, "must name a public host, or one in the operator's allow list"}
	}
	return ok, e.port != 0, nil
}

// checkIPv6 accepts a literal that an entry opens, and writes it in its one
// canonical form.
func (p Policy) checkIPv6(u *url.URL, host string, port uint16) (allowed, named bool, err error) {
	addr, parseErr := netip.ParseAddr(host)
	if parseErr != nil || addr.Is4In6() || addr.Zone() != "" || Unwrap(addr) != addr {
		return false, false, &Error{CodeIPv6Literal, "must use a host name and not an IPv6 address"}
	}
	e, ok := p.addrEntry(addr, port)
	if !ok {
		return false, false, &Error{CodeIPv6Literal, "must use a host name, or an IPv6 address in the operator's allow list"}
	}
	canonical := "[" + addr.String() + "]"
	if u.Port() != "" {
		canonical = net.JoinHostPort(addr.String(), u.Port())
	}
	u.Host = canonical
	return true, e.port != 0, nil
}
