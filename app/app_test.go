package app_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/deskcomm/deskcomm/bus/waha"
	"github.com/deskcomm/deskcomm/db/dbtest"
	"github.com/deskcomm/deskcomm/handlers/webhook"
)

const (
	channelSecret = "a secret of the test channel"
	hookSecret    = "a secret of the test receiver"
)

// The story of the product: a gateway's post becomes a contact, a conversation,
// a message and an event; the event reaches a signed webhook; a receiver that
// fails makes a dead letter; one call brings it back.
func TestStoryFromGatewayPostToSignedWebhookAndBackFromTheDead(t *testing.T) {
	t.Parallel()
	in := onShared(t, "DESKCOMM_ALLOW_PRIVATE_HOSTS=127.0.0.1", "DESKCOMM_RETRY_LADDER=0s,0s", "DESKCOMM_LOG_LEVEL=debug")
	hook := newReceiver(t)
	p := in.serve()
	org, token := in.setUp()

	sub := p.must(201, "POST", "/v1/webhook-subscriptions", token, map[string]any{
		"url": hook.URL, "event_types": []string{"message.received"}, "secret": hookSecret,
	})
	channel := p.must(201, "POST", "/v1/channel-sessions", token, map[string]any{"name": "org_ipe_01", "webhook_secret": channelSecret})
	body, err := os.ReadFile("../bus/waha/testdata/samples/message.gows.text-dm-phone.json")
	if err != nil {
		t.Fatal(err)
	}

	hook.status.Store(http.StatusInternalServerError)
	p.postWAHA(channel, body)
	var dead map[string]any
	dbtest.Eventually(t, "the delivery is dead", func() bool {
		dead = p.must(200, "GET", "/v1/dlq", token, nil)
		return len(dead["items"].([]any)) == 1
	})
	if n := len(hook.all()); n != 3 {
		t.Errorf("the receiver was tried %d times, want 3: one and a retry for each step", n)
	}
	item := dead["items"].([]any)[0].(map[string]any)
	if item["destination"] != sub["id"] || item["consumer"] != "webhook-dispatch-worker" {
		t.Errorf("the dead delivery is %v, want the subscription's", item)
	}

	hook.status.Store(http.StatusOK)
	id := item["id"].(string)
	p.must(200, "POST", "/v1/dlq/"+id+"/replay", token, map[string]any{"reason": "the receiver is back"})
	p.must(409, "POST", "/v1/dlq/"+id+"/replay", token, nil)
	event := item["event_id"].(string)
	dbtest.Eventually(t, "the replayed delivery is done", func() bool {
		return p.must(200, "GET", "/v1/events/"+event, token, nil)["status"] == "done"
	})
	checkDeliveries(t, hook.all(), event, id)

	contacts := p.must(200, "GET", "/v1/contacts", token, nil)["items"].([]any)
	messages := p.must(200, "GET", "/v1/messages", token, nil)["items"].([]any)
	if len(contacts) != 1 || len(messages) != 1 {
		t.Errorf("%d contacts and %d messages, want one of each", len(contacts), len(messages))
	}
	if shown := in.runJSON("", "events", "show", event, "--organization", org); shown["status"] != "done" {
		t.Errorf("the command line shows %v, want done", shown["status"])
	}
	if code := p.signal(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code after SIGTERM = %d, want 0", code)
	}
	checkLog(t, p.log.String(), token, channelSecret, hookSecret, channel["webhook_path_token"].(string), "5511900000101", "Ana Prado", "blusa azul")
}

