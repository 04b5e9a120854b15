package app_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// A kill while deliveries are being sent loses none of them. What was in flight
// may come twice, then under the same delivery id.
func TestKilledServerLosesNoDeliveryAndRepeatsOnlyWhatWasInFlight(t *testing.T) {
	t.Parallel()
	in := onShared(t, "DESKCOMM_ALLOW_PRIVATE_HOSTS=127.0.0.1", "DESKCOMM_LEASE=2s")
	hook := newReceiver(t)
	gate := make(chan struct{})
	hook.holdAll(gate)
	p := in.serve()
	_, token := in.setUp()
	p.must(201, "POST", "/v1/webhook-subscriptions", token, map[string]any{
		"url": hook.URL, "event_types": []string{"custom.order"}, "secret": hookSecret,
	})
	const events = 300
	batch := make([]map[string]any, events)
	for i := range batch {
		batch[i] = map[string]any{"event_type": "custom.order", "entity_kind": "order", "payload": map[string]any{"n": i}}
	}
	ids := p.must(201, "POST", "/v1/events/batch", token, map[string]any{"events": batch})["ids"].([]any)
	dbtest.Eventually(t, "at least 100 deliveries are in flight", func() bool { return len(hook.all()) >= 100 })
	p.kill()
	inFlight := len(hook.all())
	close(gate)
	hook.holdAll(nil)

	p = in.serve()
	dbtest.Eventually(t, "every event is done", func() bool {
		done := p.must(200, "GET", "/v1/events?status=done&limit=200&event_type=custom.order", token, nil)
		rest := p.must(200, "GET", "/v1/events?status=pending&event_type=custom.order", token, nil)
		return len(done["items"].([]any)) == 200 && len(rest["items"].([]any)) == 0
	})
	seen := map[string]map[string]int{} // event → delivery → times
	for _, d := range hook.all() {
		event := d.header.Get("X-Deskcomm-Idempotency-Key")
		if seen[event] == nil {
			seen[event] = map[string]int{}
		}
		seen[event][d.header.Get("X-Webhook-Delivery")]++
	}
	repeated := 0
	for _, id := range ids {
		deliveries := seen[id.(string)]
		if len(deliveries) != 1 {
			t.Errorf("event %v reached the receiver under %d delivery ids, want one", id, len(deliveries))
		}
		for _, times := range deliveries {
			repeated += times - 1
		}
	}
	t.Logf("%d events, %d in flight at the kill, %d requests repeated", events, inFlight, repeated)
	if repeated > inFlight {
		t.Errorf("%d requests repeated, want at most the %d that were in flight", repeated, inFlight)
	}
}

func TestPrivatePostgresEndsWithTheServerAndKeepsEveryRow(t *testing.T) {
	t.Parallel()
	in := onPrivate(t)
	p := in.serve()
	_, token := in.setUp()
	emit := func() {
		p.must(201, "POST", "/v1/events", token, map[string]any{"event_type": "custom.order", "entity_kind": "order"})
	}
	emit()
	if code := p.signal(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code after SIGTERM = %d, want 0\n%s", code, p.log)
	}
	if pids := in.postgresProcesses(); len(pids) != 0 {
		t.Errorf("Postgres processes %v are left after SIGTERM", pids)
	}

	p = in.serve()
	emit()
	p.kill()
	dbtest.Eventually(t, "no Postgres is left after SIGKILL", func() bool { return len(in.postgresProcesses()) == 0 })

	p = in.serve()
	if n := len(p.must(200, "GET", "/v1/events", token, nil)["items"].([]any)); n != 2 {
		t.Errorf("%d events after two restarts, want the 2 that were emitted", n)
	}
}

// postgresProcesses lists the processes that work on the installation's data.
func (in install) postgresProcesses() []string {
	in.Helper()
	var pids []string
	proc, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(proc) == 0 {
		out, err := exec.CommandContext(context.Background(), "ps", "-axo", "pid,command").Output()
		if err != nil {
			in.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, in.dir) && strings.Contains(line, "postgres") {
				pids = append(pids, strings.Fields(line)[0])
			}
		}
		return pids
	}
	for _, file := range proc {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		if bytes.Contains(text, []byte(in.dir)) && bytes.Contains(text, []byte("postgres")) && !bytes.Contains(text, []byte("deskcomm\x00")) {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

func TestDataDirectoryThatTheDatabaseUserCannotReachIsSaidAndWorks(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		in := onPrivate(t)
		in.serve() // the same user runs both, so every directory can be reached
		return
	}
	in := onPrivate(t)
	closed := filepath.Dir(in.dir)
	if err := os.Chmod(closed, 0o700); err != nil { //nolint:gosec // the case under test
		t.Fatal(err)
	}
	p := in.serve()
	if !strings.Contains(p.log.String(), "cluster") {
		t.Errorf("the log does not say where the data is:\n%s", p.log)
	}
	location, err := os.ReadFile(filepath.Join(in.dir, "postgres.location"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(strings.TrimSpace(string(location))); err != nil {
			t.Error(err)
		}
	})
	in.setUp() // finds the same database
	if code := p.signal(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code after SIGTERM = %d, want 0", code)
	}
}
