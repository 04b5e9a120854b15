package urlpolicy

import (
	"errors"
	"net/netip"
	"strings"
)

// Policy holds what the operator opened. The zero Policy opens nothing. A Policy
// is immutable and safe for concurrent use.
type Policy struct {
	entries []entry
}

// New reads the operator's allow list. Blank entries are skipped; every other
// fault is reported, as [*AllowError] values joined together.
func New(allow []string) (Policy, error) {
	var p Policy
	var faults []error
	for i, text := range allow {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		e, rule := parseEntry(text)
		if rule != "" {
			faults = append(faults, &AllowError{Position: i + 1, Rule: rule})
			continue
		}
		p.entries = append(p.entries, e)
	}
	if len(faults) > 0 {
		return Policy{}, errors.Join(faults...)
	}
	return p, nil
}

// AllowsHost reports whether an entry opens this host on this port. A host that
// is an IP address is judged by [Policy.AllowsAddr].
func (p Policy) AllowsHost(host string, port uint16) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return p.AllowsAddr(addr, port)
	}
	_, ok := p.hostEntry(host, port)
	return ok
}

// AllowsAddr reports whether an IP or CIDR entry opens this address on this port.
func (p Policy) AllowsAddr(addr netip.Addr, port uint16) bool {
	_, ok := p.addrEntry(addr, port)
	return ok
}

// CheckDial decides whether a connection made for host may go to addr. A public
// address passes; a loopback or private one needs an entry for the host or for the
// address; all others are refused whatever the entries say.
func (p Policy) CheckDial(host string, port uint16, addr netip.Addr) error {
	b, refused := classify(addr)
	if !refused {
		return nil
	}
	if b.openable && (p.AllowsHost(host, port) || p.AllowsAddr(addr, port)) {
		return nil
	}
	return &Error{Code: CodePrivateIP, Rule: b.rule}
}

// hostEntry prefers an entry that names the port, because it opens more.
func (p Policy) hostEntry(host string, port uint16) (entry, bool) {
	return p.find(port, func(e entry) bool { return e.host != "" && strings.EqualFold(e.host, host) })
}

func (p Policy) addrEntry(addr netip.Addr, port uint16) (entry, bool) {
	if b, refused := classify(addr); refused && !b.openable {
		return entry{}, false
	}
	addr = Unwrap(addr)
	return p.find(port, func(e entry) bool { return e.host == "" && e.prefix.Contains(addr) })
}

func (p Policy) find(port uint16, match func(entry) bool) (found entry, ok bool) {
	for _, e := range p.entries {
		if !e.hasPort(port) || !match(e) {
			continue
		}
		if e.port != 0 {
			return e, true
		}
		found, ok = e, true
	}
	return found, ok
}