// postWAHA posts a signed body to a channel's address.
func (p *process) postWAHA(channel map[string]any, body []byte) {
	p.Helper()
	path := "/v1/webhooks/waha/" + channel["webhook_path_token"].(string)
	req, err := http.NewRequestWithContext(p.Context(), http.MethodPost, p.base+path, bytes.NewReader(body))
	if err != nil {
		p.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Webhook-Hmac", waha.Sign(channelSecret, body))
	if status, v := p.do(req); status != http.StatusOK {
		p.Fatalf("POST %s = %d %v, want 200", path, status, v)
	}
}

// checkDeliveries proves that all attempts sent the same signed bytes under one
// identity.
func checkDeliveries(t *testing.T, all []delivered, event, delivery string) {
	t.Helper()
	if len(all) != 4 {
		t.Fatalf("the receiver got %d requests, want 3 that failed and the one that was replayed", len(all))
	}
	for i, d := range all {
		if !bytes.Equal(d.body, all[0].body) {
			t.Errorf("attempt %d sent other bytes than the first:\n%s\n%s", i+1, d.body, all[0].body)
		}
		for name, want := range map[string]string{
			"X-Webhook-Attempt": strconv.Itoa(i + 1), "X-Webhook-Delivery": delivery, "X-Deskcomm-Event": "message.received",
			"X-Deskcomm-Idempotency-Key": event, "Webhook-Id": delivery,
		} {
			if got := d.header.Get(name); got != want {
				t.Errorf("attempt %d has %s %q, want %q", i+1, name, got, want)
			}
		}
		if err := webhook.Verify(hookSecret, d.header, d.body, time.Now()); err != nil {
			t.Errorf("attempt %d: %v", i+1, err)
		}
	}
	var sent struct {
		Event      string         `json:"event"`
		DeliveryID string         `json:"delivery_id"`
		Data       map[string]any `json:"data"`
	}
	if err := json.Unmarshal(all[0].body, &sent); err != nil {
		t.Fatal(err)
	}
	contact, _ := sent.Data["contact"].(map[string]any)
	if sent.Event != "message.received" || sent.DeliveryID != delivery || contact["phone_number"] != "+5511900000101" {
		t.Errorf("body = %s, want the event with its contact", all[0].body)
	}
}

// checkLog proves that nothing personal or secret is in the log.
func checkLog(t *testing.T, log string, secrets ...string) {
	t.Helper()
	for _, s := range secrets {
		if strings.Contains(log, s) {
			t.Errorf("the log contains %q", s)
		}
	}
}

func TestSuspendedOrganizationsEventsWaitAndRunOnceAfterReactivation(t *testing.T) {
	t.Parallel()
	in := onShared(t, "DESKCOMM_ALLOW_PRIVATE_HOSTS=127.0.0.1")
	hook := newReceiver(t)
	p := in.serve()
	org, token := in.setUp()
	p.must(201, "POST", "/v1/webhook-subscriptions", token, map[string]any{"url": hook.URL, "event_types": []string{"*"}})
	if _, errs, code := in.run("", "organization", "suspend", org, "--reason", "unpaid"); code != 0 {
		t.Fatalf("suspend = exit %d: %s", code, errs)
	}
	var ids []string
	for range 3 {
		v := p.must(201, "POST", "/v1/events", token, map[string]any{"event_type": "custom.order", "entity_kind": "order"})
		ids = append(ids, v["id"].(string))
	}
	dbtest.Eventually(t, "the events are relayed", func() bool {
		return p.must(200, "GET", "/v1/events/"+ids[2], token, nil)["seq"] != nil
	})
	for _, id := range ids {
		if got := p.must(200, "GET", "/v1/events/"+id, token, nil)["status"]; got != "pending" {
			t.Errorf("an event of a suspended organization is %v, want pending", got)
		}
	}
	if n := len(hook.all()); n != 0 {
		t.Errorf("the receiver got %d requests of a suspended organization", n)
	}
	if _, errs, code := in.run("", "organization", "reactivate", org); code != 0 {
		t.Fatalf("reactivate = exit %d: %s", code, errs)
	}
	dbtest.Eventually(t, "the events are done", func() bool {
		return p.must(200, "GET", "/v1/events/"+ids[0], token, nil)["status"] == "done" &&
			p.must(200, "GET", "/v1/events/"+ids[1], token, nil)["status"] == "done" &&
			p.must(200, "GET", "/v1/events/"+ids[2], token, nil)["status"] == "done"
	})
	if n := len(hook.all()); n != 3 {
		t.Errorf("the receiver got %d requests, want each event once", n)
	}
}

func TestReplayReachesOnlyTheSubscriptionWhoseDeliveryDied(t *testing.T) {
	t.Parallel()
	in := onShared(t, "DESKCOMM_ALLOW_PRIVATE_HOSTS=127.0.0.1", "DESKCOMM_RETRY_LADDER=0s")
	hooks := []*receiver{newReceiver(t), newReceiver(t), newReceiver(t)}
	p := in.serve()
	_, token := in.setUp()
	for _, h := range hooks {
		p.must(201, "POST", "/v1/webhook-subscriptions", token, map[string]any{"url": h.URL, "event_types": []string{"custom.order"}})
	}
	hooks[1].status.Store(http.StatusServiceUnavailable)
	event := p.must(201, "POST", "/v1/events", token, map[string]any{"event_type": "custom.order", "entity_kind": "order"})["id"].(string)
	dbtest.Eventually(t, "one delivery is dead and two are done", func() bool {
		count := map[any]int{}
		for _, d := range p.must(200, "GET", "/v1/events/"+event, token, nil)["deliveries"].([]any) {
			count[d.(map[string]any)["status"]]++
		}
		return count["dead"] == 1 && count["done"] == 2
	})
	hooks[1].status.Store(http.StatusOK)
	dead := p.must(200, "GET", "/v1/dlq", token, nil)["items"].([]any)[0].(map[string]any)
	p.must(200, "POST", "/v1/dlq/"+dead["id"].(string)+"/replay", token, nil)
	dbtest.Eventually(t, "the event is done", func() bool {
		return p.must(200, "GET", "/v1/events/"+event, token, nil)["status"] == "done"
	})
	for i, want := range []int{1, 3, 1} {
		if n := len(hooks[i].all()); n != want {
			t.Errorf("receiver %d got %d requests, want %d", i+1, n, want)
		}
	}
}

func TestRolesDivideTheWorkBetweenProcesses(t *testing.T) {
	t.Parallel()
	in := onShared(t, "DESKCOMM_ALLOW_PRIVATE_HOSTS=127.0.0.1", "DESKCOMM_MASTER_KEY=MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=")
	hook := newReceiver(t)
	front := in.serve("DESKCOMM_ROLES=api,relay")
	_, token := in.setUp()
	front.must(201, "POST", "/v1/webhook-subscriptions", token, map[string]any{"url": hook.URL, "event_types": []string{"*"}})
	event := front.must(201, "POST", "/v1/events", token, map[string]any{"event_type": "custom.order", "entity_kind": "order"})["id"].(string)
	dbtest.Eventually(t, "the event is relayed", func() bool {
		return front.must(200, "GET", "/v1/events/"+event, token, nil)["seq"] != nil
	})
	if got := front.must(200, "GET", "/v1/events/"+event, token, nil)["status"]; got != "pending" {
		t.Errorf("without a worker the event is %v, want pending", got)
	}
	back := in.serve("DESKCOMM_ROLES=worker,cron")
	dbtest.Eventually(t, "the event is done", func() bool {
		return front.must(200, "GET", "/v1/events/"+event, token, nil)["status"] == "done"
	})
	if status, _ := back.call("GET", "/v1/events", token, nil); status != http.StatusNotFound {
		t.Errorf("a process without the role answers the API with %d, want 404", status)
	}
}
