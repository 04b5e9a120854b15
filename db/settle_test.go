package db_test

import (
	"errors"
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
	freeze := func(body string) string {
		t.Helper()
		kept, err := w.db.FreezeBody(t.Context(), w.org, d.ID, d.Destination, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return string(kept)
	}
	if first, second := freeze("first"), freeze("second"); first != "first" || second != "first" {
		t.Errorf("frozen %q, then %q, want the first twice", first, second)
	}
	w.settle(d, bus.VerdictRetry, "later")
	if body, err := w.db.FrozenBody(t.Context(), w.org, d.ID); err != nil || string(body) != "first" {
		t.Errorf("after a failed attempt: %q, %v, want it kept", body, err)
	}
	w.later(time.Hour)
	w.settle(w.claim(bus.WebhookDispatch, 1)[0], bus.VerdictDone, "")
	if _, err := w.db.FrozenBody(t.Context(), w.org, d.ID); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("after the delivery is done: %v, want nothing kept", err)
	}
}

func TestDeletedSubscriptionKeepsNoBodies(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	sub := w.subscribe("custom.*")
	w.emit(ownType())
	w.relay()
	d := w.claim(bus.WebhookDispatch, 1)[0]
	if _, err := w.db.FreezeBody(t.Context(), w.org, d.ID, d.Destination, []byte("a body")); err != nil {
		t.Fatal(err)
	}
	err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error { return tx.DeleteSubscription(t.Context(), sub) })
	if err != nil {
		t.Fatal(err)
	}
	if n := w.count("select count(*) from frozen_body"); n != 0 {
		t.Errorf("%d bodies are left of a deleted subscription", n)
	}
	if _, err := w.db.FreezeBody(t.Context(), w.org, d.ID, d.Destination, []byte("late")); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("freezing after the deletion = %v, want it refused", err)
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
