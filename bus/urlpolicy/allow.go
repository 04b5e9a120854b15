package urlpolicy

import (
	"net/netip"
	"strconv"
	"strings"
)

// entry is one line of the allow list: a host or a prefix, and perhaps a port.
type entry struct {
	host   string       // lower case; empty when prefix is set
	prefix netip.Prefix // an address is a prefix of full length
	port   uint16       // 0 means any permitted port
}

func (e entry) hasPort(port uint16) bool { return e.port == 0 || e.port == port }

// parseEntry reads one entry and returns the rule it breaks, or "".
func parseEntry(text string) (entry, string) {
	switch {
	case strings.Contains(text, "://"):
		return entry{}, "write the host without a scheme"
	case strings.Contains(text, "*"):
		return entry{}, "wildcards are not supported, name each host or use a CIDR"
	case strings.Contains(text, "%"):
		return entry{}, "an address must not have a zone"
	case strings.Contains(text, "/"):
		return parseCIDR(text)
	}
	if addr, err := netip.ParseAddr(text); err == nil {
		return addrEntry(addr, 0)
	}
	host, port, rule := splitPort(text)
	if rule != "" {
		return entry{}, rule
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		addr, err := netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		if err != nil || !addr.Is6() || !strings.HasSuffix(inner, "]") {
			return entry{}, "the brackets must hold an IPv6 address"
		}
		return addrEntry(addr, port)
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addrEntry(addr, port)
	}
	host = strings.ToLower(host)
	if err := checkName(host); err != nil {
		return entry{}, err.Rule
	}
	return entry{host: host, port: port}, ""
}

func parseCIDR(text string) (entry, string) {
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return entry{}, "must be a CIDR such as 10.0.0.0/8"
	case prefix.Addr().Is4In6():
		return entry{}, "write the range in IPv4 form"
	case prefix != prefix.Masked():
		return entry{}, "a CIDR must start at its network address"
	}
	return prefixEntry(prefix, 0)
}

func addrEntry(addr netip.Addr, port uint16) (entry, string) {
	if addr.Is4In6() {
		return entry{}, "write the address in IPv4 form"
	}
	return prefixEntry(netip.PrefixFrom(addr, addr.BitLen()), port)
}

// prefixEntry refuses a range that no entry can open: an entry without effect
// would let the operator believe that it has one.
func prefixEntry(prefix netip.Prefix, port uint16) (entry, string) {
	if isShut(prefix) {
		return entry{}, "link-local, metadata, multicast and reserved ranges cannot be allowed"
	}
	return entry{prefix: prefix, port: port}, ""
}

// isShut reports whether the whole prefix lies in one range that stays shut.
func isShut(prefix netip.Prefix) bool {
	within := func(outer netip.Prefix) bool {
		return outer.Bits() <= prefix.Bits() && outer.Contains(prefix.Addr())
	}
	for _, b := range blocks {
		if within(b.prefix) {
			return !b.openable
		}
	}
	broad := prefix.Bits() < globalUnicast.Bits()
	return prefix.Addr().Is6() && !broad && !within(globalUnicast)
}

// splitPort cuts an optional :port off the end of a host.
func splitPort(text string) (host string, port uint16, rule string) {
	colon := strings.LastIndexByte(text, ':')
	if colon < 0 || strings.HasSuffix(text, "]") {
		return text, 0, ""
	}
	port, ok := parsePort(text[colon+1:])
	if !ok {
		return "", 0, "the port must be a number from 1 to 65535"
	}
	return text[:colon], port, ""
}

// parsePort accepts the canonical decimal form only, so that one port has one spelling.
func parsePort(text string) (uint16, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != text {
		return 0, false
	}
	return uint16(n), true
}
