package outhttp

import (
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAnAttemptIsCertainUntilItWrites(t *testing.T) {
	t.Parallel()
	client, server := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, server) }()
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
	})
	c := newConn(client)
	write := func() {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	write() // of an earlier attempt
	at := watch(t.Context())
	if at.sent() {
		t.Error("sent() = true without a connection")
	}
	at.gotConn(c)
	if at.sent() {
		t.Error("sent() = true before the first write")
	}
	write()
	if !at.sent() {
		t.Error("sent() = false after a write")
	}
}

func TestAPhaseIsNeverLeftBackwards(t *testing.T) {
	t.Parallel()
	at := watch(t.Context())
	for _, step := range []struct{ reach, want Phase }{
		{PhaseDNS, PhaseDNS}, {PhaseWrite, PhaseWrite}, {PhaseConnect, PhaseWrite}, {PhaseBody, PhaseBody}, {PhaseHeaders, PhaseBody},
	} {
		at.reach(step.reach)
		if got, _ := at.state(); got != step.want {
			t.Errorf("after %q: phase = %q, want %q", step.reach, got, step.want)
		}
	}
}

func TestTheCallersRequestIsLeftAlone(t *testing.T) {
	t.Parallel()
	agents := make(chan string, 2)
	rec := receive(t, func(x exchange) {
		for {
			req, err := http.ReadRequest(x.r)
			if err != nil {
				return
			}
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
			agents <- req.UserAgent()
			x.say(ok200)
		}
	})
	c := newClient(t, Options{UserAgent: "deskcomm/1"})
	r, want := post(rec.URL), post(rec.URL)
	if _, err := c.Do(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, r); diff != "" {
		t.Errorf("the request changed (-want +got):\n%s", diff)
	}
	r.Header.Set("User-Agent", "own/2")
	if _, err := c.Do(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"deskcomm/1", "own/2"} {
		if got := <-agents; got != want {
			t.Errorf("User-Agent = %q, want %q", got, want)
		}
	}
}
