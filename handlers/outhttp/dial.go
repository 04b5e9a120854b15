package outhttp

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"code.dny.dev/ssrf"

	"github.com/deskcomm/deskcomm/bus/urlpolicy"
)

// maxAddresses is how many addresses of one name are tried.
const maxAddresses = 4

// dialer resolves a name, judges all its addresses and connects to one of them.
type dialer struct {
	policy   urlpolicy.Policy
	resolver Resolver
	guard    *ssrf.Guardian
	tls      *tls.Config
}

// plain connects for http.
func (d *dialer) plain(ctx context.Context, _, address string) (net.Conn, error) {
	c, _, err := d.connect(ctx, address)
	return c, err
}

// secure connects for https. The handshake is made here and not by net/http so
// that it ends with the attempt.
func (d *dialer) secure(ctx context.Context, _, address string) (net.Conn, error) {
	raw, host, err := d.connect(ctx, address)
	if err != nil {
		return nil, err
	}
	at := attemptOf(ctx)
	at.reach(PhaseTLS)
	config := d.tls.Clone()
	config.ServerName = host
	c := tls.Client(raw, config)
	if err := c.HandshakeContext(at.ctx); err != nil {
		_ = raw.Close() // the handshake's error says more
		if e := ended(at.ctx, PhaseTLS); e != nil {
			return nil, e
		}
		return nil, tlsError(err)
	}
	return c, nil
}

// connect returns a connection to address and the host in it.
func (d *dialer) connect(ctx context.Context, address string) (net.Conn, string, error) {
	at := attemptOf(ctx)
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return nil, "", &Error{Cause: CauseInvalidRequest, Phase: PhaseWait, Reason: "address"}
	}
	port, err := strconv.ParseUint(portText, 10, 16)
	if err != nil {
		return nil, "", &Error{Cause: CauseInvalidRequest, Phase: PhaseWait, Reason: "port"}
	}
	at.reach(PhaseDNS)
	addrs, err := d.resolve(at.ctx, host, uint16(port))
	if err != nil {
		return nil, "", err
	}
	at.reach(PhaseConnect)
	raw, err := d.tryEach(at.ctx, host, uint16(port), addrs)
	if err != nil {
		return nil, "", err
	}
	return newConn(raw), host, nil
}

// resolve returns the addresses to try. One refused address among good ones
// condemns the name: mixed answers are how rebinding looks.
func (d *dialer) resolve(ctx context.Context, host string, port uint16) ([]netip.Addr, error) {
	addrs, err := d.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		if err := d.policy.CheckDial(host, port, addr); err != nil {
			return nil, blocked(PhaseDNS, err)
		}
	}
	return addrs[:min(len(addrs), maxAddresses)], nil
}

func (d *dialer) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, nil
	}
	addrs, err := d.resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		if e := ended(ctx, PhaseDNS); e != nil {
			return nil, e
		}
		return nil, dnsError(err)
	}
	if len(addrs) == 0 {
		return nil, &Error{Cause: CauseDNS, Phase: PhaseDNS, Reason: "no_addresses"}
	}
	return addrs, nil
}

// tryEach shares what is left of the budget among the addresses, so that a dead
// first one leaves time for the second.
func (d *dialer) tryEach(ctx context.Context, host string, port uint16, addrs []netip.Addr) (net.Conn, error) {
	var last *Error
	for i, addr := range addrs {
		c, err := d.dial(ctx, host, netip.AddrPortFrom(addr, port), len(addrs)-i)
		if err == nil {
			return c, nil
		}
		if last = err; last.Cause == CauseBlockedAddress {
			break
		}
	}
	return nil, last
}

func (d *dialer) dial(ctx context.Context, host string, to netip.AddrPort, shares int) (net.Conn, *Error) {
	if deadline, ok := ctx.Deadline(); ok && shares > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(shares))
		defer cancel()
	}
	var refusal *Error
	nd := net.Dialer{Control: func(_, address string, _ syscall.RawConn) error {
		if refusal = d.control(host, address); refusal != nil {
			return refusal
		}
		return nil
	}}
	c, err := nd.DialContext(ctx, "tcp", to.String())
	switch {
	case err == nil:
		return c, nil
	case refusal != nil:
		return nil, refusal
	}
	if e := ended(ctx, PhaseConnect); e != nil {
		return nil, e
	}
	return nil, connectError(err)
}

// control is the last look before the connection: the address the kernel was
// given. What no entry opens must also pass the second table.
func (d *dialer) control(host, address string) *Error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return blocked(PhaseConnect, err)
	}
	if err := d.policy.CheckDial(host, to.Port(), to.Addr()); err != nil {
		return blocked(PhaseConnect, err)
	}
	if urlpolicy.CheckAddr(to.Addr()) == nil { // else an entry of the operator opened it
		if err := d.guard.SafeAddr(urlpolicy.Unwrap(to.Addr())); err != nil {
			return blocked(PhaseConnect, err)
		}
	}
	return nil
}
