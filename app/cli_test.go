package app_test

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

func TestCommandsRefuseWhatBreaksARuleAndChangeNothing(t *testing.T) {
	t.Parallel()
	in := onShared(t)
	org, _ := in.setUp()
	unknown := uuid.NewString()
	cases := map[string]struct {
		args []string
		code int
		says string
	}{
		"a second setup":                 {[]string{"setup", "--organization", "X", "--email", "b@example.com", "--password-file", "-"}, 3, "already set up"},
		"a type in camel case":           {[]string{"emit", "LeadCreated", "--organization", org}, 2, "event_type"},
		"a payload that is a list":       {[]string{"emit", "custom.x", "--organization", org, "--payload", "[]"}, 2, "payload"},
		"a payload that is no JSON":      {[]string{"emit", "custom.x", "--organization", org, "--payload", "{"}, 2, "payload"},
		"an unknown organization":        {[]string{"emit", "custom.x", "--organization", unknown}, 3, "organization"},
		"an organization that is no id":  {[]string{"emit", "custom.x", "--organization", "loja"}, 2, "organization"},
		"a token without a known scope":  {[]string{"token", "create", "--organization", org, "--name", "ci", "--scope", "everything"}, 2, "scopes.0"},
		"a token with a strange expiry":  {[]string{"token", "create", "--organization", org, "--name", "ci", "--scope", "crm:read", "--expires-in", "soon"}, 2, "expires_in"},
		"an unknown dead delivery":       {[]string{"dlq", "replay", unknown, "--organization", org}, 3, "no such"},
		"an unknown uncertain delivery":  {[]string{"dlq", "confirm", unknown, "--organization", org}, 3, "no such"},
		"a list of no such status":       {[]string{"dlq", "list", "--status", "pending", "--organization", org}, 2, "status"},
		"a discard without a reason":     {[]string{"dlq", "discard", unknown, "--organization", org}, 2, "reason"},
		"an unknown event":               {[]string{"events", "show", unknown, "--organization", org}, 3, "no such"},
		"suspending nobody":              {[]string{"organization", "suspend", unknown}, 3, "no such organization"},
		"reactivating an active one":     {[]string{"organization", "reactivate", org}, 3, "state"},
		"an organization without a name": {[]string{"organization", "create", " "}, 2, "name"},
		"a job that is a fact":           {[]string{"enqueue", "lead.won", "--organization", org}, 2, "command"},
		"a job of an unknown type":       {[]string{"enqueue", "export_requested", "--organization", org}, 2, "command"},
		"a job at a strange time":        {[]string{"enqueue", "custom.a_requested", "--organization", org, "--not-before", "soon"}, 2, "not_before"},
		"a job after 400 days":           {[]string{"enqueue", "custom.a_requested", "--organization", org, "--not-before", "401d"}, 2, "not_before"},
		"cancelling an unknown job":      {[]string{"jobs", "cancel", unknown, "--organization", org, "--reason", "x"}, 3, "no such job"},
		"a schedule that is unreadable":  {[]string{"schedules", "create", "s", "custom.a_requested", "--organization", org, "--expression", "daily"}, 2, "expression"},
		"a schedule of no zone":          {[]string{"schedules", "create", "s", "custom.a_requested", "--organization", org, "--expression", "@daily", "--zone", "Brasilia"}, 2, "zone"},
		"pausing an unknown schedule":    {[]string{"schedules", "pause", "s", "--organization", org}, 3, "no such schedule"},
		"deleting an unknown schedule":   {[]string{"schedules", "delete", "s", "--organization", org}, 3, "no such schedule"},
		"an unknown command":             {[]string{"frobnicate"}, 2, "frobnicate"},
		"an unknown flag":                {[]string{"version", "--frobnicate"}, 2, "frobnicate"},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := in
			in.T = t
			_, errs, code := in.run("correct horse battery", tt.args...)
			if code != tt.code || !strings.Contains(errs, tt.says) {
				t.Errorf("exit %d, %q; want %d and a word about %q", code, errs, tt.code, tt.says)
			}
		})
	}
}

