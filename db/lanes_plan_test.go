package db_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// behindSQL puts a hundred thousand deliveries behind the head of a lane.
const behindSQL = `
	with moved as (update relay_state set last_seq = last_seq + 200000)
	insert into delivery (consumer_id, destination, organization_id, lane, seq, event_id, due_at)
	select d.consumer_id, d.destination, d.organization_id, d.lane, d.seq + n, d.event_id, 'infinity'
	  from delivery d cross join generate_series(1, 100000) n
	 where d.organization_id = $1 and d.lane = 1 and d.due_at < 'infinity'`

// readSQL counts the entries of indexes on deliveries that the transaction has
// read, and the rows that it has read without one.
const readSQL = `
	select (select coalesce(sum(pg_stat_get_xact_tuples_returned(indexrelid)), 0) from pg_index where indrelid = 'delivery'::regclass)
	       + pg_stat_get_xact_tuples_returned('delivery'::regclass)`

// What the planner believes at that moment must not matter: the table is full
// one minute and empty the next. The bounds leave room for the index entries of
// what was deleted since the last vacuum.
func TestALaneCostsTheSameHoweverManyWaitInIt(t *testing.T) {
	t.Parallel()
	for name, analyze := range map[string]string{
		"never analyzed":                     "select",
		"analyzed when it was empty":         "analyze delivery",
		"analyzed when lanes had one each":   "insert into delivery (consumer_id, destination, organization_id, lane, seq, event_id, due_at) select 1, '00000000-0000-0000-0000-000000000000', gen_random_uuid(), 1000 + n, n, gen_random_uuid(), 'infinity' from generate_series(1, 3000) n; analyze delivery; delete from delivery",
		"analyzed when all were in one lane": "insert into delivery (consumer_id, destination, organization_id, lane, seq, event_id, due_at) select 1, '00000000-0000-0000-0000-000000000000', '00000000-0000-0000-0000-000000000000', 1, n, gen_random_uuid(), 'infinity' from generate_series(1, 3000) n; analyze delivery; delete from delivery",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := freshWorld(t)
			typ := ownType()
			consumer := w.ordered(bus.OrderingStrict, typ)
			w.exec("alter table delivery set (autovacuum_enabled = false)")
			conn := dbtest.Conn(t, w.url)
			if _, err := conn.Exec(t.Context(), analyze); err != nil {
				t.Fatal(err)
			}
			head := w.next(consumer, w.emitKeyed(typ, "")[0])
			w.settle(head, bus.VerdictRetry, "refused")
			if _, err := conn.Exec(t.Context(), behindSQL, w.org); err != nil {
				t.Fatal(err)
			}
			lane := []any{[]int16{head.ConsumerID}, []uuid.UUID{head.Destination}, []uuid.UUID{w.org}, []int64{head.Lane}}
			read := func(what string, most int, sql string, args ...any) {
				t.Helper()
				var before, after int
				err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
					if err := tx.QueryRow(t.Context(), readSQL).Scan(&before); err != nil {
						return err
					}
					if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
						return err
					}
					return tx.QueryRow(t.Context(), readSQL).Scan(&after)
				})
				if err != nil {
					t.Fatal(err)
				}
				if after-before > most {
					t.Errorf("%s reads %d rows of deliveries, want at most %d", what, after-before, most)
				}
			}
			for range 7 { // after five the planner may think again
				read("a claim", 200, `select from lease_deliveries((select taken from lock_fitting(array[$1], array[8], array[2], array[2], array[2],
					'{}', '{}', '{}', '{}', true)), '30 s')`, consumer)
				read("moving the lane on", 200, "select advance_lanes($1, $2, $3, $4)", lane...)
				w.emit(typ)
				read("relaying to the lane", 200, "select relay_events(10)")
				w.exec("delete from delivery where organization_id = $1 and due_at < 'infinity'", w.org)
				read("making the next one current", 200, "select advance_lanes($1, $2, $3, $4)", lane...)
			}
			w.lanesAreSound()
			read("listing lanes", db.LaneCap+200, statementConstants(t)["listLanesSQL"], pgx.NamedArgs{
				"org_id": w.org, "consumer_id": 0, "paused": nil, "limit": 10, "cap": db.LaneCap + 1,
				"after_consumer": 0, "after_destination": uuid.Nil, "after_lane": -1 << 63,
			})
		})
	}
}
