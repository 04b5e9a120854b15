package db_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// attempted is a delivery whose handler called outside.
func attempted(d bus.Delivery, status int) *bus.Delivery {
	d.Detail = &bus.AttemptDetail{StartedAt: time.Now(), Duration: time.Second, StatusCode: status, Response: "answer\x00 \xff"}
	return &d
}

func TestAttemptsAreKeptAndFailuresOfADestinationCounted(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	sub := w.subscribe("custom.*")
	w.emit(ownType())
	w.relay()
	settle := func(status int, verdict bus.Verdict, text string) {
		t.Helper()
		d := attempted(w.claim(bus.WebhookDispatch, 1)[0], status)
		if _, err := w.db.Settle(t.Context(), []bus.Settlement{{Delivery: d, Verdict: verdict, Error: text}}); err != nil {
			t.Fatal(err)
		}
		w.later(24 * time.Hour)
	}
	subscription := func() db.Subscription {
		t.Helper()
		var s db.Subscription
		err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) (err error) {
			s, err = tx.Subscription(t.Context(), sub)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	settle(500, bus.VerdictRetry, "http_500")
	settle(503, bus.VerdictRetry, "http_503")
	if s := subscription(); s.ConsecutiveFailures != 2 || *s.LastStatus != 503 || *s.LastError != "http_503" || s.LastDeliveredAt != nil {
		t.Errorf("after two failures: %+v", s)
	}
	settle(200, bus.VerdictDone, "")
	if s := subscription(); s.ConsecutiveFailures != 0 || *s.LastStatus != 200 || s.LastError != nil || s.LastDeliveredAt == nil {
		t.Errorf("after a success: %+v", s)
	}
	if n := w.count("select count(*) from attempt where organization_id = $1 and number between 1 and 3", w.org); n != 3 {
		t.Errorf("%d attempts are kept, want 3", n)
	}
}

// What it found is kept until the try that spends the attempt, which has its number.
func TestAPostponedTryBlamesNobodyAndGivesItsNumberToTheNext(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	sub := w.subscribe("custom.*")
	w.emit(ownType())
	w.relay()
	settle := func(status int, verdict bus.Verdict, text string) {
		t.Helper()
		d := attempted(w.claim(bus.WebhookDispatch, 1)[0], status)
		if _, err := w.db.Settle(t.Context(), []bus.Settlement{{Delivery: d, Verdict: verdict, Error: text}}); err != nil {
			t.Fatal(err)
		}
		w.later(24 * time.Hour)
	}
	attempts := func() (found []string) {
		t.Helper()
		rows, err := dbtest.Conn(t, w.url).Query(t.Context(), `
			select format('%s %s %s %s', number, outcome, status_code, error) from attempt where organization_id = $1 order by number`, w.org)
		if err != nil {
			t.Fatal(err)
		}
		if found, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			t.Fatal(err)
		}
		return found
	}
	settle(500, bus.VerdictRetry, "http_500")
	settle(429, bus.VerdictPostpone, "busy")
	if diff := cmp.Diff([]string{"1 retry 500 http_500", "2 postponed 429 busy"}, attempts()); diff != "" {
		t.Errorf("attempts after a postponement (-want +got):\n%s", diff)
	}
	if n := w.count("select consecutive_failures * 1000 + last_status from webhook_subscriptions where id = $1", sub); n != 1500 {
		t.Errorf("failures and status of the destination are %d, want 1 and 500: a postponement is no failure", n)
	}
	settle(503, bus.VerdictRetry, "http_503")
	settle(200, bus.VerdictDone, "")
	if diff := cmp.Diff([]string{"1 retry 500 http_500", "2 retry 503 http_503", "3 done 200 "}, attempts()); diff != "" {
		t.Errorf("attempts at the end (-want +got):\n%s", diff)
	}
}

