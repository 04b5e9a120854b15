package db_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

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
		"countDeadSQL", "showDeadSQL", "deadNamesSQL", "showOverviewSQL", "listAttemptsSQL",
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