func TestUnknownVariableIsRefusedWithTheNearestName(t *testing.T) {
	t.Parallel()
	in := onShared(t, "DESKCOMM_ADRR=127.0.0.1:1")
	for _, args := range [][]string{{"version"}, {"serve"}} {
		_, errs, code := in.run("", args...)
		if code != 2 || !strings.Contains(errs, "DESKCOMM_ADRR") || !strings.Contains(errs, "DESKCOMM_ADDR") {
			t.Errorf("deskcomm %v = exit %d, %q; want 2 and both names", args, code, errs)
		}
	}
}

func TestServeRefusesSettingsThatBreakARule(t *testing.T) {
	t.Parallel()
	cases := map[string]struct{ variable, value, says string }{
		"a lease that is too short":     {"DESKCOMM_LEASE", "1ms", "DESKCOMM_LEASE"},
		"a lease that is no span":       {"DESKCOMM_LEASE", "s3cr3t", "lease"},
		"a ladder that is no list":      {"DESKCOMM_RETRY_LADDER", "1s,later", "retry-ladder"},
		"an allowed host with a scheme": {"DESKCOMM_ALLOW_PRIVATE_HOSTS", "http://x", "DESKCOMM_ALLOW_PRIVATE_HOSTS"},
		"a master key that is short":    {"DESKCOMM_MASTER_KEY", "c2hvcnQ=", "DESKCOMM_MASTER_KEY"},
		"an unknown role":               {"DESKCOMM_ROLES", "api,painter", "roles"},
		"a public URL without a scheme": {"DESKCOMM_PUBLIC_URL", "example.com", "DESKCOMM_PUBLIC_URL"},
		"an address without a port":     {"DESKCOMM_ADDR", "127.0.0.1", "DESKCOMM_ADDR"},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The last value counts: no case but that of the address may depend on a port.
			in := onPrivate(t, "DESKCOMM_ADDR=127.0.0.1:0", tt.variable+"="+tt.value)
			_, errs, code := in.run("", "serve")
			if code == 0 || !strings.Contains(errs, tt.says) || tt.variable == "DESKCOMM_MASTER_KEY" && strings.Contains(errs, tt.value) {
				t.Errorf("exit %d, %q; want a refusal that names %s", code, errs, tt.says)
			}
			if entries, err := os.ReadDir(in.dir); err == nil && len(entries) > 0 {
				t.Errorf("the refusal left %v in the data directory", entries)
			}
		})
	}
}

func TestCommandsNeverMakeASecondDatabase(t *testing.T) {
	t.Parallel()
	in := onPrivate(t)
	for _, args := range [][]string{
		{"organization", "list"},
		{"token", "list", "--organization", uuid.NewString()},
		{"user", "list"},
		{"user", "create", "--organization", uuid.NewString(), "--email", "a@example.com", "--role", "admin"},
		{"migrate", "status"},
		{"emit", "custom.x", "--organization", uuid.NewString()},
		{"dlq", "list", "--organization", uuid.NewString()},
	} {
		if _, errs, code := in.run("", args...); code != 3 || !strings.Contains(errs, "data directory") {
			t.Errorf("deskcomm %v without data = exit %d, %q; want 3 and why", args, code, errs)
		}
	}
	if _, err := os.Stat(in.dir); !os.IsNotExist(err) {
		t.Errorf("a data directory was made: %v", err)
	}
}

