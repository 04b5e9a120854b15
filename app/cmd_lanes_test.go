package app_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
)

func TestALaneIsSteeredFromTheCommandLine(t *testing.T) {
	t.Parallel()
	in := onShared(t)
	org, _ := in.setUp()
	in.sql(`insert into consumers (name, event_types, effect, ordering, retry_steps, retry_jitter, max_attempts)
		values ('ordered-worker', '{custom.ordered}', 'at_least_once', 'strict', '{1 hour}', 0, 2)`)
	for range 3 {
		in.run("", "emit", "custom.ordered", "--organization", org)
	}
	in.sql("select relay_events(100)")
	lanes := func(more ...string) []any {
		t.Helper()
		return in.runJSON("", append([]string{"lanes", "list", "--json", "--organization", org}, more...)...)["items"].([]any)
	}
	list := lanes("--consumer", "ordered-worker")
	if len(list) != 1 {
		t.Fatalf("%d lanes, want 1", len(list))
	}
	lane := list[0].(map[string]any)
	id, delivery := lane["id"].(string), lane["head"].(map[string]any)["delivery_id"].(string)
	if lane["order"] != "strict" || lane["waiting"] != 3.0 || lane["waiting_more"] != false {
		t.Errorf("the lane is %v", lane)
	}
	for _, step := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"resume", id}, 3, "state"},
		{[]string{"pause", id}, 2, "reason"},
		{[]string{"pause", id, "--reason", "repairs"}, 0, "is paused"},
		{[]string{"pause", id, "--reason", "repairs"}, 3, "state"},
		{[]string{"list"}, 0, "repairs"},
		{[]string{"retry", id}, 3, "state"},
		{[]string{"resume", id}, 0, "goes on"},
		{[]string{"retry", id, "--delivery", delivery}, 0, "is due"},
		{[]string{"skip", id, "--delivery", uuid.NewString(), "--reason", "no use"}, 3, "state"},
		{[]string{"skip", id, "--delivery", delivery, "--reason", "no use"}, 0, "is skipped"},
		{[]string{"skip", id, "--delivery", delivery, "--reason", "no use"}, 3, "state"},
		{[]string{"park", id, "--reason", "later"}, 0, "dead letters"},
		{[]string{"park", "nothing", "--reason", "later"}, 3, "no such lane"},
		{[]string{"park", strings.ToLower(id), "--reason", "later"}, 3, "no such lane"},
	} {
		out, errs, code := in.run("", append(append([]string{"lanes"}, step.args...), "--organization", org)...)
		if code != step.code || !strings.Contains(out+errs, step.says) {
			t.Errorf("deskcomm lanes %v = exit %d, %q %q; want %d and a word about %q", step.args, code, out, errs, step.code, step.says)
		}
	}
	if lane := lanes()[0].(map[string]any); lane["waiting"] != 1.0 {
		t.Errorf("%v deliveries wait, want the third", lane["waiting"])
	}
	if list := lanes("--paused"); len(list) != 0 {
		t.Errorf("%d lanes are paused, want none", len(list))
	}
	if n := in.count("select count(*) from audit_log where actor_kind = 'cli' and action in ('lane.paused', 'lane.resumed', 'delivery.retried', 'delivery.skipped', 'delivery.parked')"); n != 5 {
		t.Errorf("%d audit rows, want 5", n)
	}
}
