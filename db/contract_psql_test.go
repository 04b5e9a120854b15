package db_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// psqlProgram finds psql in PATH or beside the programs of a server.
func psqlProgram(t *testing.T) string {
	t.Helper()
	if path, err := exec.LookPath("psql"); err == nil {
		return path
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin/psql", "/usr/pgsql-*/bin/psql", "/opt/homebrew/opt/*/bin/psql", "/usr/local/opt/*/bin/psql",
		"/home/linuxbrew/.linuxbrew/opt/*/bin/psql",
	} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 { // the patterns are well formed
			return found[len(found)-1]
		}
	}
	t.Fatal("psql is neither in PATH nor beside a server: install Postgres' client programs (Debian: postgresql-client, which postgresql brings)")
	return ""
}

// psql is one running psql: a worker without a line of Go.
type psql struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startPsql(t *testing.T, url string) *psql {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), psqlProgram(t), "-XAtq", "-F", " ", url) //nolint:gosec // the system's psql
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout // one stream, so that a refusal stands before the end of its statement
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close() //nolint:errcheck,gosec // makes psql leave
		cmd.Wait() //nolint:errcheck,gosec // a killed one says so
	})
	return &psql{t: t, cmd: cmd, in: in, out: bufio.NewScanner(out)}
}

// run runs one statement and returns its lines, a refusal among them.
func (p *psql) run(format string, args ...any) []string {
	const end = "-- end of the answer"
	if _, err := fmt.Fprintf(p.in, format+";\nselect '"+end+"';\n", args...); err != nil {
		p.t.Error(err)
		return nil
	}
	var lines []string
	for p.out.Scan() {
		if p.out.Text() == end {
			return lines
		}
		if p.out.Text() != "" { // what a function without a result prints
			lines = append(lines, p.out.Text())
		}
	}
	p.t.Errorf("psql ended during %q: %v", format, p.out.Err())
	return lines
}

func (p *psql) want(want, format string, args ...any) {
	p.t.Helper()
	if got := strings.Join(p.run(format, args...), "\n"); got != want {
		p.t.Errorf("%s:\ngot  %s\nwant %s", fmt.Sprintf(format, args...), got, want)
	}
}

// refused checks that a statement is, and why.
func (p *psql) refused(why, format string, args ...any) {
	p.t.Helper()
	if got := strings.Join(p.run(format, args...), "\n"); !strings.Contains(got, "ERROR:") || !strings.Contains(got, why) {
		p.t.Errorf("%s:\ngot %s\nwant a refusal: %s", fmt.Sprintf(format, args...), got, why)
	}
}

// expire makes the leases of all workers run out, and retries due.
func (p *psql) expire() {
	p.want("", "update delivery set due_at = clock_timestamp() - interval '1 second'")
}

// drain claims and acknowledges until nothing is left and returns what it did.
func (p *psql) drain(worker string) []string {
	var done []string
	for {
		claimed := p.run("select id, lease_token from claim_events('%s', '{message.received}', 40)", worker)
		if len(claimed) == 0 {
			return done
		}
		var values []string
		for _, line := range claimed {
			id, token, _ := strings.Cut(line, " ")
			values = append(values, fmt.Sprintf("('%s'::uuid, %s)", id, token))
			done = append(done, id)
		}
		if out := p.run("select ack_event(id, '%s', token) from (values %s) v (id, token)", worker, strings.Join(values, ", ")); len(out) > 0 {
			p.t.Error(out)
			return done
		}
	}
}

// contractDatabase is a database of its own with an organization, and a psql on it.
func contractDatabase(t *testing.T) (url string, org string, p *psql) {
	t.Helper()
	url = dbtest.Fresh(t)
	org = dbtest.Org(t, dbtest.Open(t, url, db.Options{})).String()
	return url, org, startPsql(t, url)
}

// Three workers of two processes each read a thousand events with psql alone: no
// process of the program runs.
func TestWorkersInPsqlDoEachEventOnce(t *testing.T) {
	t.Parallel()
	url, org, p := contractDatabase(t)
	workers := []string{"ai-worker", "crm-worker", "search-worker"}
	for _, worker := range workers {
		p.want("", "select register_consumer('%s', '{message.received}')", worker)
	}
	p.want("1000", "select count(emit_event('message.received', 'message', null, '{}', '{}', '%s')) from generate_series(1, 1000)", org)

	done := make([][]string, 2*len(workers))
	var running sync.WaitGroup
	for i := range done {
		process := startPsql(t, url)
		running.Go(func() { done[i] = process.drain(workers[i/2]) })
	}
	running.Wait()
	for i, worker := range workers {
		ids := slices.Concat(done[2*i], done[2*i+1], p.drain(worker)) // a process may have stopped while the other one relayed
		slices.Sort(ids)
		if n := len(slices.Compact(slices.Clone(ids))); len(ids) != 1000 || n != 1000 {
			t.Errorf("%s did %d events, %d different ones, want each of 1000 once", worker, len(ids), n)
		}
	}
	p.want("done {ai-worker,crm-worker,search-worker} 1 1000",
		"select status, consumed_by, attempts, count(*) from event_log_status where organization_id = '%s' group by 1, 2, 3", org)
	p.want("0", "select count(*) from delivery")
}

