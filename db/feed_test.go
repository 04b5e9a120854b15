package db_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

func (w world) feed(org uuid.UUID, q db.FeedQuery) db.Feed {
	w.Helper()
	var feed db.Feed
	err := w.db.InOrg(w.Context(), org, dbtest.Actor(), func(tx *db.OrgTx) (err error) {
		feed, err = tx.Feed(w.Context(), q)
		return err
	})
	if err != nil {
		w.Error(err) // and not Fatal: readers run beside the test too
		return db.Feed{Cursor: q.After}
	}
	return feed
}

// follow reads on from a place until nothing is left and returns the events.
func (w world) follow(org uuid.UUID, q db.FeedQuery) []db.FeedEvent {
	w.Helper()
	var events []db.FeedEvent
	for {
		feed := w.feed(org, q)
		events = append(events, feed.Events...)
		if feed.Cursor == q.After {
			return events
		}
		q.After = feed.Cursor
	}
}

func feedIDs(events []db.FeedEvent) []uuid.UUID {
	ids := make([]uuid.UUID, len(events))
	for i, ev := range events {
		ids[i] = ev.ID
	}
	return ids
}

func TestFeedHasTheEventsOfItsOrganizationInTheirOrder(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t) // where nobody else relays
	d := dbtest.Open(t, url, db.Options{})
	w, other := world{T: t, db: d, url: url, org: dbtest.Org(t, d)}, world{T: t, db: d, url: url, org: dbtest.Org(t, d)}
	a, b := ownType(), ownType()
	var all, ofA []uuid.UUID
	for n := range 7 {
		typ := b
		if n%3 == 0 {
			typ = a
		}
		id := w.emit(typ)
		all = append(all, id)
		if typ == a {
			ofA = append(ofA, id)
		}
		other.emit(typ)
	}
	w.relay()
	late := w.emit(a) // has no place yet
	for name, tt := range map[string]struct {
		query db.FeedQuery
		want  []uuid.UUID
	}{
		"all":               {db.FeedQuery{}, all},
		"in pages":          {db.FeedQuery{Limit: 2}, all},
		"of a type":         {db.FeedQuery{Types: []bus.Type{a}}, ofA},
		"a type in pages":   {db.FeedQuery{Types: []bus.Type{a}, Limit: 2}, ofA},
		"of several types":  {db.FeedQuery{Types: []bus.Type{a, b}, Limit: 3}, all},
		"of no type at all": {db.FeedQuery{Types: []bus.Type{ownType()}}, []uuid.UUID{}},
	} {
		if got := feedIDs(w.follow(w.org, tt.query)); !cmp.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	first := w.feed(w.org, db.FeedQuery{Limit: 1})
	ev := first.Events[0]
	if ev.ID != all[0] || ev.OrgID != w.org || ev.Type != a || string(ev.Payload) != `{"n": 1}` || ev.Seq != first.Cursor || ev.CreatedAt.IsZero() {
		t.Errorf("the first event is %+v up to %d", ev, first.Cursor)
	}
	end := w.feed(w.org, db.FeedQuery{}).Cursor
	w.relay()
	if got := feedIDs(w.follow(w.org, db.FeedQuery{After: end})); !cmp.Equal(got, []uuid.UUID{late}) {
		t.Errorf("after the end: %v, want only what has got its place since", got)
	}
}

// A call looks at a bounded number of places. One that finds nothing there still
// brings its reader on.
func TestFeedPassesOverWhatIsNotWantedInBoundedSteps(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	w := world{T: t, db: d, url: url, org: dbtest.Org(t, d)}
	w.exec(`insert into event_position (seq, event_id, organization_id, event_type)
	        select n, gen_random_uuid(), $1, 'custom.common' from generate_series(1, 5000) n`, w.org)
	w.exec(`update relay_state set last_seq = 5000`)
	rare := w.emit("custom.rare")
	w.relay()
	query := db.FeedQuery{Types: []bus.Type{"custom.rare"}}
	if feed := w.feed(w.org, query); len(feed.Events) != 0 || feed.Cursor != 2000 {
		t.Errorf("the first call has %d events up to %d, want none up to 2000", len(feed.Events), feed.Cursor)
	}
	if got := feedIDs(w.follow(w.org, query)); !cmp.Equal(got, []uuid.UUID{rare}) {
		t.Errorf("the feed has %v, want the rare event", got)
	}
	// Their events are not in the log, as when their month has been dropped.
	if feed := w.feed(w.org, db.FeedQuery{Limit: 10}); len(feed.Events) != 0 || feed.Cursor != 10 {
		t.Errorf("a page of events that are gone has %d events up to %d, want none up to 10", len(feed.Events), feed.Cursor)
	}
}

// What others have emitted costs a reader nothing, under row security too.
func TestFeedDoesNotWalkOverTheEventsOfOthers(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	org := dbtest.Org(t, d)
	conn := dbtest.Conn(t, url)
	if _, err := conn.Exec(t.Context(), `
		insert into event_position (seq, event_id, organization_id, event_type)
		select n, gen_random_uuid(), gen_random_uuid(), 'custom.other' from generate_series(1, 5000) n;
		analyze event_position`); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `insert into event_position values (5001, gen_random_uuid(), $1, 'custom.own')`, org); err != nil {
		t.Fatal(err)
	}
	sql, _, err := pgx.NamedArgs{}.RewriteQuery(t.Context(), nil, statementConstants(t)["readFeedSQL"], nil)
	if err != nil || sql == "" {
		t.Fatalf("there is no statement of the feed: %v", err)
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select set_config('app.organization_id', $1, true), set_config('role', 'deskcomm_api', true),
		set_config('plan_cache_mode', 'force_generic_plan', true)`, org.String()); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "prepare feed as "+sql); err != nil {
		t.Fatal(err)
	}
	// The parameters are numbered as they first appear.
	rows, err := tx.Query(t.Context(), "explain (analyze, costs off, timing off) execute feed('"+org.String()+"', 0, 2000, '{}', 50)")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(plan, "\n")
	byOrganization := regexp.MustCompile(`event_position_organization_idx [^\n]*\n\s+Index Cond: \(\(organization_id = `)
	if !byOrganization.MatchString(text) || regexp.MustCompile(`Rows Removed by Filter: [1-9]`).MatchString(text) {
		t.Errorf("the feed walks over what is not its organization's:\n%s", text)
	}
}
