package urlpolicy

import "net/netip"

// block is one range that outgoing HTTP does not reach by itself.
type block struct {
	prefix netip.Prefix
	rule   string
	// openable ranges are those an operator's own machines live in.
	openable bool
}

const (
	ruleLoopback  = "must not reach a loopback address"
	rulePrivate   = "must not reach a private address"
	ruleLinkLocal = "must not reach a link-local address"
	ruleMetadata  = "must not reach a cloud metadata address"
	ruleSpecial   = "must not reach a special-purpose address"
	ruleMulticast = "must not reach a multicast address"
	ruleTunnel    = "must not reach an address that embeds another one"
)

// blocks is the table of refused ranges. The first match wins, so a hole in an
// openable range stands above the range. Sources: the IANA special-purpose
// registries, and the metadata addresses that cloud providers document.
var blocks = []block{ //nolint:gochecknoglobals // a constant table
	shut("100.100.100.200/32", ruleMetadata), // inside 100.64.0.0/10
	shut("168.63.129.16/32", ruleMetadata),   // a host agent on a public-looking address
	shut("fd00:42::42/128", ruleMetadata),
	shut("fd00:ec2::/32", ruleMetadata),
	shut("fd20:ce::254/128", ruleMetadata),

	open("127.0.0.0/8", ruleLoopback),
	open("::1/128", ruleLoopback),
	open("10.0.0.0/8", rulePrivate),
	open("100.64.0.0/10", rulePrivate), // shared address space, overlay networks
	open("172.16.0.0/12", rulePrivate),
	open("192.168.0.0/16", rulePrivate),
	open("fc00::/7", rulePrivate),

	shut("0.0.0.0/8", ruleSpecial),
	shut("169.254.0.0/16", ruleLinkLocal),
	shut("192.0.0.0/24", ruleSpecial),
	shut("192.0.2.0/24", ruleSpecial),
	shut("192.31.196.0/24", ruleSpecial),
	shut("192.52.193.0/24", ruleSpecial),
	shut("192.88.99.0/24", ruleSpecial),
	shut("192.175.48.0/24", ruleSpecial),
	shut("198.18.0.0/15", ruleSpecial),
	shut("198.51.100.0/24", ruleSpecial),
	shut("203.0.113.0/24", ruleSpecial),
	shut("224.0.0.0/4", ruleMulticast),
	shut("240.0.0.0/4", ruleSpecial), // with 255.255.255.255

	shut("::/96", ruleTunnel), // unspecified and IPv4-compatible
	shut("64:ff9b:1::/48", ruleTunnel),
	shut("100::/64", ruleSpecial),
	shut("2001::/23", ruleTunnel), // Teredo and friends
	shut("2001:db8::/32", ruleSpecial),
	shut("2002::/16", ruleTunnel), // 6to4
	shut("2620:4f:8000::/48", ruleSpecial),
	shut("3fff::/20", ruleSpecial),
	shut("5f00::/16", ruleSpecial),
	shut("fe80::/10", ruleLinkLocal),
	shut("fec0::/10", ruleSpecial),
	shut("ff00::/8", ruleMulticast),
}

var (
	nat64         = netip.MustParsePrefix("64:ff9b::/96") //nolint:gochecknoglobals // a constant that the language has no form for
	globalUnicast = netip.MustParsePrefix("2000::/3")     //nolint:gochecknoglobals // a constant that the language has no form for
)

func shut(prefix, rule string) block {
	return block{prefix: netip.MustParsePrefix(prefix), rule: rule}
}

func open(prefix, rule string) block {
	return block{prefix: netip.MustParsePrefix(prefix), rule: rule, openable: true}
}

// CheckAddr refuses every address that is not public, after unwrapping. It knows
// no allow list; see [Policy.CheckDial].
func CheckAddr(addr netip.Addr) error {
	if b, refused := classify(addr); refused {
		return &Error{Code: CodePrivateIP, Rule: b.rule}
	}
	return nil
}

// Unwrap returns the IPv4 address inside a mapped or NAT64 address, and any
// other address as it is.
func Unwrap(addr netip.Addr) netip.Addr {
	addr = addr.Unmap()
	if addr.Zone() == "" && nat64.Contains(addr) {
		b := addr.As16()
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return addr
}

// classify returns the block that holds addr, if any does.
func classify(addr netip.Addr) (block, bool) {
	if !addr.IsValid() || addr.Zone() != "" {
		return block{rule: ruleLinkLocal}, true
	}
	addr = Unwrap(addr)
	for _, b := range blocks {
		if b.prefix.Contains(addr) {
			return b, true
		}
	}
	if addr.Is6() && !globalUnicast.Contains(addr) {
		return block{rule: ruleSpecial}, true
	}
	return block{}, false
}