func TestFrozenBodyStaysTheSameUntilTheDeliveryIsSettled(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	w.subscribe("custom.*")
	w.emit(ownType())
	w.relay()
	d := w.claim(bus.WebhookDispatch, 1)[0]
	if first, second := w.freeze(d, []byte("first")), w.freeze(d, []byte("second")); string(first.Body) != "first" || string(second.Body) != "first" {
		t.Errorf("frozen %q, then %q, want the first twice", first.Body, second.Body)
	}
	w.settle(d, bus.VerdictRetry, "later")
	if s := w.freeze(d, nil); string(s.Body) != "first" {
		t.Errorf("after a failed attempt: %q, want it kept", s.Body)
	}
	w.later(time.Hour)
	w.settle(w.claim(bus.WebhookDispatch, 1)[0], bus.VerdictDone, "")
	if s := w.freeze(d, nil); s.Deleted || s.Body != nil {
		t.Errorf("after the delivery is done: %+v, want nothing kept", s)
	}
}

// freeze asks for what a delivery sends, as the dispatcher does.
func (w world) freeze(d bus.Delivery, body []byte) db.Sendable {
	w.Helper()
	s, err := w.db.FreezeBodies(w.Context(), []db.Sending{{OrgID: d.OrgID, DeliveryID: d.ID, Destination: d.Destination, Body: body}})
	if err != nil || len(s) != 1 || s[0].Err != nil {
		w.Fatalf("FreezeBodies() = %+v, %v, want one answer", s, err)
	}
	return s[0]
}

// One answer each, in their order, whatever the others are.
func TestBodiesThatAreFrozenTogetherAreToldApart(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	w.subscribe("custom.*")
	for range 3 {
		w.emit(ownType())
	}
	w.relay()
	claimed := w.claim(bus.WebhookDispatch, 3)
	w.freeze(claimed[1], []byte("earlier"))
	sendings := make([]db.Sending, 0, len(claimed)+2)
	for i, d := range claimed {
		sendings = append(sendings, db.Sending{OrgID: d.OrgID, DeliveryID: d.ID, Destination: d.Destination, Body: fmt.Appendf(nil, "body %d", i)})
	}
	foreign, asked := sendings[0], sendings[2]
	foreign.OrgID, foreign.DeliveryID = dbtest.Org(t, w.db), uuid.New()
	asked.DeliveryID, asked.Body = uuid.New(), nil
	got, err := w.db.FreezeBodies(t.Context(), append(sendings, foreign, asked))
	if err != nil {
		t.Fatal(err)
	}
	to := db.Target{URL: got[0].Target.URL, Secret: "a secret of the test"}
	want := []db.Sendable{
		{Target: to, Body: []byte("body 0")}, {Target: to, Body: []byte("earlier")}, {Target: to, Body: []byte("body 2")}, {Deleted: true}, {Target: to},
	}
	if diff := cmp.Diff(want, got); diff != "" || to.URL == "" {
		t.Errorf("FreezeBodies (-want +got):\n%s", diff)
	}
	if n := w.count("select count(*) from frozen_body"); n != 3 {
		t.Errorf("%d bodies are kept, want those of the three deliveries", n)
	}
}

