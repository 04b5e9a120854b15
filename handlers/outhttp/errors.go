package outhttp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/deskcomm/deskcomm/bus/urlpolicy"
)

// Cause is the machine word for why an attempt has no response.
type Cause string

// The causes.
const (
	CauseInvalidRequest  Cause = "invalid_request"
	CauseBlockedAddress  Cause = "blocked_address"
	CauseDNS             Cause = "dns_error"
	CauseConnect         Cause = "connect_error"
	CauseTLS             Cause = "tls_error"
	CauseTimeout         Cause = "timeout"
	CauseConnectionReset Cause = "connection_reset"
	CauseProtocol        Cause = "protocol_error"
	CauseCanceled        Cause = "canceled" // the caller's context ended
)

// Phase is how far an attempt came.
type Phase string

// The phases, in their order. PhaseWait is the time before the connection is asked
// for, including the wait for a slot when connections are limited.
const (
	PhaseWait    Phase = "wait"
	PhaseDNS     Phase = "dns"
	PhaseConnect Phase = "connect"
	PhaseTLS     Phase = "tls"
	PhaseWrite   Phase = "write"
	PhaseHeaders Phase = "headers"
	PhaseBody    Phase = "body"
)

var phases = []Phase{PhaseWait, PhaseDNS, PhaseConnect, PhaseTLS, PhaseWrite, PhaseHeaders, PhaseBody} //nolint:gochecknoglobals // a constant table

// Error is an attempt without a response.
type Error struct {
	Cause Cause
	Phase Phase
	// Reason narrows the cause, as a constant text: "certificate_expired". May be empty.
	Reason string
	// Uncertain is set when the receiver may have got the request.
	Uncertain bool
}

// Error gives cause, phase and reason.
func (e *Error) Error() string {
	text := string(e.Cause) + " in phase " + string(e.Phase)
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// Is lets errors.Is find the context errors behind a timeout and a cancellation.
func (e *Error) Is(target error) bool {
	return e.Cause == CauseTimeout && target == context.DeadlineExceeded ||
		e.Cause == CauseCanceled && target == context.Canceled
}

// blocked hides a refusal of the policy behind its rule.
func blocked(phase Phase, err error) *Error {
	reason := "refused"
	if refusal, ok := errors.AsType[*urlpolicy.Error](err); ok {
		reason = refusal.Rule
	}
	return &Error{Cause: CauseBlockedAddress, Phase: phase, Reason: reason}
}

// ended returns the error of a context that is over, or nil.
func ended(ctx context.Context, phase Phase) *Error {
	switch {
	case ctx.Err() == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &Error{Cause: CauseTimeout, Phase: phase}
	default:
		return &Error{Cause: CauseCanceled, Phase: phase}
	}
}

// exchangeError classifies what went wrong on a connection in use.
func exchangeError(phase Phase, err error) *Error {
	switch {
	case isTimeout(err):
		return &Error{Cause: CauseTimeout, Phase: phase}
	case isReset(err):
		return &Error{Cause: CauseConnectionReset, Phase: phase}
	case strings.Contains(err.Error(), "headers exceeded"):
		return &Error{Cause: CauseProtocol, Phase: phase, Reason: "headers_too_large"}
	default:
		return &Error{Cause: CauseProtocol, Phase: phase}
	}
}

func isTimeout(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout() || errors.Is(err, os.ErrDeadlineExceeded)
}

// isReset also knows the one error of net/http for an idle connection that the
// server closed; it is not exported.
func isReset(err error) bool {
	for _, target := range []error{syscall.ECONNRESET, syscall.EPIPE, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed} {
		if errors.Is(err, target) {
			return true
		}
	}
	return strings.Contains(err.Error(), "server closed idle connection")
}

// connectError classifies a failed connection.
func connectError(err error) *Error {
	e := &Error{Cause: CauseConnect, Phase: PhaseConnect}
	switch {
	case isTimeout(err):
		e.Cause = CauseTimeout
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Reason = "refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		e.Reason = "unreachable"
	}
	return e
}

// dnsError classifies a failed resolution.
func dnsError(err error) *Error {
	e := &Error{Cause: CauseDNS, Phase: PhaseDNS}
	dns, ok := errors.AsType[*net.DNSError](err)
	switch {
	case ok && dns.IsNotFound:
		e.Reason = "not_found"
	case ok && dns.IsTimeout, isTimeout(err):
		e.Cause = CauseTimeout
	}
	return e
}

// tlsError names what is wrong with the receiver's certificate or handshake.
func tlsError(err error) *Error {
	e := &Error{Cause: CauseTLS, Phase: PhaseTLS, Reason: "handshake_failed"}
	invalid, isInvalid := errors.AsType[x509.CertificateInvalidError](err)
	_, isWrongName := errors.AsType[x509.HostnameError](err)
	_, isUnknown := errors.AsType[x509.UnknownAuthorityError](err)
	_, isPlain := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case isInvalid && invalid.Reason == x509.Expired && time.Now().Before(invalid.Cert.NotBefore):
		e.Reason = "certificate_not_yet_valid"
	case isInvalid && invalid.Reason == x509.Expired:
		e.Reason = "certificate_expired"
	case isInvalid:
		e.Reason = "certificate_invalid"
	case isWrongName:
		e.Reason = "certificate_wrong_name"
	case isUnknown:
		e.Reason = "certificate_unknown_authority"
	case isPlain:
		e.Reason = "not_tls"
	case isTimeout(err):
		return &Error{Cause: CauseTimeout, Phase: PhaseTLS}
	case isReset(err):
		return &Error{Cause: CauseConnectionReset, Phase: PhaseTLS}
	}
	return e
}
