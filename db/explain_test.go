package db_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// Under row security an operator that may leak cannot use an index. The lists
// of the API must find theirs as the API's role, whatever is filtered: with
// sequential scans made prohibitive, none may be left in the plan.
func TestListsOfTheAPIUseAnIndexUnderRowSecurity(t *testing.T) {
	t.Parallel()
	w := setup(t)
	statements := statementConstants(t)
	parameter := regexp.MustCompile(`\$(\d+)`)
	for _, name := range []string{
		"listEventsSQL", "showEventSQL", "eventDeliveriesSQL", "listDeadSQL", "listSubscriptionsSQL", "showSubscriptionSQL", "listTokensSQL",
		"listChannelsSQL", "listContactsSQL", "showContactSQL", "listConversationsSQL", "listMessagesSQL", "showMessageSQL", "recallAnswerSQL",
		"countDeadSQL", "showDeadSQL", "listLanesSQL", "lockHeadSQL", "laneExistsSQL", "deadNamesSQL", "showOverviewSQL", "listAttemptsSQL",
		"readFeedSQL",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sql, _, err := pgx.NamedArgs{}.RewriteQuery(t.Context(), nil, statements[name], nil)
			if err != nil || sql == "" {
				t.Fatalf("there is no statement %s: %v", name, err)
			}
			conn := dbtest.Conn(t, w.url)
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_, err = tx.Exec(t.Context(), `select set_config('app.organization_id', $1, true), set_config('role', 'deskcomm_api', true),
				set_config('enable_seqscan', 'off', true), set_config('plan_cache_mode', 'force_generic_plan', true)`, w.org.String())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), "prepare q as "+sql); err != nil {
				t.Fatal(err)
			}
			seen := make(map[string]bool)
			for _, p := range parameter.FindAllString(sql, -1) {
				seen[p] = true
			}
			nulls := strings.TrimSuffix(strings.Repeat("null, ", len(seen)), ", ")
			rows, err := tx.Query(t.Context(), "explain execute q("+nulls+")")
			if err != nil {
				t.Fatal(err)
			}
			plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(plan, "\n")
			for _, table := range []string{"event_log", "event_position", "delivery", "dead_delivery", "receipt", "contacts", "conversations", "messages", "idempotency_keys", "attempt"} {
				if regexp.MustCompile(`Seq Scan on ` + table + `(_y\d+m\d+)?\b`).MatchString(text) {
					t.Errorf("%s reads all of %s:\n%s", name, table, text)
				}
			}
		})
	}
}

// Nothing may be held at the moment when the statistics are taken. A plan that
// takes the index of leases for empty then walks all of them for each verdict.
func TestVerdictsAndExtensionsFindTheirDeliveriesByTheirKeys(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	dbtest.Open(t, url, db.Options{})
	conn := dbtest.Conn(t, url)
	_, err := conn.Exec(t.Context(), `
		insert into delivery (consumer_id, destination, organization_id, seq, event_id, due_at)
		select 1, '00000000-0000-0000-0000-000000000000', gen_random_uuid(), n, gen_random_uuid(), clock_timestamp() from generate_series(1, 5000) n;
		analyze delivery`)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"settleDeliveriesSQL", "extendLeasesSQL"} {
		sql, _, err := pgx.NamedArgs{}.RewriteQuery(t.Context(), nil, statementConstants(t)[name], nil)
		if err != nil || sql == "" {
			t.Fatalf("there is no statement %s: %v", name, err)
		}
		prepared, err := conn.Prepare(t.Context(), name, sql)
		if err != nil {
			t.Fatal(err)
		}
		nulls := strings.TrimSuffix(strings.Repeat("null, ", len(prepared.ParamOIDs)), ", ")
		if _, err := conn.Exec(t.Context(), "set plan_cache_mode = force_generic_plan"); err != nil {
			t.Fatal(err)
		}
		rows, err := conn.Query(t.Context(), "explain execute \""+name+"\"("+nulls+")")
		if err != nil {
			t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		if text := strings.Join(plan, "\n"); strings.Contains(text, "delivery_leased_idx") {
			t.Errorf("%s does not find its deliveries by key:\n%s", name, text)
		}
	}
}