func TestCommandsWorkOnTheDataDirectoryWithAndWithoutAServer(t *testing.T) {
	t.Parallel()
	in := onPrivate(t, "DESKCOMM_ALLOW_PRIVATE_HOSTS=127.0.0.1")
	org, _ := in.setUp() // no server is running: one is started for the command
	if pids := in.postgresProcesses(); len(pids) != 0 {
		t.Errorf("Postgres processes %v outlive the command", pids)
	}
	before := in.runJSON(`{"n": 9007199254740993}`, "emit", "custom.order", "--organization", org, "--payload", "-")["id"].(string)
	p := in.serve()
	token := in.runJSON("", "token", "create", "--organization", org, "--name", "reader", "--scope", "events:read", "--expires-in", "90d")
	shown := p.must(200, "GET", "/v1/events/"+before, token["token"].(string), nil)
	if shown["event_type"] != "custom.order" {
		t.Errorf("the server shows %v, want the event that a command emitted before it ran", shown)
	}
	if _, errs, code := in.run("", "token", "revoke", token["token_id"].(string), "--organization", org); code != 0 {
		t.Fatalf("revoke = exit %d: %s", code, errs)
	}
	if status, _ := p.call("GET", "/v1/events", token["token"].(string), nil); status != 401 {
		t.Errorf("a revoked token = %d, want 401", status)
	}
	second := in.runJSON("", "organization", "create", "Padaria")["organization_id"].(string)
	if list := in.runJSON("", "events", "list", "--organization", second)["items"].([]any); len(list) != 0 {
		t.Errorf("another organization sees %d events", len(list))
	}
	health := in
	health.env = append(append([]string{}, in.env...), "DESKCOMM_ADDR="+strings.TrimPrefix(p.base, "http://"))
	if _, errs, code := health.run("", "healthcheck"); code != 0 {
		t.Errorf("healthcheck of a ready server = exit %d: %s", code, errs)
	}
	p.signal(syscall.SIGTERM)
	if _, _, code := health.run("", "healthcheck"); code != 1 {
		t.Errorf("healthcheck without a server = exit %d, want 1", code)
	}
}

func TestSecretsMayComeFromFiles(t *testing.T) {
	t.Parallel()
	in := onShared(t)
	url := strings.TrimPrefix(in.env[len(in.env)-1], "DATABASE_URL=")
	file := filepath.Join(filepath.Dir(in.dir), "url")
	if err := os.WriteFile(file, []byte(url+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	both := in
	both.env = append(append([]string{}, in.env...), "DATABASE_URL_FILE="+file)
	if _, errs, code := both.run("", "migrate", "status"); code != 2 || !strings.Contains(errs, "both set") {
		t.Errorf("both variables = exit %d, %q; want 2 and why", code, errs)
	}
	in.env[len(in.env)-1] = "DATABASE_URL_FILE=" + file
	if _, errs, code := in.run("", "migrate", "status"); code != 0 {
		t.Errorf("DATABASE_URL_FILE = exit %d: %s", code, errs)
	}
}

func TestSetupLinkIsPrintedUntilThereIsAUserAndOpensAPage(t *testing.T) {
	t.Parallel()
	in := onShared(t)
	p := in.serve()
	_, link, found := strings.Cut(p.log.String(), "/admin/setup?token=")
	if !found {
		t.Fatalf("no setup link was printed:\n%s", p.log)
	}
	token := strings.Fields(link)[0]
	if status := p.status("/admin/setup?token=" + token); status != 200 {
		t.Errorf("the setup link = %d, want 200", status)
	}
	if status := p.status("/admin/setup?token=" + strings.ToUpper(token)); status != 404 {
		t.Errorf("a wrong setup link = %d, want 404", status)
	}
	in.setUp()
	if status := p.status("/admin/setup?token=" + token); status != 404 {
		t.Errorf("the setup link after the setup = %d, want 404", status)
	}
	p.signal(syscall.SIGTERM)
	if again := in.serve(); strings.Contains(again.log.String(), "/admin/setup") {
		t.Error("a setup link is printed although there is a user")
	}
}

// The clock of the database is a day ahead of the host's, as a statement sees it that the program sends.
func TestTheWaitOfAJobIsByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	in := onShared(t)
	org, _ := in.setUp()
	database, err := url.Parse(strings.TrimPrefix(in.env[len(in.env)-1], "DATABASE_URL="))
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"create schema ahead",
		"create function ahead.clock_timestamp() returns timestamptz language sql as $$ select pg_catalog.clock_timestamp() + interval '1 day' $$",
		"grant usage on schema ahead to public",
	} {
		if _, err := dbtest.Exec(t, database.String(), sql); err != nil {
			t.Fatal(err)
		}
	}
	query := database.Query()
	query.Set("search_path", "ahead,pg_catalog,public")
	database.RawQuery = query.Encode()
	in.env = append(in.env, "DATABASE_URL="+database.String())
	job := in.runJSON("", "enqueue", "custom.export_requested", "--organization", org, "--not-before", "7d")
	at, err := time.Parse(time.RFC3339, job["not_before"].(string))
	if wait := time.Until(at); err != nil || wait < 191*time.Hour || wait > 192*time.Hour {
		t.Errorf("not_before = %v, %v, want a week after the database's tomorrow", job["not_before"], err)
	}
}

