package api

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
	"github.com/deskcomm/deskcomm/web/problem"
)

const key = "Idempotency-Key"

func TestFiftyEqualRequestsHaveOneEffect(t *testing.T) {
	t.Parallel()
	w := setup(t)
	var wg sync.WaitGroup
	answers := make([]answer, 50)
	for i := range answers {
		wg.Go(func() { answers[i] = w.post("/v1/events", custom, key, "race") })
	}
	wg.Wait()
	ids := make(map[string]bool)
	first := 0
	for _, a := range answers {
		if a.status == http.StatusCreated {
			ids[a.text] = true
			if a.header.Get("Idempotency-Replayed") == "" {
				first++
			}
		} else if p, _ := a.problem(http.StatusConflict); p.Code != problem.CodeInFlight || a.header.Get("Retry-After") != "1" {
			t.Errorf("refusal = %s with Retry-After %q, want in flight and 1", p.Code, a.header.Get("Retry-After"))
		}
	}
	if len(ids) != 1 || first != 1 {
		t.Errorf("%d different answers, %d of them new; want 1 and 1", len(ids), first)
	}
	if items, _ := w.get("/v1/events").items(); len(items) != 1 {
		t.Errorf("%d events, want 1", len(items))
	}
}

func TestRepeatedRequestsGetTheFirstAnswer(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for path, body := range passing {
		if strings.Contains(path, "{id}") {
			continue
		}
		body = strings.ReplaceAll(body, "NAME", "repeated")
		first := w.post(path, body, key, "k").want(http.StatusCreated)
		again := w.post(path, " "+body+"\n", key, "k").want(http.StatusCreated)
		if first.text != again.text {
			t.Errorf("%s: second answer = %s, want the first: %s", path, again.text, first.text)
		}
		if got, want := first.header.Get("Idempotency-Replayed")+again.header.Get("Idempotency-Replayed"), "true"; got != want {
			t.Errorf("%s: Idempotency-Replayed = %q, want %q on the second only", path, got, want)
		}
	}
	for path, want := range map[string]int{"/v1/events": 3, "/v1/webhook-subscriptions": 1, "/v1/channel-sessions": 1, "/v1/tokens": 2} {
		if items, _ := w.get(path).items(); len(items) != want {
			t.Errorf("%s: %d items, want %d", path, len(items), want)
		}
	}
}

func TestAKeyBelongsToItsRequest(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.post("/v1/events", custom, key, "k").want(http.StatusCreated)
	w.post("/v1/events", `{"event_type":"custom.other","entity_kind":"order"}`, key, "k").wantFault("", key)
	// Another route and another token have keys of their own.
	w.post("/v1/events/batch", `{"events":[`+custom+`]}`, key, "k").want(http.StatusCreated)
	other := w.as(dbtest.Token(t, w.db, w.org))
	if got := other.post("/v1/events", custom, key, "k").want(http.StatusCreated); got.header.Get("Idempotency-Replayed") != "" {
		t.Error("another token got the answer of the first")
	}
}

func TestAFailedRequestLeavesItsKeyFree(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.post("/v1/channel-sessions", `{"name":"no good"}`, key, "k").wantFault("/name", "")
	w.post("/v1/channel-sessions", `{"name":"good"}`, key, "k").want(http.StatusCreated)
	w.post("/v1/channel-sessions", `{"name":"good"}`, key, "other").problem(http.StatusConflict)
}

func TestAStoredAnswerNeedsTheScopeOfItsRequest(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const fact = `{"event_type":"lead.won","entity_kind":"lead"}`
	w.post("/v1/events", fact, key, "k").want(http.StatusCreated)
	conn := dbtest.Conn(t, dbtest.URL(t))
	if _, err := conn.Exec(t.Context(), "update api_tokens set scopes = '{events:write}' where organization_id = $1", w.org); err != nil {
		t.Fatal(err)
	}
	w.post("/v1/events", fact, key, "k").problem(http.StatusForbidden)
}

func TestAKeyMustBeText(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for _, bad := range []string{"", strings.Repeat("k", 256), "a\x00", "a\xff", "a\nb"} {
		w.post("/v1/events", custom, key, bad).wantFault("", key)
	}
	w.post("/v1/events", custom, key, strings.Repeat("k", 255)).want(http.StatusCreated)
	w.post("/v1/events", custom, key, "é 1").want(http.StatusCreated)
}

func TestARequestInFlightIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	principal, err := w.db.Authenticate(t.Context(), w.token)
	if err != nil {
		t.Fatal(err)
	}
	done := errors.New("the other request is over")
	err = w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
		if _, err := tx.Recall(t.Context(), "POST /v1/events "+principal.TokenID.String(), "k", nil); err != nil {
			return err
		}
		a := w.post("/v1/events", custom, key, "k")
		if p, _ := a.problem(http.StatusConflict); p.Code != problem.CodeInFlight || a.header.Get("Retry-After") != "1" {
			t.Errorf("refusal = %s with Retry-After %q, want in flight and 1", p.Code, a.header.Get("Retry-After"))
		}
		return done
	})
	if !errors.Is(err, done) {
		t.Fatal(err)
	}
	w.post("/v1/events", custom, key, "k").want(http.StatusCreated)
}

func TestRequestsWithoutAKeyAreNotKept(t *testing.T) {
	t.Parallel()
	w := setup(t)
	first, second := w.post("/v1/events", custom).fields()["id"], w.post("/v1/events", custom).fields()["id"]
	if first == second || uuid.Validate(first.(string)) != nil {
		t.Errorf("ids = %v and %v, want two", first, second)
	}
}
