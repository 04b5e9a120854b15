package db_test

import (
	"testing"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// What is due of suspended organizations stays due for as long as they are.
func TestSchedulesOfSuspendedOrganizationsAreNotWalkedOver(t *testing.T) {
	t.Parallel()
	w := alone(t)
	gone := world{T: t, db: w.db, url: w.url, org: dbtest.Org(t, w.db)}
	template := gone.mustSchedule(db.NewSchedule{Name: "s", Command: ownCommand()})
	fill := func(from, to int) {
		t.Helper()
		w.exec(`insert into schedule (organization_id, name, command, entity_kind, expression, zone, missed, next_at)
			select organization_id, name || n, command, entity_kind, expression, zone, missed, clock_timestamp() - n * interval '1 minute'
			  from schedule cross join generate_series($2::int, $3::int) n where id = $1`, template.ID, from, to)
	}
	fill(1, 1_000)
	if _, err := w.db.SuspendOrganization(t.Context(), dbtest.Actor(), gone.org, "unpaid"); err != nil {
		t.Fatal(err)
	}
	fill(1_001, 2_000)
	mine := w.mustSchedule(db.NewSchedule{Name: "mine", Command: ownCommand()})
	w.dueSince(mine, 0)
	w.exec("analyze schedule")
	for _, name := range []string{"dueScheduleSQL", "untilFireSQL"} {
		if n := w.visited(visitedSQL, "schedule", statementConstants(t)[name]); n > 1 {
			t.Errorf("%s reads %d schedules, want the one that is due", name, n)
		}
	}
	w.exec("delete from schedule where organization_id = $1 and id not in (select id from schedule where organization_id = $1 order by next_at limit 100)", gone.org)
	if _, err := w.db.ReactivateOrganization(t.Context(), dbtest.Actor(), gone.org); err != nil {
		t.Fatal(err)
	}
	if got := len(w.fireAll()); got != 101 {
		t.Errorf("%d were fired when the organization was back, want all 101", got)
	}
}
