package db_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// emitMany emits n events of a type and returns their ids.
func (w world) emitMany(typ bus.Type, n int) (ids []uuid.UUID) {
	w.Helper()
	events := make([]db.NewEvent, n)
	for i := range events {
		events[i] = db.NewEvent{Type: typ, EntityKind: "thing"}
	}
	err := w.db.InOrg(w.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) (err error) {
		ids, err = tx.EmitAll(w.Context(), events)
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return ids
}

// past is a backfill of all that a consumer may lack.
func (w world) past(consumer string) db.Backfill {
	return db.Backfill{Consumer: consumer, Since: time.Now().Add(-time.Hour)}
}

func (w world) backfill(b db.Backfill) db.BackfillCount {
	w.Helper()
	return w.total(w.db.RunBackfill(w.Context(), operator(), b))
}

func (w world) preview(b db.Backfill) db.BackfillCount {
	w.Helper()
	return w.total(w.db.PreviewBackfill(w.Context(), b))
}

// total adds the types up.
func (w world) total(counts []db.BackfillCount, err error) (sum db.BackfillCount) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
	for _, c := range counts {
		sum.Made, sum.Unfinished, sum.Dead, sum.Done = sum.Made+c.Made, sum.Unfinished+c.Unfinished, sum.Dead+c.Dead, sum.Done+c.Done
	}
	return sum
}

