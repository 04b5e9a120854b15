// Package urlpolicy decides which URLs and addresses outgoing HTTP may reach.
//
// A URL that a tenant types is checked twice. [Policy.CheckURL] reads its text
// when it is registered: scheme, host, port and every character. [Policy.CheckDial]
// judges the concrete address when a connection is made, because a name that was
// public yesterday may point at this machine today. The package resolves nothing
// and opens nothing; package outhttp does.
//
// # What is refused
//
// Everything but https to a host name or to a public dotted IPv4 address.
// Addresses are compared with an explicit table ([CheckAddr]) and not with the
// predicates of net/netip, which miss more than a dozen special ranges. IPv4 inside
// IPv6 (mapped, NAT64) is unwrapped first; zones are refused.
//
// # What the operator may open
//
// The entries given to [New] are host, host:port, IP, IP:port or CIDR.
//
//   - A host entry opens http for that exact name, and lets the name resolve to
//     loopback and private addresses; localhost may thus be 127.0.0.1 and ::1.
//   - An IP or CIDR entry opens http for these literals, and lets any name resolve
//     to them. It does not open the name localhost: entries mean what they say.
//   - An entry with a port opens that port only, also one below 1024. An entry
//     without a port opens 80 for http, 443 for https and every port from 1024 on.
//
// Only loopback, private (RFC 1918, RFC 6598) and unique local ranges can be
// opened. Link-local, cloud metadata, multicast, documentation and reserved
// ranges stay shut under every entry, however broad.
//
// Errors carry a code and the rule that was broken, never the URL, the host or
// the address: a URL often holds a credential.
package urlpolicy
