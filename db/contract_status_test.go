package db_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

func TestStatusTellsWhatBecameOfAnEvent(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	one, two := w.worker(typ), w.worker(typ)
	w.exec("update consumers set max_attempts = 1 where name = $1", two)
	ev := w.claimOne(one, typ)
	steps := []struct{ sql, want string }{
		{"", "processing 0 0 - t"},
		{"select nack_event($1, $2, 'later', null) where $3 <> ''", "pending 1 0 later t"},
	}
	for _, s := range steps {
		if s.sql != "" {
			w.exec(s.sql, ev.ID, one, two)
		}
		if got := w.status(ev.ID); got != s.want {
			t.Errorf("after %q: %q, want %q", s.sql, got, s.want)
		}
	}
	w.later(time.Hour)
	w.claimEvents(one, nil, 1)
	w.exec("select ack_event($1, $2)", ev.ID, one)
	if got := w.status(ev.ID); got != "pending 2 1 - t" {
		t.Errorf("one of two done: %q", got)
	}
	w.claimEvents(two, nil, 1)
	w.exec("select nack_event($1, $2, 'no')", ev.ID, two)
	if got := w.status(ev.ID); got != "dead 2 1 no f" {
		t.Errorf("one dead: %q", got)
	}
	w.exec("select discard_event($1, $2, 'known')", ev.ID, two)
	if got := w.status(ev.ID); got != "done 2 1 - f" {
		t.Errorf("one discarded: %q", got)
	}
}

// Who may read the view reads what the tables show.
func TestStatusShowsNoOtherOrganization(t *testing.T) {
	t.Parallel()
	a, b := setup(t), setup(t)
	a.emit(ownType())
	b.emit(ownType())
	tx, err := dbtest.Conn(t, dbtest.Fresh(t)).Begin(t.Context()) // granting on the shared clone would lock the others out
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"insert into organizations (id, name) values ('" + a.org.String() + "', 'a'), ('" + b.org.String() + "', 'b')",
		"select emit_event('custom.x', 'thing', null, '{}', '{}', id) from organizations",
		"grant select on event_log_status to deskcomm_api",
		"select set_config('app.organization_id', '" + a.org.String() + "', true), set_config('role', 'deskcomm_api', true)",
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(sql, err)
		}
	}
	var own, foreign int
	err = tx.QueryRow(t.Context(), "select count(*) filter (where organization_id = $1), count(*) filter (where organization_id <> $1) from event_log_status", a.org).Scan(&own, &foreign)
	if err != nil || own != 1 || foreign != 0 {
		t.Errorf("saw %d own and %d foreign events, %v, want 1 and 0", own, foreign, err)
	}
}

func TestReprocessTouchesOnlyWhatIsDeadAndIsAudited(t *testing.T) {
	t.Parallel()
	w := setup(t)
	typ := ownType()
	done, dead, unsure := w.worker(typ), w.worker(typ), w.worker(typ)
	w.exec("update consumers set max_attempts = 1 where name = any ($1)", []string{dead, unsure})
	ev := w.claimOne(done, typ)
	w.exec("select ack_event($1, $2)", ev.ID, done)
	for _, worker := range []string{dead, unsure} {
		w.claimEvents(worker, nil, 1)
		w.exec("select nack_event($1, $2, 'broken')", ev.ID, worker)
	}
	w.exec("update dead_delivery set state = 'uncertain' where delivery_id = $1", bus.DeliveryID(ev.ID, unsure, uuid.Nil))

	if n := w.count("select reprocess_event($1)", ev.ID); n != 1 {
		t.Errorf("reprocessed %d deliveries, want the dead one alone", n)
	}
	want := map[string]string{done: "done 1/8", dead: "pending 0/1", unsure: "uncertain 1/1"}
	if diff := cmp.Diff(want, w.states(ev.ID)); diff != "" {
		t.Errorf("deliveries after it (-want +got):\n%s", diff)
	}
	if got := w.claimEvents(dead, nil, 1); len(got) != 1 || got[0].Attempts != 2 || got[0].DeliveryID != bus.DeliveryID(ev.ID, dead, uuid.Nil) {
		t.Errorf("claimed %+v, want the same delivery in its second attempt", got)
	}
	before := w.bus()
	for _, worker := range []any{nil, done, dead} {
		if got := w.refusal("select reprocess_event($1, $2)", ev.ID, worker); !strings.HasPrefix(got, "55000 p_event_id: ") {
			t.Errorf("reprocess for %v refused by %q", worker, got)
		}
	}
	if diff := cmp.Diff(before, w.bus()); diff != "" {
		t.Errorf("what was refused has changed rows (-before +after):\n%s", diff)
	}
	if n := w.count("select discard_event($1, $2, 'seen on the phone')", ev.ID, unsure); n != 1 {
		t.Errorf("discarded %d, want the uncertain one", n)
	}
	w.exec(`insert into consumers (name, event_types, effect, retry_steps, retry_jitter, max_attempts)
		values ($1, '{}', 'at_least_once', '{1 hour}', 0, 2) on conflict do nothing`, bus.WebhookDispatch)
	w.exec(`update dead_delivery
		   set state = 'dead', resolved_at = null, destination = gen_random_uuid(), consumer_id = (select id from consumers where name = $2)
		 where delivery_id = $1`, bus.DeliveryID(ev.ID, unsure, uuid.Nil), bus.WebhookDispatch)
	if got := w.refusal("select reprocess_event($1)", ev.ID); !strings.HasPrefix(got, "55000 p_event_id: ") {
		t.Errorf("reprocess for a subscription that is gone refused by %q", got)
	}
	n := w.count(`select count(*) from audit_log where organization_id = $1 and actor_kind = 'cli' and actor_name = session_user
		and (action, metadata ->> 'old_status', metadata ->> 'consumer', metadata ->> 'reason')
		    in (('delivery.replayed', 'dead', $2, ''), ('delivery.discarded', 'uncertain', $3, 'seen on the phone'))`, w.org, dead, unsure)
	if n != 2 {
		t.Errorf("%d decisions are audited, want 2", n)
	}
}
