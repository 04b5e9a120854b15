package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

func TestADeadDeliveryIsReplayedOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	id := w.bury()
	for _, body := range []string{"", `{}`, `{"reason":"fixed"}`} {
		a := w.post("/v1/dlq/"+id+"/replay", body)
		if body != "" {
			a.problem(http.StatusConflict)
			continue
		}
		if diff := cmp.Diff(map[string]any{"id": id, "status": "pending"}, a.want(http.StatusOK).fields()); diff != "" {
			t.Error(diff)
		}
	}
	if items, _ := w.get("/v1/dlq").items(); len(items) != 0 {
		t.Errorf("%d dead deliveries, want none", len(items))
	}
}

func TestADeadDeliveryIsDiscardedForAReason(t *testing.T) {
	t.Parallel()
	w := setup(t)
	id := w.bury()
	path := "/v1/dlq/" + id + "/discard"
	w.post(path, `{}`).wantFault("/reason", "")
	w.post(path, `{"reason":""}`).wantFault("/reason", "")
	w.post(path, `{"reason":7}`).wantFault("/reason", "")
	w.post(path, ``).wantFault("", "")
	w.post(path, `{"reason":"`+strings.Repeat("ç", 501)+`"}`).wantFault("/reason", "")
	made := w.post(path, `{"reason":"`+strings.Repeat("ç", 500)+`"}`).want(http.StatusOK).fields()
	if diff := cmp.Diff(map[string]any{"id": id, "status": "discarded"}, made); diff != "" {
		t.Error(diff)
	}
	w.post(path, `{"reason":"again"}`).problem(http.StatusConflict)
	w.post("/v1/dlq/"+id+"/replay", "").problem(http.StatusConflict)
}

func TestDeadDeliveriesAreListedWithTheirEvent(t *testing.T) {
	t.Parallel()
	w := setup(t)
	id := w.bury()
	items, _ := w.get("/v1/dlq").items()
	if len(items) != 1 {
		t.Fatalf("%d dead deliveries, want 1", len(items))
	}
	for field, want := range map[string]any{
		"id": id, "consumer": "buried-worker", "destination": nil, "status": "dead", "event_type": "custom.buried", "entity_kind": "order",
		"attempts": 8.0, "max_attempts": 8.0, "last_error": "refused",
	} {
		if got := items[0][field]; got != want {
			t.Errorf("%s = %v, want %v", field, got, want)
		}
	}
	for query, want := range map[string]int{
		"event_type=custom.buried": 1, "event_type=custom.other": 0, "entity_kind=order": 1, "entity_kind=x": 0, "consumer=buried-worker": 1,
		"consumer=other-worker": 0, "since=2020-01-01T00:00:00Z": 1, "until=2020-01-01T00:00:00Z": 0,
	} {
		if items, _ := w.get("/v1/dlq?" + query).items(); len(items) != want {
			t.Errorf("%s: %d dead deliveries, want %d", query, len(items), want)
		}
	}
	shown := w.get("/v1/events/" + items[0]["event_id"].(string)).want(http.StatusOK)
	if !strings.Contains(shown.text, `"status":"dead"`) || !strings.Contains(shown.text, `"consumer":"buried-worker"`) {
		t.Errorf("event does not show its dead delivery: %s", shown.text)
	}
}

func TestADecisionNeedsADeliveryThatExists(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.post("/v1/dlq/"+uuid.NewString()+"/replay", "").problem(http.StatusNotFound)
	w.post("/v1/dlq/"+uuid.NewString()+"/discard", `{"reason":"x"}`).problem(http.StatusNotFound)
}
