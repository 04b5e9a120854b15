package db_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"

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
	w := alone(t)
	other := world{T: t, db: w.db, url: w.url, org: dbtest.Org(t, w.db)}
	var consumers []string
	for range 3 {
		consumers = append(consumers, w.consumer(ownType()))
	}
	const organization, installation = "select organization_pressure($1)", "select installation_pressure() where $1::uuid is not null"
	w.exec("insert into outbox (event_id, organization_id, event_type, created_at) select gen_random_uuid(), $1, 'custom.x', clock_timestamp() from generate_series(1, 100)", w.org)
	w.pile(consumers[0], uuid.Nil, 25_000)
	w.exec("vacuum analyze delivery")
	w.exec("vacuum delivery")
	w.exec("vacuum analyze outbox")
	few, fewOut, none := w.buffers(organization, w.org), w.buffers(installation, w.org), other.buffers(organization, other.org)
	for _, c := range consumers {
		w.pile(c, uuid.Nil, 20_000)
	}
	w.exec("insert into outbox (event_id, organization_id, event_type, created_at) select gen_random_uuid(), $1, 'custom.x', clock_timestamp() from generate_series(1, 50000)", w.org)
	w.exec("vacuum delivery")
	many, manyOut, still := w.buffers(organization, w.org), w.buffers(installation, w.org), other.buffers(organization, other.org)
	// What an idle organization costs is the reading of the catalogue by a new connection.
	if many-few > 800 || manyOut > fewOut+20 || still > none+50 {
		t.Errorf("pages touched: %d then %d by a busy organization, %d then %d by the outbox, %d then %d by an idle organization; want no growth",
			few, many, fewOut, manyOut, none, still)
	}
}

func TestTheCostOfTheListOfConsumersGrowsWithNoBacklog(t *testing.T) {
	t.Parallel()
	w := alone(t)
	consumers := []string{w.consumer(ownType()), w.consumer(ownType())}
	list := strings.ReplaceAll(statementConstants(t)["listConsumersSQL"], "@cap", "$1")
	bury := func(n int) {
		t.Helper()
		w.exec(`insert into dead_delivery (delivery_id, organization_id, consumer_id, destination, lane, seq, event_id, event_type, entity_kind,
				payload, metadata, event_created_at, attempts, earlier_attempts, last_error)
			select gen_random_uuid(), $1, c.id, gen_random_uuid(), 0, n, gen_random_uuid(), 'custom.x', 'thing', '{}', '{}', now(), 1, 0, 'broken'
			  from consumers c cross join generate_series(1, $2::int) n`, w.org, n)
		w.exec("vacuum analyze delivery")
		w.exec("vacuum analyze dead_delivery")
	}
	none := w.buffers(list, 1_001)
	w.pile(consumers[0], uuid.Nil, 2_000)
	w.pile(consumers[1], uuid.Nil, 2_000)
	bury(1_500)
	few := w.buffers(list, 1_001)
	w.pile(consumers[0], uuid.Nil, 10_000)
	bury(5_000)
	if many := w.buffers(list, 1_001); many-few > 150 { // 15,000 rows more would be twice that
		t.Errorf("pages touched: %d, %d, then %d with a backlog; want no growth", none, few, many)
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