// Whoever watches a busy subscription sees its time go on each second; a failure, and
// the success after it, are written at once.
func TestSuccessAfterSuccessIsCountedOnceASecond(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	w.subscribe("custom.*")
	versions := map[string]bool{}
	settle := func(status int, verdict bus.Verdict) (written bool) {
		t.Helper()
		w.emit(ownType())
		w.relay()
		d := attempted(w.claim(bus.WebhookDispatch, 1)[0], status)
		if _, err := w.db.Settle(t.Context(), []bus.Settlement{{Delivery: d, Verdict: verdict}}); err != nil {
			t.Fatal(err)
		}
		version := w.text("select xmin::text from webhook_subscriptions")
		written, versions[version] = !versions[version], true
		return written
	}
	recent := func(ago string) {
		t.Helper()
		w.exec("update webhook_subscriptions set last_delivered_at = clock_timestamp() - $1::interval", ago)
		versions[w.text("select xmin::text from webhook_subscriptions")] = true
	}
	if !settle(200, bus.VerdictDone) {
		t.Error("the first success is not written")
	}
	recent("-1 hour")
	if !settle(200, bus.VerdictDone) {
		t.Error("a time that lies ahead stands")
	}
	recent("2 seconds")
	if !settle(200, bus.VerdictDone) {
		t.Error("a success two seconds later is not written")
	}
	tries := 0
	for ; settle(200, bus.VerdictDone) && tries < 20; tries++ { // a slow machine may need more than a second for one
		recent("0 seconds")
	}
	if tries == 20 {
		t.Error("each of twenty successes in a row is written")
	}
	for status, verdict := range map[int]bus.Verdict{204: bus.VerdictDone, 400: bus.VerdictDead} {
		if !settle(status, verdict) || w.count("select last_status from webhook_subscriptions") != status {
			t.Errorf("another answer, %d, is not written", status)
		}
	}
	settle(200, bus.VerdictDone)
	if n := w.count("select consecutive_failures from webhook_subscriptions"); n != 0 {
		t.Errorf("%d failures are counted after a success", n)
	}
}

func TestDeletedSubscriptionKeepsNoBodies(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	sub := w.subscribe("custom.*")
	w.emit(ownType())
	w.relay()
	d := w.claim(bus.WebhookDispatch, 1)[0]
	w.freeze(d, []byte("a body"))
	err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error { return tx.DeleteSubscription(t.Context(), sub) })
	if err != nil {
		t.Fatal(err)
	}
	if n := w.count("select count(*) from frozen_body"); n != 0 {
		t.Errorf("%d bodies are left of a deleted subscription", n)
	}
	if s := w.freeze(d, []byte("late")); !s.Deleted || s.Body != nil {
		t.Errorf("freezing after the deletion = %+v, want it refused", s)
	}
	if n := w.count("select count(*) from frozen_body"); n != 0 {
		t.Errorf("%d bodies were frozen after the deletion", n)
	}
}

func TestRetryWaitsForTheStepAndForWhatTheReceiverAsks(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.consumer(typ) // one hour, then one hour
	for name, tt := range map[string]struct {
		asked, atLeast, atMost time.Duration
	}{
		"the step alone":          {0, time.Hour, time.Hour + time.Minute},
		"less than the step":      {time.Minute, time.Hour, time.Hour + time.Minute},
		"more than the step does": {5 * time.Hour, 5 * time.Hour, 5*time.Hour + time.Minute},
	} {
		id := w.emit(typ)
		w.relay()
		d := w.claim(consumer, 1)[0]
		s := bus.Settlement{Delivery: &d, Verdict: bus.VerdictRetry, Error: "later", NotUntil: tt.asked}
		if _, err := w.db.Settle(t.Context(), []bus.Settlement{s}); err != nil {
			t.Fatal(err)
		}
		n := w.count("select extract(epoch from due_at - clock_timestamp())::int from delivery where event_id = $1", id)
		if wait := time.Duration(n) * time.Second; wait < tt.atLeast-time.Minute || wait > tt.atMost {
			t.Errorf("%s: due in %s, want between %s and %s", name, wait, tt.atLeast, tt.atMost)
		}
	}
}

func TestDeliveryIDsOfDifferentDestinationsDiffer(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	w.subscribe("custom.*")
	w.subscribe("*")
	w.emit(ownType())
	w.relay()
	claimed := w.claim(bus.WebhookDispatch, 10)
	ids := map[uuid.UUID]bool{}
	for _, d := range claimed {
		ids[d.ID] = true
	}
	if len(claimed) != 2 || len(ids) != 2 {
		t.Errorf("%d deliveries with %d ids for two subscriptions, want 2 and 2", len(claimed), len(ids))
	}
}
