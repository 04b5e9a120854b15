package urlpolicy

import "strings"

// Limits of RFC 1035.
const (
	maxHost  = 253
	maxLabel = 63
)

// privateZones are names that never lead to the public internet: RFC 6761, 6762
// and 8375, the reserved .internal, and what hosts files call this machine.
var privateZones = []string{"localhost", "local", "localdomain", "internal", "home.arpa"} //nolint:gochecknoglobals // a constant table

// checkName accepts an ASCII host name of letters, digits, hyphens and underscores
// (which compose networks use). It refuses what a C resolver would read as an
// address: 127.1, 0x7f000001, 2130706433.
func checkName(host string) *Error {
	if !isASCII(host) {
		return &Error{CodeHostNotASCII, "must write the host in its ASCII (punycode) form"}
	}
	if strings.HasSuffix(host, ".") {
		return &Error{CodeHost, "must have a host without a trailing dot"}
	}
	if host == "" || len(host) > maxHost {
		return &Error{CodeHost, "must have a host of 1 to 253 characters"}
	}
	labels := strings.Split(host, ".")
	for _, label := range labels {
		if !isLabel(label) {
			return &Error{CodeHost, "must have a host name of letters, digits and inner hyphens, at most 63 in each part"}
		}
	}
	if looksNumeric(labels[len(labels)-1]) {
		return &Error{CodeHost, "must have a normal host name or an IPv4 address of four decimal numbers"}
	}
	return nil
}

func isLabel(label string) bool {
	if label == "" || len(label) > maxLabel || label[0] == '-' || label[len(label)-1] == '-' {
		return false
	}
	for _, c := range []byte(label) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// looksNumeric reports whether a host ending in this label is an address to some
// resolver: all digits, or 0x and hexadecimal digits.
func looksNumeric(label string) bool {
	digits, set := strings.ToLower(label), "0123456789"
	if rest, ok := strings.CutPrefix(digits, "0x"); ok {
		digits, set = rest, "0123456789abcdef"
	}
	return strings.Trim(digits, set) == ""
}

// isPrivateName reports whether a name can only mean a machine nearby. A name of
// one part is private too: public names have at least two.
func isPrivateName(host string) bool {
	if !strings.Contains(host, ".") {
		return true
	}
	for _, zone := range privateZones {
		if strings.HasSuffix(host, "."+zone) {
			return true
		}
	}
	return false
}

func isASCII(text string) bool {
	for _, c := range []byte(text) {
		if c >= 0x80 {
			return false
		}
	}
	return true
}
