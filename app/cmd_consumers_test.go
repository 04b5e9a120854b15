package app_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

const dispatcher = "webhook-dispatch-worker"

// consumer is a consumer's line of the list.
func (in install) consumer(name string) map[string]any {
	in.Helper()
	for _, item := range in.runJSON("", "consumers", "list")["items"].([]any) {
		if line := item.(map[string]any); line["name"] == name {
			return line
		}
	}
	in.Fatalf("%s is not listed", name)
	return nil
}

// ok runs a command that must succeed and returns what it printed.
func (in install) ok(args ...string) string {
	in.Helper()
	out, errs, code := in.run("", args...)
	if code != 0 {
		in.Fatalf("deskcomm %v = exit %d: %s", args, code, errs)
	}
	return out
}

func TestPausedConsumerOutlivesARestartAndRunsWhenItIsResumed(t *testing.T) {
	t.Parallel()
	in := onShared(t, "DESKCOMM_ALLOW_PRIVATE_HOSTS=127.0.0.1", "DESKCOMM_MASTER_KEY=MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
	hook := newReceiver(t)
	p := in.serve()
	_, token := in.setUp()
	p.must(201, "POST", "/v1/webhook-subscriptions", token, map[string]any{"url": hook.URL, "event_types": []string{"*"}})
	in.ok("consumers", "pause", dispatcher, "--reason", "the receiver moves")
	emit := func(p *process) string {
		return p.must(201, "POST", "/v1/events", token, map[string]any{"event_type": "custom.order", "entity_kind": "order"})["id"].(string)
	}
	relayed := func(p *process, id string) func() bool {
		return func() bool { return p.must(200, "GET", "/v1/events/"+id, token, nil)["seq"] != nil }
	}
	first := emit(p)
	dbtest.Eventually(t, "the event is relayed", relayed(p, first))
	if code := p.signal(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code after SIGTERM = %d, want 0", code)
	}
	p = in.serve()
	last := emit(p)
	dbtest.Eventually(t, "the event after the restart is relayed", relayed(p, last))
	line := in.consumer(dispatcher)
	if line["paused_reason"] != "the receiver moves" || line["paused_at"] == nil || line["waiting"] != 2.0 || line["oldest_due_at"] == nil {
		t.Errorf("listed as %v, want it paused with two that wait", line)
	}
	if out := in.ok("consumers", "list"); !strings.Contains(out, "PAUSED since ") || !strings.Contains(out, ": the receiver moves") {
		t.Errorf("consumers list does not say that one is paused:\n%s", out)
	}
	if n := len(hook.all()); n != 0 {
		t.Errorf("the receiver got %d requests of a paused consumer", n)
	}
	in.ok("consumers", "resume", dispatcher)
	dbtest.Eventually(t, "both are delivered", func() bool { return len(hook.all()) == 2 })
	if line := in.consumer(dispatcher); line["paused_at"] != nil || line["paused_reason"] != nil {
		t.Errorf("listed as %v, want it running", line)
	}
}

func TestBackfillOnTheCommandLineCountsFirstAndDoesItWithYes(t *testing.T) {
	t.Parallel()
	in := onShared(t, "DESKCOMM_ALLOW_PRIVATE_HOSTS=127.0.0.1")
	hook := newReceiver(t)
	p := in.serve()
	org, token := in.setUp()
	for range 3 {
		p.must(201, "POST", "/v1/events", token, map[string]any{"event_type": "custom.order", "entity_kind": "order"})
	}
	sub := p.must(201, "POST", "/v1/webhook-subscriptions", token, map[string]any{"url": hook.URL, "event_types": []string{"custom.*"}})["id"].(string)
	p.must(201, "POST", "/v1/events", token, map[string]any{"event_type": "custom.order", "entity_kind": "order"})
	dbtest.Eventually(t, "the new event is delivered", func() bool { return len(hook.all()) == 1 && in.consumer(dispatcher)["waiting"] == 0.0 })

	args := []string{"consumers", "backfill", "--subscription", sub, "--organization", org, "--since", "1d"}
	want := map[string]any{
		"done":  false,
		"total": map[string]any{"event_type": "total", "made": 3.0, "skipped_unfinished": 0.0, "skipped_dead": 0.0, "skipped_done": 1.0},
		"items": []any{map[string]any{"event_type": "custom.order", "made": 3.0, "skipped_unfinished": 0.0, "skipped_dead": 0.0, "skipped_done": 1.0}},
	}
	if diff := cmp.Diff(want, in.runJSON("", args...)); diff != "" {
		t.Errorf("preview (-want +got):\n%s", diff)
	}
	if out := in.ok(args...); !strings.Contains(out, "--yes") {
		t.Errorf("the preview does not say how to go on:\n%s", out)
	}
	if n := len(hook.all()); n != 1 {
		t.Errorf("the receiver got %d requests before --yes, want 1", n)
	}
	want["done"] = true
	if diff := cmp.Diff(want, in.runJSON("", append(args, "--yes")...)); diff != "" {
		t.Errorf("with --yes (-want +got):\n%s", diff)
	}
	dbtest.Eventually(t, "the past is delivered", func() bool { return len(hook.all()) == 4 && in.consumer(dispatcher)["waiting"] == 0.0 })
	if total := in.runJSON("", append(args, "--yes")...)["total"].(map[string]any); total["made"] != 0.0 || total["skipped_done"] != 4.0 {
		t.Errorf("with --yes again = %v, want nothing made", total)
	}
	if acts := in.count("select count(*) from audit_log where action = 'consumer.backfilled' and organization_id = $1 and resource_id = $2", org, sub); acts != 2 {
		t.Errorf("%d acts are audited, want both", acts)
	}
}

func TestConsumerCommandsRefuseWhatBreaksARule(t *testing.T) {
	t.Parallel()
	in := onShared(t)
	org, _ := in.setUp()
	in.sql("insert into consumers (name, event_types, effect, retry_steps, retry_jitter, max_attempts) values ('some-worker', '{custom.x}', 'local', '{}', 0, 1)")
	nobody, soon := uuid.NewString(), time.Now().Add(48*time.Hour).UTC().Format(time.RFC3339)
	for name, tt := range map[string]struct {
		args []string
		code int
		says string
	}{
		"pausing nobody":                    {[]string{"pause", "no-worker", "--reason", "x"}, 3, "no such consumer"},
		"pausing without a reason":          {[]string{"pause", "some-worker"}, 2, "reason"},
		"pausing with an empty reason":      {[]string{"pause", "some-worker", "--reason", " "}, 2, "reason"},
		"resuming what runs":                {[]string{"resume", "some-worker"}, 3, "consumer.resumed"},
		"resuming nobody":                   {[]string{"resume", "no-worker"}, 3, "no such consumer"},
		"a backfill of nobody":              {[]string{"backfill", "no-worker", "--since", "1d"}, 3, "no such consumer"},
		"a backfill without a beginning":    {[]string{"backfill", "some-worker"}, 2, "since"},
		"a beginning that is none":          {[]string{"backfill", "some-worker", "--since", "yesterday"}, 2, "since"},
		"a beginning in the future":         {[]string{"backfill", "some-worker", "--since", soon, "--yes"}, 2, "since"},
		"a beginning before the log":        {[]string{"backfill", "some-worker", "--since", "2001-01-01", "--yes"}, 2, "log begins"},
		"an end before the beginning":       {[]string{"backfill", "some-worker", "--since", "1h", "--until", "2h"}, 2, "until"},
		"a backfill of an organization":     {[]string{"backfill", "some-worker", "--since", "1h", "--organization", nobody}, 3, "--organization"},
		"a backfill of a subscription":      {[]string{"backfill", "--subscription", nobody, "--organization", org, "--since", "1h", "--yes"}, 3, "no such subscription"},
		"a backfill of all webhooks":        {[]string{"backfill", dispatcher, "--since", "1h", "--yes"}, 2, "subscription"},
		"a backfill of two":                 {[]string{"backfill", "some-worker", "--subscription", nobody, "--since", "1h"}, 2, "consumer"},
		"a backfill of neither":             {[]string{"backfill", "--since", "1h"}, 2, "consumer"},
		"a subscription that is no id":      {[]string{"backfill", "--subscription", "hook", "--since", "1h"}, 2, "subscription"},
		"a beginning that lies ahead in -h": {[]string{"backfill", "some-worker", "--since", "-5h"}, 2, "since"},
	} {
		_, errs, code := in.run("", append([]string{"consumers"}, tt.args...)...)
		if code != tt.code || !strings.Contains(errs, tt.says) {
			t.Errorf("%s: exit %d, %q; want %d and a word about %q", name, code, errs, tt.code, tt.says)
		}
	}
	if n := in.count("select count(*) from audit_log where resource_type = 'consumer'"); n != 0 {
		t.Errorf("%d refusals are audited as acts", n)
	}
}
