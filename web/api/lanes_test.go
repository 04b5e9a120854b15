package api

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// onlyLane is the lane that the organization has.
func (w *world) onlyLane(query string) map[string]any {
	w.t.Helper()
	items, _ := w.get("/v1/lanes" + query).items()
	if len(items) != 1 {
		w.t.Fatalf("%d lanes, want 1", len(items))
	}
	return items[0]
}

func TestALaneIsPausedAndResumed(t *testing.T) {
	t.Parallel()
	w := setup(t)
	id := w.lane()
	path := "/v1/lanes/" + id
	got := w.onlyLane("?paused=false&consumer=webhook-dispatch-worker")
	head := got["head"].(map[string]any)
	for field, want := range map[string]any{"id": id, "order": "strict", "order_key": nil, "waiting": 1.0, "waiting_more": false, "paused": nil} {
		if diff := cmp.Diff(want, got[field]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", field, diff)
		}
	}
	for field, want := range map[string]any{"status": "pending", "attempts": 1.0, "max_attempts": 8.0, "last_error": "refused"} {
		if diff := cmp.Diff(want, head[field]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", field, diff)
		}
	}
	if head["next_attempt_at"] == nil {
		t.Error("the head has no time")
	}
	w.post(path+"/resume", "").problem(http.StatusConflict)
	w.post(path+"/pause", `{}`).wantFault("/reason", "")
	w.post(path+"/pause", `{"reason":""}`).wantFault("/reason", "")
	made := w.post(path+"/pause", `{"reason":"repairs"}`).want(http.StatusOK).fields()
	if diff := cmp.Diff(map[string]any{"id": id, "status": "paused"}, made); diff != "" {
		t.Error(diff)
	}
	w.post(path+"/pause", `{"reason":"repairs"}`).problem(http.StatusConflict)
	w.post(path+"/retry", "").problem(http.StatusConflict)
	got = w.onlyLane("?paused=true")
	paused := got["paused"].(map[string]any)
	if head := got["head"].(map[string]any); head["status"] != "held" || head["next_attempt_at"] != nil || paused["reason"] != "repairs" ||
		paused["by"] != "test token" || paused["at"] == nil {
		t.Errorf("the paused lane is %v", got)
	}
	made = w.post(path+"/resume", `{"reason":"repaired"}`).want(http.StatusOK).fields()
	if diff := cmp.Diff(map[string]any{"id": id, "status": "open"}, made); diff != "" {
		t.Error(diff)
	}
	w.get("/v1/lanes?paused=maybe").wantFault("", "paused")
	w.get("/v1/lanes?cursor="+id[1:]).wantFault("", "cursor")
}

func TestTheHeadOfALaneIsRetriedSkippedOrParked(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]string{"retry": "pending", "skip": "skipped", "park": "parked"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			id := w.lane()
			path := "/v1/lanes/" + id + "/" + name
			delivery := w.onlyLane("")["head"].(map[string]any)["delivery_id"].(string)
			if name != "retry" {
				w.post(path, `{}`).wantFault("/reason", "")
			}
			w.post(path, `{"reason":"x","delivery_id":"`+uuid.NewString()+`"}`).problem(http.StatusConflict)
			w.post(path, `{"reason":"x","delivery_id":7}`).wantFault("/delivery_id", "")
			if _, err := dbtest.Exec(t, dbtest.URL(t), "update delivery set lease_token = 1 where organization_id = $1", w.org); err != nil {
				t.Fatal(err)
			}
			w.post(path, `{"reason":"x"}`).problem(http.StatusConflict)
			if _, err := dbtest.Exec(t, dbtest.URL(t), "update delivery set lease_token = null where organization_id = $1", w.org); err != nil {
				t.Fatal(err)
			}
			made := w.post(path, `{"reason":"seen","delivery_id":"`+delivery+`"}`).want(http.StatusOK).fields()
			if diff := cmp.Diff(map[string]any{"id": id, "delivery_id": delivery, "status": status}, made); diff != "" {
				t.Error(diff)
			}
			dead, _ := w.get("/v1/dlq").items()
			if parked := len(dead) == 1 && dead[0]["id"] == delivery && dead[0]["reason"] == "seen" && dead[0]["last_error"] == "refused"; parked != (name == "park") {
				t.Errorf("dead letters = %v", dead)
			}
			if name != "retry" {
				w.post(path, `{"reason":"again"}`).problem(http.StatusConflict)
			}
		})
	}
}

func TestASubscriptionAsksForItsOrder(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const path = "/v1/webhook-subscriptions"
	for body, want := range map[string]string{
		`{"url":"https://example.com/a","event_types":["*"]}`:                     "none",
		`{"url":"https://example.com/a","event_types":["*"],"ordering":"none"}`:   "none",
		`{"url":"https://example.com/a","event_types":["*"],"ordering":"key"}`:    "key",
		`{"url":"https://example.com/a","event_types":["*"],"ordering":"strict"}`: "strict",
	} {
		made := w.post(path, body).want(http.StatusCreated).fields()
		if made["ordering"] != want {
			t.Errorf("%s makes %v, want %s", body, made["ordering"], want)
		}
		if shown := w.get(path + "/" + made["id"].(string)).fields(); shown["ordering"] != want {
			t.Errorf("shown as %v, want %s", shown["ordering"], want)
		}
	}
	for _, bad := range []string{`"by_key"`, `""`, `7`, `"STRICT"`} {
		w.post(path, `{"url":"https://example.com/a","event_types":["*"],"ordering":`+bad+`}`).wantFault("/ordering", "")
	}
}
