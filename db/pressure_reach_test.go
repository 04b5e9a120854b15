package db_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// stack makes a head that is due after a wait in each of some lanes, with n deliveries behind it.
func (w world) stack(consumer string, wait time.Duration, lanes, n int) {
	w.Helper()
	w.exec(`insert into delivery (consumer_id, destination, organization_id, lane, seq, event_id, due_at)
		select c.id, $3, $2, 2 * l, (select coalesce(max(seq), 0) from delivery) + row_number() over (order by n, l), gen_random_uuid(),
		       case when n = 0 then clock_timestamp() + $6::interval else 'infinity' end
		  from consumers c
		 cross join generate_series(1, $4::int) l
		 cross join generate_series(0, $5::int) n
		 where c.name = $1`, consumer, w.org, uuid.Nil, lanes, n, wait)
}

func TestPressureCountsWhatStandsInALaneWhileItsHeadIsHandledForTheFirstTime(t *testing.T) {
	t.Parallel()
	w := alone(t)
	w.stack(w.ordered(bus.OrderingKey, ownType()), 0, 2, 10_000)
	const (
		pause = `insert into paused_lane (organization_id, consumer_id, destination, lane, reason, actor_name)
			select distinct organization_id, consumer_id, destination, lane, 'a look', 'ana' from delivery where lane <= `
		inHand = "update delivery set lease_token = 1, due_at = clock_timestamp() + interval '30 seconds'"
	)
	for name, tt := range map[string]struct {
		change []string
		want   db.Pressure
	}{
		"due heads":               {nil, "high"},
		"heads in hand":           {[]string{inHand + " where due_at < 'infinity'"}, "high"},
		"heads that failed":       {[]string{"update delivery set attempts = 1, due_at = due_at + interval '1 hour' where due_at < 'infinity'"}, "normal"},
		"heads that are due anew": {[]string{"update delivery set attempts = 1 where due_at < 'infinity'"}, "normal"},
		"heads in hand anew":      {[]string{inHand + ", attempts = 1 where due_at < 'infinity'"}, "normal"},
		"heads for later":         {[]string{"update delivery set due_at = due_at + interval '1 hour' where due_at < 'infinity'"}, "normal"},
		"paused lanes":            {[]string{pause + "4", "update delivery set due_at = 'infinity'"}, "normal"},
		"lanes paused while their heads are in hand": {[]string{pause + "4", inHand + " where due_at < 'infinity'"}, "normal"},
		"one paused lane": {[]string{pause + "2", "update delivery set due_at = 'infinity' where lane = 2"}, "elevated"},
	} {
		tx, err := dbtest.Conn(t, w.url).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, sql := range tt.change {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		var got db.Pressure
		if err := tx.QueryRow(t.Context(), "select organization_pressure($1)", w.org).Scan(&got); err != nil || got != tt.want {
			t.Errorf("with 20000 behind %s: %s, %v, want %s", name, got, err, tt.want)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPressureCountsTheWorkOfAnSQLWorkerWhileSomebodyRunsIt(t *testing.T) {
	t.Parallel()
	w := alone(t)
	worker := w.worker(ownType())
	w.pile(worker, uuid.Nil, 20_010)
	if got := w.organizationPressure("normal"); got != "normal" {
		t.Errorf("before anybody has run it: %s, want normal", got)
	}
	seen := "select count(*) from consumers where name = $1 and seen_at > clock_timestamp() - interval '1 minute'"
	for name, act := range map[string]func(){
		"claims":            func() { w.claimEvents(worker, nil, 1) },
		"renews its leases": func() { w.exec("select extend_lease($1)", worker) },
	} {
		act()
		if got := w.organizationPressure("normal"); got != "high" {
			t.Errorf("when it %s: %s, want high", name, got)
		}
		w.exec("update consumers set seen_at = seen_at - interval '9 minutes'")
		if got := w.organizationPressure("normal"); got != "high" {
			t.Errorf("nine minutes after it %s: %s, want high", name, got)
		}
		w.exec("update consumers set seen_at = seen_at - interval '1 minute'")
		if got := w.organizationPressure("normal"); got != "normal" {
			t.Errorf("ten minutes after it %s: %s, want normal", name, got)
		}
	}
	act := func() string {
		w.claimEvents(worker, nil, 1)
		var row string
		if err := dbtest.Row(t, w.url, "select ctid || ' ' || xmin from consumers where name = $1", []any{worker}, &row); err != nil {
			t.Fatal(err)
		}
		return row
	}
	if first, second := act(), act(); first != second || w.count(seen, worker) != 1 {
		t.Error("each claim writes the worker's row, want once a minute")
	}
}
