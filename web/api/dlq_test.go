package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db/dbtest"
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

func TestAnUncertainDeliveryIsShownListedAndConfirmedOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	dead, id := w.bury(), w.bury()
	conn := dbtest.Conn(t, dbtest.URL(t))
	if _, err := conn.Exec(t.Context(), "update dead_delivery set state = 'uncertain' where delivery_id = $1", id); err != nil {
		t.Fatal(err)
	}
	var event string
	for query, want := range map[string][]string{"": {id, dead}, "?status=dead": {dead}, "?status=uncertain": {id}} {
		items, _ := w.get("/v1/dlq" + query).items()
		var got []string
		for _, item := range items {
			got = append(got, item["id"].(string))
			if item["id"] == id {
				event = item["event_id"].(string)
			}
			if status := map[bool]string{true: "uncertain", false: "dead"}[item["id"] == id]; item["status"] != status {
				t.Errorf("status %v, want %s", item["status"], status)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", query, diff)
		}
	}
	w.get("/v1/dlq?status=pending").wantFault("", "status")
	if items, _ := w.get("/v1/events?status=uncertain").items(); len(items) != 1 || items[0]["id"] != event || items[0]["status"] != "uncertain" {
		t.Errorf("uncertain events: %v, want the one", items)
	}
	if shown := w.get("/v1/events/" + event).want(http.StatusOK); strings.Count(shown.text, `"status":"uncertain"`) != 2 {
		t.Errorf("event and delivery are not shown as uncertain: %s", shown.text)
	}
	path := "/v1/dlq/" + id + "/confirm"
	w.post(path, `{"reason":"`+strings.Repeat("ç", 501)+`"}`).wantFault("/reason", "")
	if diff := cmp.Diff(map[string]any{"id": id, "status": "done"}, w.post(path, `{"reason":"seen"}`).want(http.StatusOK).fields()); diff != "" {
		t.Error(diff)
	}
	w.post(path, "").problem(http.StatusConflict)
	w.post("/v1/dlq/"+dead+"/confirm", "").problem(http.StatusConflict)
	w.post("/v1/dlq/"+uuid.NewString()+"/confirm", "").problem(http.StatusNotFound)
}
