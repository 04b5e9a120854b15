package db_test

import (
	"testing"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// visitedSQL is what the transaction has read of a table so far.
const visitedSQL = `select coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables where relname = $1`

const visitedEntriesSQL = `
	select coalesce(t.seq_tup_read, 0) + coalesce((select sum(pg_stat_get_xact_tuples_returned(i.indexrelid)) from pg_index i where i.indrelid = t.relid), 0)::int
	  from pg_stat_xact_user_tables t
	 where t.relname = $1`

// visited is how much of a table a statement reads: its rows by visitedSQL, or by visitedEntriesSQL also the entries of indexes
// that need no look at their rows, which depends on the last vacuum.
func (w world) visited(countSQL, table, sql string, args ...any) (n int) {
	w.Helper()
	tx, err := dbtest.Conn(w.T, w.url).Begin(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	defer tx.Rollback(w.Context()) //nolint:errcheck // nothing is kept
	if _, err := tx.Exec(w.Context(), sql, args...); err != nil {
		w.Fatal(err)
	}
	if err := tx.QueryRow(w.Context(), countSQL, table).Scan(&n); err != nil {
		w.Fatal(err)
	}
	return n
}

// However many jobs wait for days to come, in however many organizations: the relay looks at the first, and a claim at
// none.
func TestJobsOfTheFutureAreNotWalkedOver(t *testing.T) {
	t.Parallel()
	w := alone(t)
	command := ownCommand()
	consumer := w.consumer(command)
	visited := make(map[int][2]int)
	for _, future := range []int{0, 20_000} {
		if future > 0 {
			w.exec(`insert into organizations (name) select 'o' || n from generate_series(1, 500) n`)
			w.exec(`insert into waiting_job (event_id, organization_id, event_type, created_at, not_before)
				select uuid_v7(), o.id, $1, now(), now() + interval '1 day' + n * interval '1 second'
				  from generate_series(1, $2::int) n
				  join (select id, row_number() over () as i from organizations) o on o.i = 1 + n % 500`, command, future)
		}
		for range 30 { // more than the shares allow, so that the claim looks for everybody who has work
			w.enqueue(db.NewJob{Command: command})
		}
		conn := dbtest.Conn(t, w.url)
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var claimed int
		if _, err := tx.Exec(t.Context(), "select relay_events(1000)"); err != nil {
			t.Fatal(err)
		}
		err = tx.QueryRow(t.Context(), `
			select (select count(*) from lock_fitting(array[$1], array[16], array[4], array[4], array[4], '{}', '{}', '{}', '{}', true))
			     * (select sum(waiting) from waiting_flows(array[$1], array['00000000-0000-0000-0000-000000000000'::uuid],
			           array['00000000-0000-0000-0000-000000000000'::uuid], '{24}', '{0}', 1))`, consumer).Scan(&claimed)
		if err != nil || claimed == 0 {
			t.Fatalf("found %d, %v, want some", claimed, err)
		}
		var waiting, deliveries int
		for table, n := range map[string]*int{"waiting_job": &waiting, "delivery": &deliveries} {
			if err := tx.QueryRow(t.Context(), visitedSQL, table).Scan(n); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.exec("delete from outbox")
		visited[future] = [2]int{waiting, deliveries}
		if waiting > 1 {
			t.Errorf("beside %d jobs of the future %d of them were read, want the first at most", future, waiting)
		}
	}
	if none, many := visited[0][1], visited[20_000][1]; many > none {
		t.Errorf("a claim reads %d deliveries beside jobs of the future, want the %d that it reads without", many, none)
	}
}
