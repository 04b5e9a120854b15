package db_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

var bufferCount = regexp.MustCompile(`shared (?:hit=(\d+))?\s?(?:read=(\d+))?`)

// buffers is how many pages a statement touches.
func (w world) buffers(sql string, args ...any) (n int) {
	w.Helper()
	rows, err := dbtest.Conn(w.T, w.url).Query(w.Context(), "explain (analyze, buffers, costs off, timing off) "+sql, args...)
	if err != nil {
		w.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.Fatal(err)
	}
	found := bufferCount.FindStringSubmatch(strings.Join(plan, "\n"))
	if found == nil {
		w.Fatalf("no buffers in %v", plan)
	}
	for _, text := range found[1:] {
		if text != "" {
			part, err := strconv.Atoi(text)
			if err != nil {
				w.Fatal(err)
			}
			n += part
		}
	}
	return n
}

func TestTheCostOfPressureGrowsWithNoBacklog(t *testing.T) {
	t.Parallel()
	const border = 20_000
	for name, tt := range map[string]struct {
		build func(w world, consumers []string, n int)
		want  int // of the organization, however much waits
	}{
		"nothing in order": {func(w world, consumers []string, n int) { w.pile(consumers[0], uuid.Nil, n) }, border},
		"many consumers": {func(w world, consumers []string, n int) {
			for _, c := range consumers {
				w.pile(c, uuid.Nil, n)
			}
		}, border},
		"one lane":           {func(w world, consumers []string, n int) { w.stack(consumers[0], 0, 1, n) }, border + 1}, // the head is read once more before what is behind it
		"lanes of their own": {func(w world, consumers []string, n int) { w.stack(consumers[0], 0, n, 0) }, 2 * border},
		"behind heads that have failed": {func(w world, consumers []string, n int) {
			w.stack(consumers[0], 0, 10, n/10)
			w.exec("update delivery set attempts = 1")
		}, 10},
		"behind heads that wait": {func(w world, consumers []string, n int) { w.stack(consumers[0], time.Hour, n, 1) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := alone(t)
			other := world{T: t, db: w.db, url: w.url, org: dbtest.Org(t, w.db)}
			var consumers []string
			for range 3 {
				consumers = append(consumers, w.consumer(ownType()))
			}
			for _, n := range []int{25_000, 50_000} {
				w.exec("truncate delivery")
				tt.build(w, consumers, n)
				w.exec("analyze delivery")
				const organization = "select organization_pressure($1)"
				if got := w.visited(visitedEntriesSQL, "delivery", organization, w.org); got > tt.want {
					t.Errorf("of %d deliveries %d are read, want %d at most", n, got, tt.want)
				}
				if got := w.visited(visitedEntriesSQL, "delivery", organization, other.org); got != 0 {
					t.Errorf("of another organization's %d deliveries %d are read, want none", n, got)
				}
			}
		})
	}
}

func TestTheCostOfPressureOnTheInstallationIsThatOfTheEndsOfTheOutbox(t *testing.T) {
	t.Parallel()
	w := alone(t)
	for _, n := range []int{100, 50_000} {
		w.exec("insert into outbox (event_id, organization_id, event_type, created_at) select gen_random_uuid(), $1, 'custom.x', clock_timestamp() from generate_series(1, $2::int)", w.org, n)
		w.exec("analyze outbox")
		if got := w.visited(visitedEntriesSQL, "outbox", "select installation_pressure()"); got > 3 {
			t.Errorf("of %d events of the outbox %d are read, want the ends of the only organization that waits", n, got)
		}
	}
}

func TestTheCostOfTheListOfConsumersGrowsWithNoBacklog(t *testing.T) {
	t.Parallel()
	w := alone(t)
	consumers := []string{w.consumer(ownType()), w.consumer(ownType())}
	const most = 1_001
	list := strings.ReplaceAll(statementConstants(t)["listConsumersSQL"], "@cap", "$1")
	for _, n := range []int{2_000, 15_000} {
		w.exec("truncate delivery, dead_delivery")
		for _, c := range consumers {
			w.pile(c, uuid.Nil, n)
		}
		w.exec(`insert into dead_delivery (delivery_id, organization_id, consumer_id, destination, lane, seq, event_id, event_type, entity_kind,
				payload, metadata, event_created_at, attempts, earlier_attempts, last_error)
			select gen_random_uuid(), $1, c.id, gen_random_uuid(), 0, n, gen_random_uuid(), 'custom.x', 'thing', '{}', '{}', now(), 1, 0, 'broken'
			  from consumers c cross join generate_series(1, $2::int) n`, w.org, n)
		w.exec("analyze delivery, dead_delivery")
		// Beside what is counted the one that has been due longest is looked for. The dead of both lie mingled in the index of all,
		// which the planner takes.
		for table, want := range map[string]int{"delivery": len(consumers) * (most + 1), "dead_delivery": len(consumers) * len(consumers) * most} {
			if got := w.visited(visitedEntriesSQL, table, list, most); got > want {
				t.Errorf("with %d for each consumer %d of %s are read, want %d at most", n, got, table, want)
			}
		}
	}
}

// The receipts of a period are found by its ids and not by reading them all.
func TestTheCostOfABackfillsStepGrowsWithNoHistory(t *testing.T) {
	t.Parallel()
	w := alone(t)
	typ := ownType()
	receipts := func(n int, age string) {
		t.Helper()
		w.exec(`insert into receipt (organization_id, consumer_id, outcome, first_event_id, last_event_id, event_ids, destinations, attempts)
			select $1, 1, 'done', e.id, e.id, array[e.id], array[gen_random_uuid()], '{1}'
			  from (select uuid_v7(clock_timestamp() - $3::interval) as id from generate_series(1, $2::int)) e`, w.org, n, age)
		w.exec("vacuum analyze receipt")
	}
	consumer := w.consumer(typ)
	w.emitMany(typ, 10)
	w.relay()
	step := func() int {
		return w.buffers(`select backfill_deliveries(c.id, '00000000-0000-0000-0000-000000000000', null, now() - interval '1 minute', null, null, 1000, false)
			from consumers c where c.name = $1`, consumer)
	}
	receipts(500, "10 days")
	few := step()
	receipts(20_000, "9 days")
	if many := step(); many > few+100 {
		t.Errorf("pages touched: %d, then %d with a history; want no growth", few, many)
	}
}
