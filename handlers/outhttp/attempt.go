package outhttp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http/httptrace"
	"net/netip"
	"slices"
	"sync"
)

type attemptKey struct{}

// attempt watches one request on its way through net/http, which dials and writes
// in goroutines of its own.
type attempt struct {
	// ctx is the request's own: net/http dials under a context without its
	// deadline, so that a black hole would keep its connection slot.
	ctx context.Context

	mu     sync.Mutex
	phase  Phase
	remote netip.Addr
	conn   *conn
	writes int64 // of conn, before this request
}

// watch starts an attempt; its ctx reports to it.
func watch(ctx context.Context) *attempt {
	at := &attempt{phase: PhaseWait}
	at.ctx = httptrace.WithClientTrace(context.WithValue(ctx, attemptKey{}, at), &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { at.gotConn(info.Conn) },
		WroteRequest: func(info httptrace.WroteRequestInfo) {
			if info.Err == nil {
				at.reach(PhaseHeaders)
			}
		},
	})
	return at
}

// attemptOf finds the attempt that a dial is made for.
func attemptOf(ctx context.Context) *attempt {
	at, _ := ctx.Value(attemptKey{}).(*attempt)
	return at
}

// reach moves forward only: a dial may go on although the request got another
// connection, and a request may still be written while its response is read.
func (at *attempt) reach(phase Phase) {
	at.mu.Lock()
	defer at.mu.Unlock()
	if slices.Index(phases, phase) > slices.Index(phases, at.phase) {
		at.phase = phase
	}
}

func (at *attempt) gotConn(c net.Conn) {
	at.reach(PhaseWrite)
	at.mu.Lock()
	defer at.mu.Unlock()
	if tcp, ok := c.RemoteAddr().(*net.TCPAddr); ok {
		at.remote = tcp.AddrPort().Addr().Unmap()
	}
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if at.conn, _ = c.(*conn); at.conn != nil {
		at.writes = at.conn.writes.Load()
	}
}

func (at *attempt) state() (Phase, netip.Addr) {
	at.mu.Lock()
	defer at.mu.Unlock()
	return at.phase, at.remote
}

// sent reports whether anything was written since the attempt got its
// connection. On a shared HTTP/2 connection it may have been another stream's.
func (at *attempt) sent() bool {
	at.mu.Lock()
	defer at.mu.Unlock()
	return at.conn != nil && at.conn.writes.Load() > at.writes
}

// failure turns what net/http returned into our error.
func (at *attempt) failure(err error) *Error {
	phase, _ := at.state()
	if typed, ok := errors.AsType[*Error](err); ok {
		return typed // made by the dialer: nothing was sent
	}
	e := ended(at.ctx, phase)
	switch {
	case e != nil:
	case phase == PhaseWait:
		e = &Error{Cause: CauseInvalidRequest, Phase: phase, Reason: "header"}
	default:
		e = exchangeError(phase, err)
	}
	e.Uncertain = at.sent()
	return e
}