func TestJobsAndSchedulesAreMadeAndEndedByCommands(t *testing.T) {
	t.Parallel()
	in := onShared(t)
	org, _ := in.setUp()
	job := in.runJSON("", "enqueue", "custom.export_requested", "--organization", org, "--not-before", "7d", "--singleton-key", "k", "--payload", `{"n":1}`)
	again := in.runJSON("", "enqueue", "custom.export_requested", "--organization", org, "--singleton-key", "k")
	if job["kept"] != false || again["kept"] != true || again["id"] != job["id"] || again["not_before"] != job["not_before"] {
		t.Errorf("enqueued %v and %v, want one job", job, again)
	}
	at, err := time.Parse(time.RFC3339, job["not_before"].(string))
	if wait := time.Until(at); err != nil || wait < 167*time.Hour || wait > 168*time.Hour {
		t.Errorf("not_before = %v, %v, want a week from now", job["not_before"], err)
	}
	if _, errs, code := in.run("", "enqueue", "custom.export_requested", "--organization", org, "--singleton-key", "k", "--policy", "refuse"); code != 3 {
		t.Errorf("refuse = exit %d: %s", code, errs)
	}
	for _, want := range []int{0, 3} {
		if _, errs, code := in.run("", "jobs", "cancel", job["id"].(string), "--organization", org, "--reason", "paid"); code != want {
			t.Errorf("jobs cancel = exit %d, want %d: %s", code, want, errs)
		}
	}

	made := in.runJSON("", "schedules", "create", "report", "custom.report_requested", "--organization", org, "--expression", "0 9 * * 1-5", "--missed", "skip")
	if made["zone"] != "America/Sao_Paulo" || made["missed"] != "skip" || !strings.HasSuffix(made["next_at"].(string), "T12:00:00Z") {
		t.Errorf("made = %v, want one that is due at nine in São Paulo", made)
	}
	paused := in.runJSON("", "schedules", "pause", "report", "--organization", org)
	if paused["enabled"] != false || paused["next_at"] != nil {
		t.Errorf("paused = %v", paused)
	}
	in.runJSON("", "schedules", "change", "report", "--organization", org, "--expression", "@every 90m", "--zone", "UTC")
	in.runJSON("", "schedules", "resume", "report", "--organization", org)
	items := in.runJSON("", "schedules", "list", "--organization", org)["items"].([]any)
	if len(items) != 1 || items[0].(map[string]any)["revision"] != 2.0 || items[0].(map[string]any)["enabled"] != true {
		t.Errorf("schedules = %v, want the changed one", items)
	}
	if out, errs, code := in.run("", "schedules", "delete", "report", "--organization", org); code != 0 {
		t.Errorf("schedules delete = exit %d: %s%s", code, out, errs)
	}
}
