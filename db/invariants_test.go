package db_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

func TestInvariant1RollbackLeavesNoEventNoOutboxRowNoDelivery(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	w.consumer(typ)
	broken := errors.New("the domain change failed")
	err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
		if _, err := tx.Emit(t.Context(), db.NewEvent{Type: typ, EntityKind: "thing"}); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatalf("InOrg() = %v, want the error of its function", err)
	}
	w.relay()
	for _, table := range []string{"event_log", "outbox", "event_position", "delivery"} {
		if n := w.count("select count(*) from "+table+" where organization_id = $1", w.org); n != 0 {
			t.Errorf("%s has %d rows after a rollback, want none", table, n)
		}
	}
}

func TestInvariant2EveryFactIsCapturedWithoutAnyReader(t *testing.T) {
	t.Parallel()
	w := setup(t)
	types := append(bus.Catalogue(), ownType())
	for _, typ := range types {
		id := w.emit(typ)
		w.relay()
		err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
			ev, err := tx.Event(t.Context(), id)
			if err == nil && (ev.Seq == nil || ev.Status != "done") {
				t.Errorf("%s: seq %v, status %q, want a place and done", typ, ev.Seq, ev.Status)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestInvariant3EmissionWaitsForNoReader(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	w := world{T: t, db: d, url: url, org: dbtest.Org(t, d)}
	tx, err := dbtest.Conn(t, url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // the test is over
	for _, table := range []string{"relay_state", "event_position", "consumers", "webhook_subscriptions", "delivery", "receipt", "dead_delivery", "attempt"} {
		if _, err := tx.Exec(t.Context(), "lock table "+table+" in access exclusive mode"); err != nil {
			t.Fatal(err)
		}
	}
	// Every table of the readers is locked; the emission must not need one.
	w.emit(ownType())
	if n := w.count("select count(*) from pg_proc where pronamespace = 'public'::regnamespace and prosrc ~* 'notify'"); n != 0 {
		t.Errorf("%d functions notify: that serialises the commits of all producers", n)
	}
	if n := w.count("select count(*) from outbox where organization_id = $1", w.org); n != 1 {
		t.Errorf("outbox has %d rows, want the emitted event", n)
	}
}

func TestInvariant4OneDeliveryHoweverOftenRelayingIsRepeated(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	w.consumer(typ)
	const events = 200
	emitted := make(chan struct{})
	var relays sync.WaitGroup
	for range 8 {
		relays.Go(func() {
			for open := true; open; {
				select {
				case <-emitted:
					open = false
				default:
				}
				w.relay()
			}
		})
	}
	stop := sync.OnceFunc(func() {
		close(emitted)
		relays.Wait()
	})
	defer stop()
	for range events {
		w.emit(typ)
	}
	stop()
	// As after a restored backup: what was relayed stands in the outbox again.
	w.exec(`insert into outbox (event_id, organization_id, event_type, created_at)
	        select id, organization_id, event_type, created_at from event_log where organization_id = $1`, w.org)
	w.relay()
	if n := w.count("select count(*) from delivery where organization_id = $1", w.org); n != events {
		t.Errorf("%d deliveries for %d events, want one each", n, events)
	}
	if n := w.count("select count(*) from outbox where organization_id = $1", w.org); n != 0 {
		t.Errorf("%d rows left in the outbox, want none", n)
	}
}

func TestPlacesOfEventsAreDenseHoweverOftenRelayingIsRepeated(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	w := world{T: t, db: d, url: url, org: dbtest.Org(t, d)}
	for range 3 {
		w.emit(ownType())
		w.relay()
		w.exec(`insert into outbox (event_id, organization_id, event_type, created_at)
		        select id, organization_id, event_type, created_at from event_log`)
		w.emit(ownType())
		w.relay()
	}
	if n := w.count("select count(*) from event_position where seq between 1 and 6"); n != 6 {
		t.Errorf("%d of 6 events have the places 1 to 6", n)
	}
}

func TestReaderReceivesNothingFromBeforeItWasRegistered(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	w.emit(typ) // waits in the outbox until after the reader is there
	consumer := w.consumer(typ)
	later := w.emit(typ)
	w.relay()
	if got := w.claim(consumer, 10); len(got) != 1 || got[0].Event.ID != later {
		t.Errorf("claimed %d deliveries, want only the event that came after the reader", len(got))
	}
}

func TestInvariant5OneReadersDeathTouchesNoOther(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	good, bad := w.consumer(typ), w.consumer(typ)
	id := w.emit(typ)
	w.relay()
	for range 3 {
		w.settle(w.claim(bad, 10)[0], bus.VerdictRetry, "refused")
		w.later(2 * time.Hour)
	}
	if got, want := w.states(id), map[string]string{bad: "dead 3/3", good: "pending 0/3"}; !cmp.Equal(got, want) {
		t.Fatalf("after one reader's death: %v, want %v", got, want)
	}
	w.settle(w.claim(good, 10)[0], bus.VerdictDone, "")
	if got, want := w.states(id), map[string]string{bad: "dead 3/3", good: "done 1/3"}; !cmp.Equal(got, want) {
		t.Errorf("after the other's success: %v, want %v", got, want)
	}
}

func TestInvariant6OnlyWhatIsEligibleIsClaimed(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.consumer(typ)
	w.emit(typ)
	w.relay()

	w.exec("update delivery set due_at = clock_timestamp() + interval '1 minute' where organization_id = $1", w.org)
	if got := w.claim(consumer, 10); len(got) != 0 {
		t.Errorf("claimed %d deliveries before they are due, want none", len(got))
	}
	w.later(2 * time.Minute)
	if _, err := w.db.SuspendOrganization(t.Context(), dbtest.Actor(), w.org, "unpaid"); err != nil {
		t.Fatal(err)
	}
	if got := w.claim(consumer, 10); len(got) != 0 {
		t.Errorf("claimed %d deliveries of a suspended organization, want none", len(got))
	}
	if _, err := w.db.ReactivateOrganization(t.Context(), dbtest.Actor(), w.org); err != nil {
		t.Fatal(err)
	}
	if got := w.claim(consumer, 10); len(got) != 1 {
		t.Fatalf("claimed %d deliveries after reactivation, want the one", len(got))
	}
	if got := w.claim(consumer, 10); len(got) != 0 {
		t.Errorf("claimed %d deliveries that are leased, want none", len(got))
	}
}

func TestInvariant6DeliveriesToADisabledDestinationAreHeld(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	sub := w.subscribe("custom.*")
	id := w.emit(ownType())
	w.relay()
	w.exec("update webhook_subscriptions set enabled = false where id = $1", sub)
	if got := w.claim(bus.WebhookDispatch, 10); len(got) != 0 {
		t.Errorf("claimed %d deliveries to a disabled destination, want none", len(got))
	}
	if got := w.states(id)[bus.WebhookDispatch]; got != "held 0/8" {
		t.Errorf("the delivery is %q, want it held", got)
	}
	w.exec("update webhook_subscriptions set enabled = true where id = $1", sub)
	if got := w.claim(bus.WebhookDispatch, 10); len(got) != 1 {
		t.Errorf("claimed %d deliveries to the enabled destination, want the one", len(got))
	}
}

func TestInvariant7OnlyTheCurrentTokenSettles(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.consumer(typ)
	id := w.emit(typ)
	w.relay()
	first := w.claim(consumer, 1)[0]
	w.later(time.Hour) // its lease has run out, which the next claim finds
	if got := w.claim(consumer, 1); len(got) != 0 {
		t.Errorf("claimed %d deliveries whose leases have just run out, want none", len(got))
	}
	second := w.claim(consumer, 1)[0]
	if second.Token <= first.Token {
		t.Errorf("tokens %d then %d, want them to grow", first.Token, second.Token)
	}
	if second.ID != first.ID {
		t.Errorf("delivery id changed from %s to %s between attempts", first.ID, second.ID)
	}
	for _, verdict := range []bus.Verdict{bus.VerdictDone, bus.VerdictRetry, bus.VerdictPostpone, bus.VerdictDead, bus.VerdictUncertain, bus.VerdictSkip} {
		if lost := w.settle(first, verdict, "late"); len(lost) != 1 {
			t.Errorf("%s under a stale token was accepted", verdict)
		}
	}
	due := func() (due time.Time) {
		err := dbtest.Conn(t, w.url).QueryRow(t.Context(), "select due_at from delivery where organization_id = $1", w.org).Scan(&due)
		if err != nil {
			t.Fatal(err)
		}
		return due
	}
	before := due()
	if lost, err := w.db.Extend(t.Context(), []bus.Lease{first.Lease()}); err != nil || len(lost) != 1 || !due().Equal(before) {
		t.Errorf("Extend() under a stale token = %v, %v, want it lost and the lease of the other as it was", lost, err)
	}
	if lost, err := w.db.Extend(t.Context(), []bus.Lease{first.Lease(), second.Lease()}); err != nil || !cmp.Equal(lost, []bus.Lease{first.Lease()}) {
		t.Errorf("Extend() = %v, %v, want only the stale lease lost", lost, err)
	}
	if got, want := w.states(id), map[string]string{consumer: "processing 0/3"}; !cmp.Equal(got, want) {
		t.Errorf("after late verdicts: %v, want %v", got, want)
	}
	if lost := w.settle(second, bus.VerdictDone, ""); len(lost) != 0 {
		t.Errorf("the current token was refused")
	}
}

// The host's clock may lie: none of the statements that decide when something
// is due takes an instant from it.
func TestInvariant13NoDueTimeComesFromTheHostsClock(t *testing.T) {
	t.Parallel()
	w := setup(t)
	statements := statementConstants(t)
	conn := dbtest.Conn(t, w.url)
	for _, name := range []string{
		"claimFittingSQL", "waitingFlowsSQL", "claimFlowsSQL", "extendLeasesSQL", "beginEffectSQL", "settleDeliveriesSQL", "settleDoneSQL", "replayDeadSQL", "relayEventsSQL", "emitEventSQL", "emitEventsSQL",
		"registerConsumerSQL", "advanceLanesSQL", "retryHeadSQL", "skipHeadSQL", "pauseLaneSQL",
	} {
		sql, _, err := pgx.NamedArgs{}.RewriteQuery(t.Context(), nil, statements[name], nil)
		if err != nil || sql == "" {
			t.Fatalf("there is no statement %s: %v", name, err)
		}
		prepared, err := conn.Prepare(t.Context(), name, sql)
		if err != nil {
			t.Fatal(err)
		}
		instants := 0
		for _, oid := range prepared.ParamOIDs {
			switch oid {
			case pgtype.TimestamptzOID, pgtype.TimestampOID, pgtype.DateOID:
				t.Errorf("%s takes an instant from the host", name)
			case pgtype.TimestamptzArrayOID, pgtype.TimestampArrayOID:
				instants++
			}
		}
		// When attempts began is information for people.
		if want := strings.Count(sql, "::timestamptz[]"); instants > want || want > 1 || want == 1 && name != "settleDeliveriesSQL" {
			t.Errorf("%s takes %d lists of instants from the host", name, instants)
		}
	}
	id := w.emit(ownType())
	skew := w.count("select abs(extract(epoch from clock_timestamp() - created_at))::int from event_log where id = $1", id)
	if skew > 60 {
		t.Errorf("the event was stamped %d s off the database's clock", skew)
	}
}

func TestTwentyClaimersHandleEachOfAThousandEventsOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.consumer(typ)
	const events = 1000
	batch := make([]db.NewEvent, events)
	for i := range batch {
		batch[i] = db.NewEvent{Type: typ, EntityKind: "thing"}
	}
	err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
		_, err := tx.EmitAll(t.Context(), batch)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	w.relay()
	var mu sync.Mutex
	handled := make(map[uuid.UUID]int)
	var claimers sync.WaitGroup
	for range 20 {
		claimers.Go(func() {
			for {
				claimed, err := w.db.Claim(t.Context(), bus.Claim{Wants: []bus.Want{{Consumer: consumer, Limit: 10}}})
				if err != nil || len(claimed) == 0 {
					if err != nil {
						t.Error(err)
					}
					return
				}
				settlements := make([]bus.Settlement, len(claimed))
				mu.Lock()
				for i := range claimed {
					handled[claimed[i].Event.ID]++
					settlements[i] = bus.Settlement{Delivery: &claimed[i], Verdict: bus.VerdictDone}
				}
				mu.Unlock()
				if lost, err := w.db.Settle(t.Context(), settlements); err != nil || len(lost) > 0 {
					t.Errorf("Settle() lost %d, %v", len(lost), err)
				}
			}
		})
	}
	claimers.Wait()
	for id, n := range handled {
		if n != 1 {
			t.Errorf("event %s was handled %d times", id, n)
		}
	}
	// A claimer that found every due row locked has left early; nothing may be left for it.
	if rest := w.claim(consumer, events); len(handled)+len(rest) != events || len(rest) != 0 {
		t.Errorf("%d events handled, %d left, want %d and none", len(handled), len(rest), events)
	}
	if n := w.count(`select coalesce(sum(cardinality(event_ids)), 0)::int from receipt where organization_id = $1`, w.org); n != events {
		t.Errorf("receipts hold %d events, want %d", n, events)
	}
}

func TestInvariant8WhatDiesOfCrashesIsBuriedWithItsEventUnderItsOwnID(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.consumer(typ)
	id := w.emit(typ)
	w.relay()
	var last bus.Delivery
	for range 4 { // in hand with others for all we know, then three times alone
		last = w.claim(consumer, 1)[0]
		w.later(2 * time.Hour)
		if got := w.claim(consumer, 1); len(got) != 0 {
			t.Fatalf("claimed %d deliveries whose leases have just run out, want none", len(got))
		}
		w.later(2 * time.Hour)
	}
	err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
		dead, err := tx.DeadDelivery(t.Context(), last.ID)
		if err == nil && (dead.State != "dead" || dead.EventID != id || dead.Attempts != 3 || dead.LastError != bus.ErrCrashed.Error() || string(dead.Payload) != `{"n": 1}`) {
			t.Errorf("buried as %+v", dead)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if lost := w.settle(last, bus.VerdictDone, ""); len(lost) != 1 {
		t.Error("a verdict over what was buried was accepted")
	}
	if got, want := w.states(id), map[string]string{consumer: "dead 3/3"}; !cmp.Equal(got, want) {
		t.Errorf("states %v, want %v", got, want)
	}
}

func TestTheDatabaseComputesTheSameDeliveryIDs(t *testing.T) {
	t.Parallel()
	w := setup(t)
	conn := dbtest.Conn(t, w.url)
	for length := 1; length <= 130; length++ { // every way to fill the blocks of the hash
		event, destination := uuid.New(), uuid.New()
		if length%3 == 0 {
			destination = uuid.Nil
		}
		consumer := strings.Repeat("é", length/2) + strings.Repeat("w", length-length/2)
		var got uuid.UUID
		if err := conn.QueryRow(t.Context(), "select delivery_id($1, $2, $3)", event, consumer, destination).Scan(&got); err != nil {
			t.Fatal(err)
		}
		if want := bus.DeliveryID(event, consumer, destination); got != want {
			t.Errorf("delivery_id(%s, %s, %s) = %s, want %s", event, consumer, destination, got, want)
		}
	}
}
