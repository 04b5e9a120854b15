package app_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// The process is killed whenever one certain delivery is in its hands, first
// together with all the others.
func TestInvariant8ADeliveryThatKillsItsProcessEndsDeadAndTakesNoOtherWithIt(t *testing.T) {
	t.Parallel()
	in := onShared(t, "DESKCOMM_ALLOW_PRIVATE_HOSTS=127.0.0.1", "DESKCOMM_LEASE=2s", "DESKCOMM_RETRY_LADDER=1s,1s")
	var inHand, poisoned atomic.Int64
	gate := make(chan struct{})
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		inHand.Add(1)
		wait := gate
		if bytes.Contains(body, []byte("poison")) {
			poisoned.Add(1)
			wait = nil // for the kill
		}
		select {
		case <-wait:
		case <-req.Context().Done():
		}
	}))
	t.Cleanup(hook.Close)
	p := in.serve()
	_, token := in.setUp()
	p.must(201, "POST", "/v1/webhook-subscriptions", token, map[string]any{
		"url": hook.URL, "event_types": []string{"custom.order"}, "secret": hookSecret,
	})
	const events = 30
	batch := make([]map[string]any, events)
	for i := range batch {
		batch[i] = map[string]any{"event_type": "custom.order", "entity_kind": "order", "payload": map[string]any{"name": "innocent"}}
	}
	batch[events/2]["payload"] = map[string]any{"name": "poison"}
	ids := p.must(201, "POST", "/v1/events/batch", token, map[string]any{"events": batch})["ids"].([]any)
	dbtest.Eventually(t, "all are in hand", func() bool { return inHand.Load() == events })
	p.kill()
	close(gate)
	for n := int64(2); n <= 4; n++ {
		p = in.serve()
		dbtest.Eventually(t, "the poison is in hand again", func() bool { return poisoned.Load() == n })
		p.kill()
	}
	p = in.serve()
	dbtest.Eventually(t, "nothing waits any more", func() bool {
		return len(p.must(200, "GET", "/v1/events?status=pending&event_type=custom.order", token, nil)["items"].([]any)) == 0
	})
	for i, id := range ids {
		deliveries := p.must(200, "GET", "/v1/events/"+id.(string), token, nil)["deliveries"].([]any)
		d := deliveries[0].(map[string]any)
		switch {
		case i == events/2:
			if d["status"] != "dead" || d["attempts"] != 3.0 || d["last_error"] != bus.ErrCrashed.Error() {
				t.Errorf("the poison is %v, want it dead after 3 attempts", d)
			}
		case d["status"] != "done" || d["attempts"] != 1.0:
			t.Errorf("an innocent is %v, want it done at its first attempt", d)
		}
	}
	if n := poisoned.Load(); n != 4 {
		t.Errorf("the poison was in hand %d times, want 4", n)
	}
}
