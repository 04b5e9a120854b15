package app_test

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// benchReport is what a measurement prints.
type benchReport struct {
	Scenario string `json:"scenario"`
	Status   string `json:"status"`
	Reason   string `json:"reason"`
	Warmups  int    `json:"warmups_per_arm"`
	Arms     []struct {
		Name    string    `json:"name"`
		Mean    float64   `json:"mean_ms"`
		P50     float64   `json:"p50_ms"`
		P95     float64   `json:"p95_ms"`
		Max     float64   `json:"max_ms"`
		Samples []float64 `json:"samples_ms"`
	} `json:"arms"`
	Difference float64 `json:"difference_of_means_ms"`
}

// bench runs the measurement of the capture on an address.
func (in install) bench(address string) (r benchReport, stderr string, code int) {
	in.Helper()
	if address != "" {
		in.env = append([]string{"DATABASE_URL=" + address}, in.env...)
	}
	out, stderr, code := in.run("", "bench", "capture", "--json")
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		in.Fatalf("printed %q and %q: %v", out, stderr, err)
	}
	return r, stderr, code
}

// loginRole makes a role of the test server and returns an address for it, and a
// function that drops it and counts the databases that it has left.
func loginRole(t *testing.T, options string, settings ...string) (address string, drop func() (left int)) {
	t.Helper()
	server, role := dbtest.URL(t), "dt_role_"+strings.ReplaceAll(uuid.NewString(), "-", "")
	execute := func(sql string) {
		t.Helper()
		if _, err := dbtest.Exec(t, server, sql); err != nil {
			t.Fatal(err)
		}
	}
	execute("create role " + role + " login password 'of-the-test' " + options)
	for _, s := range settings {
		execute("alter role " + role + " set " + s)
	}
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, "of-the-test")
	return u.String(), func() (left int) {
		if err := dbtest.Row(t, server, "select count(*) from pg_database where datdba = $1::regrole", []any{role}, &left); err != nil {
			t.Error(err)
		}
		execute("drop role " + role)
		return left
	}
}

func TestBenchCaptureMeasuresBothArmsAndTouchesNothing(t *testing.T) {
	t.Parallel()
	in := onPrivate(t)
	address := dbtest.Fresh(t)
	content := func() (text string) {
		t.Helper()
		err := dbtest.Row(t, address, `
			select string_agg(concat_ws(' ', c.oid, c.relname, (xpath('/row/n/text()', query_to_xml(format('select count(*) as n from %s', c.oid::regclass), false, true, '')))[1]), E'\n' order by c.oid)
			  from pg_class c where c.relnamespace = 'public'::regnamespace and c.relkind = 'r'`, nil, &text)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := content()
	r, stderr, code := in.bench(address)
	if code != 0 || r.Scenario != "capture" || r.Status != "passed" || r.Reason != "" || stderr != "" {
		t.Fatalf("bench capture = exit %d, %s, %q, stderr %q; want 0 and passed", code, r.Status, r.Reason, stderr)
	}
	if len(r.Arms) != 2 || r.Arms[0].Name != "without" || r.Arms[1].Name != "with" || r.Warmups != 20 {
		t.Fatalf("measured %+v, want the arms without and with, after 20 warm-ups", r.Arms)
	}
	for _, arm := range r.Arms {
		sorted := slices.Sorted(slices.Values(arm.Samples))
		if len(sorted) != 500 {
			t.Fatalf("%s has %d samples, want 500", arm.Name, len(sorted))
		}
		if sorted[0] <= 0 || arm.P50 != sorted[249] || arm.P95 != sorted[474] || arm.Max != sorted[499] || arm.Mean < sorted[0] || arm.Mean > arm.Max {
			t.Errorf("%s: mean %f, p50 %f, p95 %f, max %f do not come of its samples", arm.Name, arm.Mean, arm.P50, arm.P95, arm.Max)
		}
	}
	if want := r.Arms[1].Mean - r.Arms[0].Mean; r.Difference != want {
		t.Errorf("difference %f, want %f", r.Difference, want)
	}
	if diff := cmp.Diff(before, content()); diff != "" {
		t.Errorf("the operator's database has changed (-before +after):\n%s", diff)
	}
	out, _, code := func() (string, string, int) {
		in.env = append([]string{"DATABASE_URL=" + address}, in.env...)
		return in.run("", "bench", "capture")
	}()
	if code != 0 || !strings.HasSuffix(out, "\nstatus: passed\n") || !strings.Contains(out, "difference of means: ") {
		t.Errorf("bench capture for people = exit %d:\n%s", code, out)
	}
}

func TestBenchCaptureIsBlockedWithoutADatabaseOfItsOwn(t *testing.T) {
	t.Parallel()
	in := onPrivate(t)
	poor, dropPoor := loginRole(t, "")
	roleless, dropRoleless := loginRole(t, "createdb")
	for name, tt := range map[string]struct{ address, says string }{
		"no database at all":               {"", "there is no deskcomm data directory here"},
		"an address that is none":          {"postgres://%zz", "must be a Postgres connection string"},
		"a server that does not answer":    {"postgres://x:s3cret@127.0.0.1:1/x", "does not answer"},
		"a role without the right":         {poor, "may not create databases"},
		"a role without rights over roles": {roleless, "may not make the schema"},
	} {
		r, stderr, code := in.bench(tt.address)
		if code != 3 || r.Status != "blocked" || !strings.Contains(r.Reason, tt.says) || !strings.Contains(stderr, tt.says) || len(r.Arms) != 0 {
			t.Errorf("%s: exit %d, %s, %q, stderr %q; want 3, blocked and %q", name, code, r.Status, r.Reason, stderr, tt.says)
		}
		if strings.Contains(stderr+r.Reason, "s3cret") {
			t.Errorf("%s: the password is told", name)
		}
	}
	if n := dropPoor() + dropRoleless(); n != 0 {
		t.Errorf("%d databases are left", n)
	}
}

func TestBenchCaptureFailsOnASurpriseAndDropsItsDatabase(t *testing.T) {
	t.Parallel()
	in := onPrivate(t)
	address, drop := loginRole(t, "createdb", "search_path to nowhere")
	r, stderr, code := in.bench(address)
	if code != 1 || r.Status != "failed" || r.Reason == "" || !strings.Contains(stderr, "bench capture: failed: ") || len(r.Arms) != 0 {
		t.Errorf("exit %d, %s, %q, stderr %q; want 1 and failed", code, r.Status, r.Reason, stderr)
	}
	if n := drop(); n != 0 {
		t.Errorf("%d databases are left", n)
	}
}
