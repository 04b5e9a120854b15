package app

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// idle is a handler that has nothing to do.
type idle struct{ consumer bus.Consumer }

func (h idle) Consumer() bus.Consumer { return h.consumer }

func (idle) Handle(context.Context, *bus.Delivery) error { return nil }

func idleReader(name string, types ...bus.Type) bus.Handler {
	return idle{bus.Consumer{
		Name: name, Types: types, Effect: bus.EffectAtLeastOnce, Retry: bus.DefaultRetry(), Concurrency: 1, Timeout: time.Second,
	}}
}

// A set of handlers that cannot run is a fault of the program: the process stays
// up, says why it is not ready, and takes events for one that can.
func TestAServerWithHandlersThatCannotRunStaysUpAndSaysWhy(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		handlers []bus.Handler
		reason   string
	}{
		"twice the same name": {
			[]bus.Handler{idleReader("first-worker"), idleReader("first-worker")},
			`consumer "first-worker" is registered twice`,
		},
		"an unknown type": {
			[]bus.Handler{idleReader("first-worker", "no.such_thing")},
			`consumer "first-worker" reads "no.such_thing", which is not in the catalogue`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := dbtest.Open(t, dbtest.Fresh(t), db.Options{})
			token := dbtest.Token(t, store, dbtest.Org(t, store))
			var lines bytes.Buffer
			s, stop := runServer(t, store, tt.handlers, &lines)
			base := "http://" + s.listener.Addr().String()

			var answer struct{ Reasons map[string]string }
			if status := ask(t, http.MethodGet, base+"/readyz", "", "", &answer); status != http.StatusServiceUnavailable || answer.Reasons["handlers"] != tt.reason {
				t.Errorf("/readyz = %d %v, want 503 and %q", status, answer.Reasons, tt.reason)
			}
			if status := ask(t, http.MethodGet, base+"/livez", "", "", nil); status != http.StatusOK {
				t.Errorf("/livez = %d, want 200", status)
			}
			body := `{"event_type": "custom.order", "entity_kind": "order"}`
			if status := ask(t, http.MethodPost, base+"/v1/events", token, body, nil); status != http.StatusCreated {
				t.Errorf("emission = %d, want 201", status)
			}
			if err := stop(); err != nil {
				t.Errorf("run() = %v, want nil", err)
			}
			if len(s.pulse.beats) != 0 {
				t.Errorf("relay and worker have run: %v", s.pulse.beats)
			}
			if n := strings.Count(lines.String(), "level=ERROR"); n != 1 {
				t.Errorf("%d errors are logged, want 1 in:\n%s", n, &lines)
			}
		})
	}
}

// runServer runs every role on a database and returns what stops it.
func runServer(t *testing.T, store *db.DB, handlers []bus.Handler, lines *bytes.Buffer) (s *server, stop func() error) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s = &server{
		config: ServerConfig{Roles: []string{"api", "relay", "worker", "cron"}}, logger: slog.New(slog.NewTextHandler(lines, nil)),
		listener: listener, store: store, handlers: handlers, registered: newRegistration(),
		emitted: make(chan struct{}), relayWake: make(chan struct{}, 1), drainWake: make(chan struct{}, 1),
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.register(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	return s, func() error {
		cancel()
		return <-ended
	}
}

// ask makes a request and reads the JSON of the answer, unless answer is nil.
func ask(t *testing.T, method, url, token, body string, answer any) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // read whole, or not wanted
	if answer == nil {
		return res.StatusCode
	}
	if err := json.NewDecoder(res.Body).Decode(answer); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode
}