func TestReadersThatAppearLaterStartAfterWhatWasEmittedByNumber(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	typ := ownType()
	before := w.emit(typ)
	w.exec("update outbox set created_at = created_at + interval '1 day'") // as if the clock were set back now
	tx, err := dbtest.Conn(t, w.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var open uuid.UUID
	if err := tx.QueryRow(t.Context(), "select emit_event($1, 'thing', null, '{}', '{}', $2)", typ, w.org).Scan(&open); err != nil {
		t.Fatal(err)
	}
	w.consumer(typ)
	w.worker(typ)
	w.subscribe("custom.*")
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := w.emit(typ)
	w.exec("update outbox set created_at = created_at - interval '2 days' where event_id = $1", after)
	w.relay()
	for name, tt := range map[string]struct {
		event uuid.UUID
		want  int
	}{"before": {before, 0}, "in an open transaction": {open, 0}, "after": {after, 3}} {
		if got := w.count("select count(*) from delivery where event_id = $1", tt.event); got != tt.want {
			t.Errorf("the event emitted %s has %d deliveries, want %d", name, got, tt.want)
		}
	}
}

// A job that is given up before its time comes into the outbox as old as it is,
// behind what was emitted since.
func TestAWorkerOfThePastGetsWhatStandsBeforeAnOlderEventInTheOutbox(t *testing.T) {
	t.Parallel()
	w := freshWorld(t)
	typ := ownType()
	job := w.enqueue(db.NewJob{Command: ownCommand(), NotBefore: time.Now().Add(day)})
	w.exec("update waiting_job set created_at = created_at - interval '5 days'")
	wanted := w.emit(typ)
	if err := w.cancel(job.ID, "no more"); err != nil {
		t.Fatal(err)
	}
	w.exec("select register_consumer($1, $2, now() - interval '1 hour')", workerName(), []bus.Type{typ})
	w.relay()
	if got := w.count("select count(*) from delivery where event_id = $1", wanted); got != 1 {
		t.Errorf("%d deliveries of what was emitted since, want 1", got)
	}
}

func TestAWorkerOfThePastGetsWhatATransactionHasEmittedThatIsOpenThen(t *testing.T) {
	t.Parallel()
	w := freshWorld(t)
	typ := ownType()
	tx, err := dbtest.Conn(t, w.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var open uuid.UUID
	if err := tx.QueryRow(t.Context(), "select emit_event($1, 'thing', null, '{}', '{}', $2)", typ, w.org).Scan(&open); err != nil {
		t.Fatal(err)
	}
	older := w.emit(typ)
	w.exec("update event_log set created_at = created_at - interval '2 hours' where id = $1", older)
	w.exec("update outbox set created_at = created_at - interval '2 hours' where event_id = $1", older) // by a clock that is behind
	w.exec("select register_consumer($1, $2, now() - interval '1 hour')", workerName(), []bus.Type{typ})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.relay()
	for id, want := range map[uuid.UUID]int{open: 1, older: 0} {
		if got := w.count("select count(*) from delivery where event_id = $1", id); got != want {
			t.Errorf("an event that was emitted since, or before, has %d deliveries, want %d", got, want)
		}
	}
}

// What they emit has a lower number than the reader begins after, so that the relay left
// it out, and no place when the backfill ran.
func TestABackfillMissesNothingOfATransactionOpenSinceBeforeItsReader(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	typ := ownType()
	tx, err := dbtest.Conn(t, w.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var open uuid.UUID
	if err := tx.QueryRow(t.Context(), "select emit_event($1, 'thing', null, '{}', '{}', $2)", typ, w.org).Scan(&open); err != nil {
		t.Fatal(err)
	}
	committed := w.emit(typ)
	past, bounded, none := w.past(w.consumer(typ)), w.past(w.consumer(typ)), w.consumer(typ)
	bounded.Until = bounded.Since.Add(time.Minute)
	ofWebhook := w.past("")
	ofWebhook.Subscription = uuid.NullUUID{UUID: w.subscribe("*"), Valid: true}
	for _, b := range []db.Backfill{past, bounded, ofWebhook} {
		w.backfill(b)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.relay()
	for reader, want := range map[string]int{past.Consumer: 1, bus.WebhookDispatch: 1, bounded.Consumer: 0, none: 0} {
		for _, id := range []uuid.UUID{open, committed} {
			if got := w.count("select count(*) from delivery d join consumers c on c.id = d.consumer_id where d.event_id = $1 and c.name = $2", id, reader); got != want {
				t.Errorf("%s has %d deliveries of %s, want %d", reader, got, id, want)
			}
		}
	}
	if got := w.backfill(past); got.Made != 0 || got.Unfinished != 2 {
		t.Errorf("a second backfill: %+v, want both left alone", got)
	}
}

func TestBackfillMakesWhatAReaderLacksAndNothingTwice(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	w.emitMany(typ, 3)
	w.relay()
	consumer := w.consumer(typ)
	w.emitMany(typ, 4)
	w.emit(ownType()) // of a type that it does not read
	w.relay()
	claimed := w.claim(consumer, 4)
	w.settle(claimed[0], bus.VerdictDone, "")
	w.settle(claimed[1], bus.VerdictSkip, "not for us")
	w.settle(claimed[2], bus.VerdictDead, "broken")

	b := w.past(consumer)
	want := db.BackfillCount{Made: 3, Unfinished: 1, Dead: 1, Done: 2}
	before := w.bus()
	if diff := cmp.Diff(want, w.preview(b)); diff != "" {
		t.Errorf("preview (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, w.bus()); diff != "" {
		t.Errorf("the preview changed something (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(want, w.backfill(b)); diff != "" {
		t.Errorf("backfill (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(db.BackfillCount{Unfinished: 4, Dead: 1, Done: 2}, w.backfill(b)); diff != "" {
		t.Errorf("backfill again (-want +got):\n%s", diff)
	}
	got := w.claim(consumer, 10)
	for _, d := range got {
		w.settle(d, bus.VerdictDone, "")
	}
	if len(got) != 3 {
		t.Errorf("claimed %d deliveries, want the three that were made", len(got))
	}
	if diff := cmp.Diff(db.BackfillCount{Unfinished: 1, Dead: 1, Done: 5}, w.backfill(b)); diff != "" {
		t.Errorf("backfill when they are done (-want +got):\n%s", diff)
	}
}

func TestBackfillTakesWhatIsNotRelayedYet(t *testing.T) {
	t.Parallel()
	w := alone(t)
	typ := ownType()
	w.emitMany(typ, 2)
	consumer := w.consumer(typ)
	w.emit(typ)
	if got := w.backfill(w.past(consumer)); got.Made != 2 || got.Unfinished != 1 {
		t.Errorf("backfill = %+v, want the two from before the consumer made and the one after it left alone", got)
	}
}

func TestBackfillTakesNothingOutsideItsPeriodAndOrganization(t *testing.T) {
	t.Parallel()
	w := setup(t)
	other := world{T: t, db: w.db, url: w.url, org: dbtest.Org(t, w.db)}
	typ := ownType()
	ids := w.emitMany(typ, 3)
	other.emitMany(typ, 5)
	w.relay()
	consumer := w.consumer(typ)
	instant := func(id uuid.UUID) (at time.Time) {
		if err := dbtest.Row(t, w.url, "select created_at from event_log where id = $1", []any{id}, &at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	for name, tt := range map[string]struct {
		since, until time.Time
		org          uuid.NullUUID
		want         int
	}{
		"all":                        {since: instant(ids[0]), want: 8},
		"of one organization":        {since: instant(ids[0]), org: uuid.NullUUID{UUID: w.org, Valid: true}, want: 3},
		"from the second on":         {since: instant(ids[1]), org: uuid.NullUUID{UUID: w.org, Valid: true}, want: 2},
		"up to the third without it": {since: instant(ids[0]), until: instant(ids[2]), org: uuid.NullUUID{UUID: w.org, Valid: true}, want: 2},
	} {
		if got := w.preview(db.Backfill{Consumer: consumer, Since: tt.since, Until: tt.until, OrgID: tt.org}); got.Made != tt.want {
			t.Errorf("%s: %d events, want %d", name, got.Made, tt.want)
		}
	}
}

func TestBackfillOfASubscriptionTakesWhatItsPatternsMatch(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	other := world{T: t, db: w.db, url: w.url, org: dbtest.Org(t, w.db)}
	other.emit("message.received")
	for _, typ := range []bus.Type{"message.received", "message.sent", "lead.created", "custom.x"} {
		w.emit(typ)
	}
	about := func(sub uuid.UUID, payload string, entity uuid.NullUUID) {
		t.Helper()
		err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
			_, err := tx.Emit(t.Context(), db.NewEvent{
				Type: "webhook.delivery_failed", EntityKind: "webhook_subscription", EntityID: entity,
				Payload: json.RawMessage(strings.ReplaceAll(payload, "SUB", sub.String())),
			})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	subs := map[string]uuid.UUID{"custom.x": w.subscribe("custom.x"), "message.*": w.subscribe("message.*", "custom.x"), "*": w.subscribe("*")}
	about(subs["*"], `{"subscription_id":"SUB"}`, uuid.NullUUID{})
	about(subs["*"], `{}`, uuid.NullUUID{UUID: subs["*"], Valid: true})
	about(subs["custom.x"], `{"subscription_id":"SUB"}`, uuid.NullUUID{})
	w.relay()
	// The one with * has the third event about webhooks already, and never gets those about itself.
	for pattern, want := range map[string]db.BackfillCount{"custom.x": {Made: 1}, "message.*": {Made: 3}, "*": {Made: 4, Unfinished: 1}} {
		b := db.Backfill{Subscription: uuid.NullUUID{UUID: subs[pattern], Valid: true}, Since: time.Now().Add(-time.Hour)}
		if diff := cmp.Diff(want, w.preview(b)); diff != "" {
			t.Errorf("preview of %s (-want +got):\n%s", pattern, diff)
		}
		if diff := cmp.Diff(want, w.backfill(b)); diff != "" {
			t.Errorf("backfill of %s (-want +got):\n%s", pattern, diff)
		}
	}
	if n := w.count("select count(*) from delivery where organization_id = $1", other.org); n != 0 {
		t.Errorf("%d deliveries of another organization were made, want none", n)
	}
}

func TestBackfillRefusesWhatIsNotThere(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	consumer, now := w.consumer(ownType()), time.Now()
	sub, gone := w.subscribe("*"), w.subscribe("*")
	err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error { return tx.DeleteSubscription(t.Context(), gone) })
	if err != nil {
		t.Fatal(err)
	}
	id := func(id uuid.UUID) uuid.NullUUID { return uuid.NullUUID{UUID: id, Valid: true} }
	hour := now.Add(-time.Hour)
	for name, tt := range map[string]struct {
		b    db.Backfill
		want string
	}{
		"an unknown consumer":                 {db.Backfill{Consumer: workerName(), Since: hour}, "not found"},
		"an unknown subscription":             {db.Backfill{Subscription: id(uuid.New()), Since: hour}, "not found"},
		"a deleted subscription":              {db.Backfill{Subscription: id(gone), Since: hour}, "not found"},
		"another organization's subscription": {db.Backfill{Subscription: id(sub), OrgID: id(dbtest.Org(t, w.db)), Since: hour}, "not found"},
		"an unknown organization":             {db.Backfill{Consumer: consumer, OrgID: id(uuid.New()), Since: hour}, "not found"},
		"nobody":                              {db.Backfill{Since: hour}, "consumer"},
		"a consumer and a subscription":       {db.Backfill{Consumer: consumer, Subscription: id(sub), Since: hour}, "consumer"},
		"all webhooks at once":                {db.Backfill{Consumer: bus.WebhookDispatch, Since: hour}, "subscription"},
		"a beginning in the future":           {db.Backfill{Consumer: consumer, Since: now.Add(time.Hour)}, "since"},
		"a beginning before that of the log":  {db.Backfill{Consumer: consumer, Since: now.AddDate(0, -3, 0)}, "since"},
		"an end before the beginning":         {db.Backfill{Consumer: consumer, Since: hour, Until: hour.Add(-time.Second)}, "until"},
	} {
		_, preview := w.db.PreviewBackfill(t.Context(), tt.b)
		_, run := w.db.RunBackfill(t.Context(), operator(), tt.b)
		for _, err := range []error{preview, run} {
			got := fmt.Sprint(err)
			if field, ok := errors.AsType[*bus.FieldError](err); ok {
				got = field.Field
			} else if errors.Is(err, bus.ErrNotFound) {
				got = "not found"
			}
			if got != tt.want {
				t.Errorf("%s: %v, want %s", name, err, tt.want)
			}
		}
	}
	if n := w.count("select count(*) from audit_log where action like 'consumer.%'"); n != 0 {
		t.Errorf("%d refusals are audited as acts", n)
	}
}

func TestBackfilledDeliveriesOfAnOrderedReaderStandInTheirLanes(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	typ := ownType()
	emit := func(keys ...string) {
		t.Helper()
		err := w.db.InOrg(t.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) error {
			for _, key := range keys {
				ev := db.NewEvent{Type: typ, EntityKind: "thing", Metadata: map[string]json.RawMessage{"order_key": json.RawMessage(`"` + key + `"`)}}
				if _, err := tx.Emit(t.Context(), ev); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		w.relay()
	}
	emit("a", "b", "a")
	c := bus.Consumer{Name: workerName(), Types: []bus.Type{typ}, Effect: bus.EffectAtLeastOnce, Ordering: bus.OrderingKey, Retry: bus.DefaultRetry()}
	if err := w.db.RegisterConsumers(t.Context(), []bus.Consumer{c}); err != nil {
		t.Fatal(err)
	}
	emit("a", "b", "c")
	if got := w.backfill(w.past(c.Name)); got.Made != 3 || got.Unfinished != 3 {
		t.Fatalf("backfill = %+v, want three made", got)
	}
	var order []string
	for range 4 {
		claimed := w.claim(c.Name, 10)
		keys := make(map[string]bool)
		for _, d := range claimed {
			var metadata struct {
				Key string `json:"order_key"`
			}
			if err := json.Unmarshal(d.Event.Metadata, &metadata); err != nil {
				t.Fatal(err)
			}
			if keys[metadata.Key] {
				t.Errorf("two of %s are in hand at once", metadata.Key)
			}
			keys[metadata.Key] = true
			order = append(order, fmt.Sprintf("%s%d", metadata.Key, d.Seq))
		}
		for _, d := range claimed {
			w.settle(d, bus.VerdictDone, "")
		}
	}
	got := make(map[string][]string)
	for _, o := range order {
		got[o[:1]] = append(got[o[:1]], o[1:])
	}
	if diff := cmp.Diff(map[string][]string{"a": {"1", "3", "4"}, "b": {"2", "5"}, "c": {"6"}}, got); diff != "" {
		t.Errorf("places in the order of handling (-want +got):\n%s", diff)
	}
}

func TestABackfillWaitsBehindWhatIsDueAlreadyTheOldestFirst(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	past := w.emitMany(typ, 3)
	w.relay()
	consumer := w.consumer(typ)
	waiting := w.emit(typ)
	w.relay()
	w.backfill(w.past(consumer))
	var got []uuid.UUID
	for range 4 {
		got = append(got, w.claim(consumer, 1)[0].Event.ID)
	}
	if diff := cmp.Diff(append([]uuid.UUID{waiting}, past...), got); diff != "" {
		t.Errorf("claimed (-want +got):\n%s", diff)
	}
}
