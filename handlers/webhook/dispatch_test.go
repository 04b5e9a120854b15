package webhook_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/urlpolicy"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
	"github.com/deskcomm/deskcomm/handlers/outhttp"
	"github.com/deskcomm/deskcomm/handlers/webhook"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

const secret = "a secret of the receiver"

// rig is a dispatcher, one subscription and its receiver.
type rig struct {
	*testing.T
	db         *db.DB
	org        uuid.UUID
	sub        uuid.UUID
	dispatcher *webhook.Dispatcher

	mu     sync.Mutex
	status int
	retry  string
	bodies []string
	header http.Header
}

func setup(t *testing.T) *rig {
	t.Helper()
	d := dbtest.DB(t)
	r := &rig{T: t, db: d, org: dbtest.Org(t, d), status: http.StatusOK}
	server := httptest.NewServer(http.HandlerFunc(r.take))
	t.Cleanup(server.Close)
	policy, err := urlpolicy.New([]string{"127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	r.dispatcher = webhook.New(d, outhttp.New(outhttp.Options{Policy: policy}))
	err = d.InOrg(t.Context(), r.org, dbtest.Actor(), func(tx *db.OrgTx) error {
		sub, err := tx.CreateSubscription(t.Context(), db.NewSubscription{URL: server.URL, EventTypes: []string{"*"}, Secret: secret})
		r.sub = sub.ID
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) take(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bodies, r.header = append(r.bodies, string(body)), req.Header.Clone()
	if r.retry != "" {
		w.Header().Set("Retry-After", r.retry)
	}
	w.WriteHeader(r.status)
}

// delivery is a claimed delivery of an event with a payload.
func (r *rig) delivery(payload string) *bus.Delivery {
	ev := bus.Event{
		ID: uuid.New(), OrgID: r.org, Type: "message.received", EntityKind: "message",
		Payload: json.RawMessage(payload), CreatedAt: time.Now(),
	}
	return &bus.Delivery{
		Key: bus.Key{Destination: r.sub, OrgID: r.org}, ID: bus.DeliveryID(ev.ID, bus.WebhookDispatch, r.sub),
		Consumer: bus.WebhookDispatch, Event: ev, Attempt: 1, Budgeted: 1, MaxAttempts: 8,
	}
}

func TestEachAttemptSendsTheFirstBodyUnderItsOwnSignature(t *testing.T) {
	t.Parallel()
	r := setup(t)
	r.status = http.StatusInternalServerError
	d := r.delivery(`{"n":1}`)
	for attempt := 1; attempt <= 3; attempt++ {
		d.Attempt, d.Budgeted = attempt, attempt
		err := r.dispatcher.Handle(t.Context(), d)
		if err == nil || !strings.Contains(err.Error(), "http_500") || d.Detail == nil || d.Detail.StatusCode != http.StatusInternalServerError {
			t.Errorf("attempt %d = %v with %+v, want a failure that says http_500", attempt, err, d.Detail)
		}
		if err := webhook.Verify(secret, r.header, []byte(r.bodies[attempt-1]), time.Now()); err != nil {
			t.Errorf("attempt %d: %v", attempt, err)
		}
	}
	if r.bodies[0] != r.bodies[1] || r.bodies[0] != r.bodies[2] {
		t.Errorf("three attempts sent %q", r.bodies)
	}
}

func TestVerdictFollowsTheReceiversAnswer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status  int
		retry   string
		attempt int
		want    string
	}{
		"200 is done":                       {200, "", 1, "done"},
		"500 is retried":                    {500, "", 1, "retry"},
		"302 is retried and not followed":   {302, "", 1, "retry"},
		"422 is dead at once":               {422, "", 1, "dead"},
		"410 is dead at once":               {410, "", 1, "dead"},
		"401 is retried at first":           {401, "", 1, "retry"},
		"401 is dead after three":           {401, "", 3, "dead"},
		"429 waits as long as it was asked": {429, "120", 1, "wait 2m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := setup(t)
			r.status, r.retry = tt.status, tt.retry
			d := r.delivery(`{}`)
			d.Attempt, d.Budgeted = tt.attempt, tt.attempt
			if got := verdictOf(r.dispatcher.Handle(t.Context(), d)); got != tt.want {
				t.Errorf("verdict = %s, want %s", got, tt.want)
			}
			if len(r.bodies) != 1 {
				t.Errorf("the receiver got %d requests, want one", len(r.bodies))
			}
		})
	}
}

// verdictOf names what the bus makes of an error.
func verdictOf(err error) string {
	if err == nil {
		return "done"
	}
	if _, ok := errors.AsType[*bus.PermanentError](err); ok {
		return "dead"
	}
	if skip, ok := errors.AsType[*bus.SkipError](err); ok {
		return "skip: " + skip.Reason
	}
	if later, ok := errors.AsType[*bus.RetryAfterError](err); ok {
		return "wait " + later.After.String()
	}
	return "retry"
}

func TestDeliveryOfADeletedSubscriptionIsSkippedUnsent(t *testing.T) {
	t.Parallel()
	r := setup(t)
	d := r.delivery(`{}`)
	err := r.db.InOrg(t.Context(), r.org, dbtest.Actor(), func(tx *db.OrgTx) error { return tx.DeleteSubscription(t.Context(), r.sub) })
	if err != nil {
		t.Fatal(err)
	}
	if got := verdictOf(r.dispatcher.Handle(t.Context(), d)); got != "skip: the subscription was deleted" {
		t.Errorf("verdict = %s, want it skipped", got)
	}
	if len(r.bodies) != 0 || d.Detail != nil {
		t.Errorf("%d requests were sent", len(r.bodies))
	}
}

func TestBodyCarriesTheContactOfTheOrganizationOnly(t *testing.T) {
	t.Parallel()
	r := setup(t)
	own, foreign := uuid.New(), uuid.New()
	conn := dbtest.Conn(t, dbtest.URL(t))
	for id, org := range map[uuid.UUID]uuid.UUID{own: r.org, foreign: dbtest.Org(t, r.db)} {
		_, err := conn.Exec(t.Context(), "insert into contacts (id, organization_id, name, phone_number) values ($1, $2, 'Ana', '+5511987654321')", id, org)
		if err != nil {
			t.Fatal(err)
		}
	}
	for payload, want := range map[string]bool{
		`{"contact_id":"` + own.String() + `"}`: true, `{"contact_id":"` + foreign.String() + `"}`: false, `{"contact_id":7}`: false, `{}`: false,
	} {
		if err := r.dispatcher.Handle(t.Context(), r.delivery(payload)); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(r.bodies[len(r.bodies)-1], "+5511987654321"); got != want {
			t.Errorf("payload %s: contact in the body %t, want %t", payload, got, want)
		}
	}
}

func TestDeliveriesThatBeginTogetherSendEachItsOwn(t *testing.T) {
	t.Parallel()
	r := setup(t)
	contact := uuid.New()
	_, err := dbtest.Conn(t, dbtest.URL(t)).Exec(t.Context(),
		"insert into contacts (id, organization_id, name, phone_number) values ($1, $2, 'Ana', '+5511987654321')", contact, r.org)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	var sending sync.WaitGroup
	for i := range 40 {
		payload := fmt.Sprintf(`{"n":%d}`, i)
		if i%2 == 0 {
			payload = fmt.Sprintf(`{"n":%d,"contact_id":"%s"}`, i, contact)
		}
		d := r.delivery(payload)
		want[fmt.Sprintf("%s %d %t", d.ID, i, i%2 == 0)] = true
		sending.Go(func() {
			if err := r.dispatcher.Handle(t.Context(), d); err != nil {
				t.Errorf("Handle(%d) = %v", i, err)
			}
		})
	}
	sending.Wait()
	got := map[string]bool{}
	for _, text := range r.bodies {
		var body struct {
			DeliveryID uuid.UUID `json:"delivery_id"`
			Data       struct {
				N       int
				Contact *struct{ Name string }
			}
		}
		if err := json.Unmarshal([]byte(text), &body); err != nil {
			t.Fatal(err)
		}
		got[fmt.Sprintf("%s %d %t", body.DeliveryID, body.Data.N, body.Data.Contact != nil && body.Data.Contact.Name == "Ana")] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("delivery, event and contact (-want +got):\n%s", diff)
	}
}