// A worker is killed between claim and acknowledgement: what it had is done by
// another one, and its own word comes too late.
func TestKilledPsqlLosesNoEvent(t *testing.T) {
	t.Parallel()
	url, org, p := contractDatabase(t)
	p.want("", "select register_consumer('crm-worker', '{message.received}')")
	p.want("10", "select count(emit_event('message.received', 'message', null, '{}', '{}', '%s')) from generate_series(1, 10)", org)
	victim := startPsql(t, url)
	had := victim.run("select id, lease_token from claim_events('crm-worker')")
	if len(had) != 10 {
		t.Fatalf("claimed %v, want ten events", had)
	}
	if err := victim.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	tokens := make(map[string]string)
	for _, line := range had {
		id, token, _ := strings.Cut(line, " ")
		tokens[id] = token
	}
	id, _, _ := strings.Cut(had[0], " ")
	p.expire()
	p.refused("has run out", "select ack_event('%s', 'crm-worker')", id)
	p.want("", "select claim_events('crm-worker')") // finds the crash

	again := p.run("select id, lease_token, attempts from claim_events('crm-worker')")
	if len(again) != 1 || !strings.HasSuffix(again[0], " 1") {
		t.Fatalf("claimed %v, want one event alone and no attempt spent", again)
	}
	id, _, _ = strings.Cut(again[0], " ") // all became due at one moment
	token, ok := tokens[id]
	if !ok {
		t.Fatalf("claimed %s, want one of the victim's", id)
	}
	p.refused("is another one by now", "select ack_event('%s', 'crm-worker', %s)", id, token)
	p.refused("is another one by now", "select nack_event('%s', 'crm-worker', 'late', %s)", id, token)
	p.want("1", "select extend_lease('crm-worker')")
	p.want("", "select ack_event('%s', 'crm-worker')", id)
	p.refused("is not leased", "select ack_event('%s', 'crm-worker')", id)
	if rest := p.drain("crm-worker"); len(rest) != 9 {
		t.Errorf("did %d more events, want the other nine", len(rest))
	}
	p.want("done {crm-worker} 10", "select status, consumed_by, count(*) from event_log_status group by 1, 2")
}

// An event that keeps failing climbs the ladder and dies, and a person brings it
// back.
func TestFailingEventInPsqlDiesAndIsReprocessed(t *testing.T) {
	t.Parallel()
	_, org, p := contractDatabase(t)
	p.want("", "select register_consumer('crm-worker', '{message.received}')")
	id := p.run("select emit_event('message.received', 'message', null, '{}', '{}', '%s')", org)[0]
	policy := bus.DefaultRetry()
	for attempt := 1; attempt <= policy.MaxAttempts; attempt++ {
		p.want(fmt.Sprint(id, " ", attempt), "select id, attempts from claim_events('crm-worker')")
		p.want("", "select nack_event('%s', 'crm-worker', 'try %d')", id, attempt)
		if attempt == policy.MaxAttempts {
			break
		}
		p.want("pending "+strconv.Itoa(attempt), "select status, attempts from event_log_status")
		step := policy.Steps[attempt-1].Seconds()
		p.want("t", "select due_at - updated_at between interval '%f s' and interval '%f s' from delivery", step, 1.3*step+1)
		p.want("", "select claim_events('crm-worker')") // not due yet
		p.expire()
	}
	p.want("dead 8 try 8 {} f", "select status, attempts, last_error, consumed_by, next_attempt_at is not null from event_log_status")
	p.want("", "select claim_events('crm-worker')")
	p.want("1", "select reprocess_event('%s')", id)
	p.refused("has nothing dead", "select reprocess_event('%s')", id)
	p.want(id+" 9", "select id, attempts from claim_events('crm-worker')")
	p.want("", "select ack_event('%s', 'crm-worker')", id)
	p.want("done {crm-worker}", "select status, consumed_by from event_log_status")
}

// Who holds relay_state relays: a claim goes on without, a registration waits,
// for it must know what has its place.
func TestClaimInPsqlDoesNotWaitForTheRelay(t *testing.T) {
	t.Parallel()
	url, org, p := contractDatabase(t)
	p.want("", "select register_consumer('crm-worker', '{message.received}')")
	p.want("1000", "select count(emit_event('custom.other', 'thing', null, '{}', '{}', '%s')) from generate_series(1, 1000)", org)
	id := p.run("select emit_event('message.received', 'message', null, '{}', '{}', '%s')", org)[0]
	relay := startPsql(t, url)
	relay.want("", "begin; select from relay_state for update")
	p.want("", "set lock_timeout = '5s'")
	p.want("", "select claim_events('crm-worker')")
	p.want("", "set lock_timeout = '1ms'")
	p.refused("lock timeout", "select register_consumer('late-worker', '{message.received}')")
	relay.want("", "rollback")
	p.want(id, "select id from claim_events('crm-worker')") // behind a whole batch of the relay
}

// The page's example is run as it stands.
func TestExampleInTheDocumentation(t *testing.T) {
	t.Parallel()
	url, _, p := contractDatabase(t)
	text, err := os.ReadFile("../docs/SQL.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "```sql\n")
	example, rest, closed := strings.Cut(rest, "```")
	_, rest, answered := strings.Cut(rest, "```text\n")
	want, _, ended := strings.Cut(rest, "```")
	if !found || !closed || !answered || !ended {
		t.Fatal("docs/SQL.md has no example with its answer")
	}
	cmd := exec.CommandContext(t.Context(), psqlProgram(t), "-XAtq", "-v", "ON_ERROR_STOP=1", url) //nolint:gosec // the system's psql
	cmd.Stdin = strings.NewReader(example)
	out, err := cmd.CombinedOutput()
	if got := strings.TrimLeft(string(out), "\n"); err != nil || strings.Join(strings.Fields(got), "\n") != strings.Join(strings.Fields(want), "\n") {
		t.Errorf("the example answers, %v:\n%s\nwant:\n%s", err, got, want)
	}
	p.want("done {crm-sync-worker}", "select status, consumed_by from event_log_status")
}
