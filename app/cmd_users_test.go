package app_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// store opens the database of an installation on the test server.
func (in install) store() *db.DB {
	in.Helper()
	return dbtest.Open(in.T, strings.TrimPrefix(in.env[len(in.env)-1], "DATABASE_URL="), db.Options{})
}

// logsIn reports whether a person has the password.
func logsIn(t *testing.T, store *db.DB, email, password string) bool {
	t.Helper()
	c, err := store.Credentials(t.Context(), email)
	if err != nil {
		t.Fatal(err)
	}
	same, err := db.VerifyPassword(t.Context(), password, c.PasswordHash)
	if err != nil {
		t.Fatal(err)
	}
	return same
}

func TestPeopleAreGivenPlacesRolesAndPasswordsOnTheCommandLine(t *testing.T) {
	t.Parallel()
	in := onShared(t)
	org, _ := in.setUp()
	second := in.runJSON("", "organization", "create", "Padaria")["organization_id"].(string)
	store := in.store()
	if list := in.people(); len(list) != 1 || !strings.HasSuffix(list[0], " admin full") {
		t.Fatalf("after the setup the people are %v, want the admin", list)
	}

	made := in.runJSON("first password\n", "user", "create", "--organization", org, "--email", "Bia@example.com", "--name", "Bia", "--role", "agent", "--password-file", "-")
	if made["created"] != true || made["role"] != "agent" || !logsIn(t, store, "bia@example.com", "first password") {
		t.Errorf("user create = %v, want a person who logs in with the password", made)
	}
	again := in.runJSON("another password\n", "user", "create", "--organization", second, "--email", "bia@example.com", "--role", "admin")
	if again["created"] != false || again["user_id"] != made["user_id"] || !logsIn(t, store, "bia@example.com", "first password") {
		t.Errorf("user create of one who exists = %v, want the same person with the same password", again)
	}
	in.runJSON("", "user", "set-role", "--organization", org, "--email", "BIA@example.com", "--role", "manager")
	if diff := cmp.Diff([]string{"bia@example.com manager "}, in.people("--organization", org)[1:]); diff != "" {
		t.Errorf("people of the organization beside its admin (-want +got):\n%s", diff)
	}
	in.runJSON("", "user", "revoke", "--organization", org, "--email", "bia@example.com")
	if diff := cmp.Diff([]string{"bia@example.com admin "}, in.people()[1:]); diff != "" {
		t.Errorf("people beside the admin (-want +got):\n%s", diff)
	}
	if list := in.people("--limit", "1"); len(list) != 1 {
		t.Errorf("user list --limit 1 = %v", list)
	}

	file := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(file, []byte("second password\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	in.runJSON("", "user", "set-password", "--email", "bia@example.com", "--password-file", file)
	if logsIn(t, store, "bia@example.com", "first password") || !logsIn(t, store, "bia@example.com", "second password") {
		t.Error("the password was not changed")
	}
	for _, args := range [][]string{
		{"user", "list"},
		{"user", "set-password", "--email", "bia@example.com", "--password-file", file},
		{"user", "create", "--organization", org, "--email", "bia@example.com", "--role", "viewer"},
		{"user", "set-role", "--organization", org, "--email", "bia@example.com", "--role", "agent"},
		{"user", "revoke", "--organization", org, "--email", "bia@example.com"},
	} {
		if out, errs, code := in.run("", args...); code != 0 || !strings.Contains(out, made["user_id"].(string)) || strings.Contains(out+errs, "second password") {
			t.Errorf("deskcomm %v = exit %d, %q %q; want the person's id", args, code, out, errs)
		}
	}
}

// people lists people as "email role platform".
func (in install) people(args ...string) []string {
	in.Helper()
	var list []string
	for _, item := range in.runJSON("", append([]string{"user", "list"}, args...)...)["items"].([]any) {
		p := item.(map[string]any)
		list = append(list, fmt.Sprintf("%v %v %v", p["email"], p["role"], p["platform"]))
	}
	return list
}

func TestUserCommandsRefuseWhatBreaksARuleAndChangeNothing(t *testing.T) {
	t.Parallel()
	in := onShared(t)
	org, _ := in.setUp()
	admin, _, _ := strings.Cut(in.people()[0], " ")
	before := in.people()
	const password = "correct horse battery"
	cases := map[string]struct {
		args []string
		code int
		says string
	}{
		"a new person without a password": {[]string{"create", "--organization", org, "--email", "b@example.com", "--role", "agent"}, 2, "--password-file"},
		"a short password":                {[]string{"create", "--organization", org, "--email", "b@example.com", "--role", "agent", "--password-file", os.DevNull}, 2, "8 to 200"},
		"a password file that is missing": {[]string{"create", "--organization", org, "--email", "b@example.com", "--role", "agent", "--password-file", "/nowhere"}, 1, "--password-file"},
		"an address that is none":         {[]string{"create", "--organization", org, "--email", "bia", "--role", "agent", "--password-file", "-"}, 2, "email"},
		"an unknown role":                 {[]string{"create", "--organization", org, "--email", "b@example.com", "--role", "owner", "--password-file", "-"}, 2, "role"},
		"no role":                         {[]string{"create", "--organization", org, "--email", "b@example.com", "--password-file", "-"}, 2, "role"},
		"an unknown organization":         {[]string{"create", "--organization", uuid.NewString(), "--email", "b@example.com", "--role", "agent", "--password-file", "-"}, 3, "no such organization"},
		"a member already":                {[]string{"create", "--organization", org, "--email", admin, "--role", "agent"}, 3, "already"},
		"demoting the last admin":         {[]string{"set-role", "--organization", org, "--email", admin, "--role", "manager"}, 3, "last admin"},
		"revoking the last admin":         {[]string{"revoke", "--organization", org, "--email", admin}, 3, "last admin"},
		"the role of nobody":              {[]string{"set-role", "--organization", org, "--email", "b@example.com", "--role", "agent"}, 3, "no such person"},
		"revoking nobody":                 {[]string{"revoke", "--organization", org, "--email", "b@example.com"}, 3, "no such person"},
		"the password of nobody":          {[]string{"set-password", "--email", "b@example.com", "--password-file", "-"}, 3, "no such person"},
		"another short password":          {[]string{"set-password", "--email", admin, "--password-file", os.DevNull}, 2, "8 to 200"},
	}
	// One after the other: what is refused must leave the list as it is.
	for name, tt := range cases {
		out, errs, code := in.run(password, append([]string{"user"}, tt.args...)...)
		if code != tt.code || !strings.Contains(errs, tt.says) || strings.Contains(out+errs, password) {
			t.Errorf("%s: exit %d, %q; want %d and a word about %q", name, code, errs, tt.code, tt.says)
		}
	}
	if diff := cmp.Diff(before, in.people()); diff != "" {
		t.Errorf("people after all refusals (-before +after):\n%s", diff)
	}
}

func TestForgottenPasswordIsReplacedWithoutAServer(t *testing.T) {
	t.Parallel()
	in := onPrivate(t)
	in.setUp()
	admin, _, _ := strings.Cut(in.people()[0], " ")
	if _, errs, code := in.run("a new password", "user", "set-password", "--email", admin, "--password-file", "-"); code != 0 {
		t.Errorf("user set-password = exit %d: %s", code, errs)
	}
	if pids := in.postgresProcesses(); len(pids) != 0 {
		t.Errorf("Postgres processes %v outlive the command", pids)
	}
}
