package outhttp

import (
	"context"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// BodyNote says what is missing from a response body.
type BodyNote string

// The notes. An empty note means that the body is whole.
const (
	BodyTruncated BodyNote = "body_truncated" // longer than MaxBody
	BodyTimeout   BodyNote = "body_timeout"
	BodyBroken    BodyNote = "body_broken"
)

// Response is what came back. Beside an error it holds only RemoteIP, Duration
// and Phase.
type Response struct {
	Status   int
	Header   http.Header // without cookies and credentials
	Body     []byte      // at most MaxBody
	BodyNote BodyNote
	RemoteIP netip.Addr // of the receiver; not valid before a connection
	Duration time.Duration
	Phase    Phase
}

// Text returns the body as UTF-8 that a database and a page can hold. It is not
// escaped for HTML.
func (r Response) Text() string {
	return strings.ReplaceAll(strings.ToValidUTF8(string(r.Body), "\uFFFD"), "\x00", "\uFFFD")
}

// Do makes one attempt. Its error is always an [*Error].
func (c *Client) Do(ctx context.Context, r Request) (Response, error) {
	started := time.Now()
	budget := c.timeout
	if r.Timeout > 0 {
		budget = r.Timeout
	}
	ctx, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	at := watch(ctx)
	out, err := c.exchange(at, cancel, r)
	out.Phase, out.RemoteIP = at.state()
	out.Duration = time.Since(started)
	return out, err
}

func (c *Client) exchange(at *attempt, cancel context.CancelFunc, r Request) (Response, error) {
	req, err := c.build(at.ctx, r)
	if err != nil {
		return Response{}, err
	}
	// RoundTrip and not http.Client: it follows nothing, keeps no cookies and
	// does not put the URL into its errors.
	res, err := c.transport.RoundTrip(req)
	if err != nil {
		return Response{}, at.failure(err)
	}
	defer func() { _ = res.Body.Close() }() // what it could say is in the note
	// net/http hands 0, 101 and 999 to the caller.
	if res.StatusCode < 200 || res.StatusCode > 599 {
		return Response{}, &Error{Cause: CauseProtocol, Phase: PhaseHeaders, Reason: "status", Uncertain: true}
	}
	at.reach(PhaseBody)
	out := Response{Status: res.StatusCode, Header: withoutSecrets(res.Header)}
	if res.ContentLength != 0 {
		out.Body, out.BodyNote = c.readBody(at.ctx, cancel, res.Body)
	}
	return out, nil
}

// readBody reads what is kept of a body. It cancels the attempt when the body
// takes too long, because nothing else stops a read.
func (c *Client) readBody(ctx context.Context, cancel context.CancelFunc, body io.Reader) ([]byte, BodyNote) {
	timer := time.AfterFunc(c.bodyTimeout, cancel)
	defer timer.Stop()
	data, err := io.ReadAll(io.LimitReader(body, MaxBody+1))
	switch {
	case len(data) > MaxBody:
		return data[:MaxBody:MaxBody], BodyTruncated
	case err != nil && ctx.Err() != nil:
		return data, BodyTimeout
	case err != nil:
		return data, BodyBroken
	default:
		return data, ""
	}
}

// withoutSecrets takes them out of the headers of a response, which are nobody else's.
func withoutSecrets(h http.Header) http.Header {
	for _, name := range []string{"Set-Cookie", "Set-Cookie2", "Authorization", "Proxy-Authorization"} {
		h.Del(name)
	}
	return h
}
