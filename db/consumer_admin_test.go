package db_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// operator is who administers the platform at the keyboard.
func operator() db.Actor { return db.Actor{Kind: db.ActorCLI, Name: "ana"} }

func (w world) pause(consumer string) {
	w.Helper()
	if err := w.db.PauseConsumer(w.Context(), operator(), consumer, "the receiver moves"); err != nil {
		w.Fatal(err)
	}
}

func (w world) resume(consumer string) {
	w.Helper()
	if err := w.db.ResumeConsumer(w.Context(), operator(), consumer, "it has moved"); err != nil {
		w.Fatal(err)
	}
}

// consumerRow is a consumer's line of the list.
func (w world) consumerRow(name string) db.ConsumerRow {
	w.Helper()
	list, err := w.db.Consumers(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	i := slices.IndexFunc(list, func(c db.ConsumerRow) bool { return c.Name == name })
	if i < 0 {
		w.Fatalf("%s is not listed", name)
	}
	return list[i]
}

func TestPausedConsumerClaimsNothingMoreAndAllOfItAfterwards(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	paused, other := w.consumer(typ), w.consumer(typ)
	first := w.emit(typ)
	w.relay()
	held := w.claim(paused, 1)[0]
	w.pause(paused)

	second := w.emit(typ) // emission and relay go on
	w.relay()
	if got := w.claim(paused, 10); len(got) != 0 {
		t.Errorf("claimed %d deliveries of a paused consumer, want none", len(got))
	}
	if got := w.claim(other, 10); len(got) != 2 {
		t.Errorf("claimed %d deliveries of the other consumer, want both", len(got))
	}
	if lost, err := w.db.Extend(t.Context(), []bus.Lease{held.Lease()}); err != nil || len(lost) != 0 {
		t.Errorf("extending what is in hand = %v, %v, want it kept", lost, err)
	}
	if lost := w.settle(held, bus.VerdictDone, ""); len(lost) != 0 {
		t.Error("what was in hand cannot be settled")
	}
	if got, want := w.states(first)[paused], "done 1/3"; got != want {
		t.Errorf("what was in hand is %q, want %q", got, want)
	}
	w.resume(paused)
	if got := w.claim(paused, 10); len(got) != 1 || got[0].Event.ID != second {
		t.Errorf("claimed %d deliveries after resuming, want the one that waited", len(got))
	}
}

func TestPauseOutlivesTheStartOfAProcess(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	c := bus.Consumer{Name: workerName(), Types: []bus.Type{typ}, Effect: bus.EffectAtLeastOnce, Retry: bus.DefaultRetry()}
	register := func() {
		t.Helper()
		if err := w.db.RegisterConsumers(t.Context(), []bus.Consumer{c}); err != nil {
			t.Fatal(err)
		}
	}
	register()
	w.pause(c.Name)
	before := w.consumerRow(c.Name)
	register()
	if diff := cmp.Diff(before, w.consumerRow(c.Name)); diff != "" || before.PausedAt == nil {
		t.Errorf("registering again changed the pause (-before +after):\n%s", diff)
	}
	worker := w.worker(typ)
	w.pause(worker)
	w.exec("select register_consumer($1, $2)", worker, []bus.Type{typ})
	w.emit(typ)
	w.relay()
	if got := w.claim(c.Name, 10); len(got) != 0 {
		t.Errorf("claimed %d deliveries after a new start, want none", len(got))
	}
	if got := w.claimEvents(worker, nil, 10); len(got) != 0 {
		t.Errorf("claimed %d events after a worker registered again, want none", len(got))
	}
}

func TestPausedWorkerOfAnotherLanguageClaimsNothingAndSettlesWhatItHolds(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	worker := w.worker(typ)
	held := w.claimOne(worker, typ)
	w.pause(worker)
	waiting := w.emit(typ)
	if got := w.claimEvents(worker, nil, 10); len(got) != 0 {
		t.Errorf("claimed %d events while paused, want none", len(got))
	}
	if n := w.count("select count(*) from event_position where event_id = $1", waiting); n != 1 {
		t.Error("a paused worker's claim does not relay")
	}
	w.exec("select ack_event($1, $2, $3)", held.ID, worker, held.LeaseToken)
	w.resume(worker)
	if got := w.claimEvents(worker, nil, 10); len(got) != 1 || got[0].ID != waiting {
		t.Errorf("claimed %+v after resuming, want the event that waited", got)
	}
}

func TestPausedWebhooksWaitForAllOrganizations(t *testing.T) {
	t.Parallel()
	w := withWebhooks(t)
	w.subscribe("custom.*")
	other := world{T: t, db: w.db, url: w.url, org: dbtest.Org(t, w.db)}
	other.subscribe("*")
	w.pause(bus.WebhookDispatch)
	typ := ownType()
	w.emit(typ)
	other.emit(typ)
	w.relay()
	if got := w.claim(bus.WebhookDispatch, 10); len(got) != 0 {
		t.Errorf("claimed %d webhooks while paused, want none", len(got))
	}
	w.resume(bus.WebhookDispatch)
	if got := w.claim(bus.WebhookDispatch, 10); len(got) != 2 {
		t.Errorf("claimed %d webhooks after resuming, want those of both", len(got))
	}
}

// What a process that died had in hand is freed as if nobody had paused, and
// counts no further crash while nobody runs it.
func TestLapsedLeasesOfAPausedConsumerAreFreedOnce(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer := w.consumer(typ)
	w.emit(typ)
	w.relay()
	w.claim(consumer, 1)
	w.pause(consumer)
	for range 3 {
		w.later(time.Hour)
		if got := w.claim(consumer, 10); len(got) != 0 {
			t.Fatalf("claimed %d deliveries while paused, want none", len(got))
		}
	}
	if n := w.count("select count(*) from delivery where organization_id = $1 and lease_token is null and suspect and attempts = 0 and crashes = 0", w.org); n != 1 {
		t.Error("the lapsed lease is not freed, or counted more than once")
	}
	w.resume(consumer)
	if got := w.claim(consumer, 10); len(got) != 1 {
		t.Errorf("claimed %d deliveries after resuming, want the one", len(got))
	}
}

func TestPauseAndResumeRefuseWhatIsNotSoAndAreAudited(t *testing.T) {
	t.Parallel()
	w := setup(t)
	consumer := w.consumer(ownType())
	ctx := t.Context()
	_, invalid := errors.AsType[*bus.FieldError](w.db.PauseConsumer(ctx, operator(), consumer, " "))
	_, long := errors.AsType[*bus.FieldError](w.db.PauseConsumer(ctx, operator(), consumer, strings.Repeat("é", 501)))
	if !invalid || !long {
		t.Errorf("a pause without a reason is refused %t, with one too long %t; want both", invalid, long)
	}
	if err := w.db.ResumeConsumer(ctx, operator(), consumer, ""); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("resuming what runs = %v, want a conflict", err)
	}
	w.pause(consumer)
	if err := w.db.PauseConsumer(ctx, db.Actor{Kind: db.ActorCLI, Name: "bia"}, consumer, "another"); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("pausing what is paused = %v, want a conflict", err)
	}
	row := w.consumerRow(consumer)
	if row.PausedAt == nil || row.PausedBy == nil || row.PausedReason == nil || *row.PausedBy != "ana" || *row.PausedReason != "the receiver moves" {
		t.Errorf("the paused consumer is %+v, want who paused it first and why", row)
	}
	w.resume(consumer)
	if row := w.consumerRow(consumer); row.PausedAt != nil || row.PausedBy != nil || row.PausedReason != nil {
		t.Errorf("the resumed consumer is %+v, want no trace of the pause", row)
	}
	for _, err := range []error{w.db.PauseConsumer(ctx, operator(), workerName(), "x"), w.db.ResumeConsumer(ctx, operator(), workerName(), "x")} {
		if !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("an unknown consumer: %v, want not found", err)
		}
	}
	const trail = `select string_agg(action || ' ' || (metadata ->> 'reason') || coalesce(' after ' || (metadata ->> 'paused_reason'), ''), '; ' order by id)
		from audit_log where organization_id is null and actor_name = 'ana' and resource_type = 'consumer' and metadata ->> 'consumer' = $1`
	var got string
	if err := dbtest.Row(t, w.url, trail, []any{consumer}, &got); err != nil {
		t.Fatal(err)
	}
	if want := "consumer.paused the receiver moves; consumer.resumed it has moved after the receiver moves"; got != want {
		t.Errorf("audited: %q, want %q", got, want)
	}
}

func TestConsumersAreListedWithWhatWaitsAndIsDeadUpToTheCap(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	consumer, idle := w.consumer(typ), w.consumer(typ)
	w.emit(typ)
	w.emit(typ)
	w.relay()
	w.settle(w.claim(consumer, 1)[0], bus.VerdictDead, "broken")
	w.claim(idle, 10)
	row := w.consumerRow(consumer)
	if row.Waiting != 1 || row.Dead != 1 || row.OldestDueAt == nil {
		t.Errorf("listed %+v, want one waiting, one dead and since when", row)
	}
	if row := w.consumerRow(idle); row.Waiting != 2 || row.OldestDueAt != nil || row.Dead != 0 {
		t.Errorf("listed %+v, want two in hand and none due", row)
	}
	w.exec(`insert into delivery (consumer_id, destination, organization_id, seq, event_id, due_at)
		select c.id, gen_random_uuid(), $2, -n, gen_random_uuid(), 'infinity' from consumers c cross join generate_series(1, 1500) n where c.name = $1`, consumer, w.org)
	if row := w.consumerRow(consumer); row.Waiting != db.ConsumerCountCap+1 {
		t.Errorf("%d waiting are listed, want %d, which means more", row.Waiting, db.ConsumerCountCap+1)
	}
}
