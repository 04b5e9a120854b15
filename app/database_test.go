package app_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// The driver tells of a refusal in several lines about every way that it tried; a
// person needs to know which setting is wrong and what to do.
func TestRefusedDatabaseIsToldInOneLineWithTheWayOut(t *testing.T) {
	t.Parallel()
	in := onPrivate(t)
	base, err := url.Parse(dbtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	stranger, nameless := *base, *base
	stranger.User, nameless.Path = url.UserPassword("stranger_in_test", "s3cret-in-test"), "/no_such_database_in_test"
	for address, want := range map[string]string{
		stranger.String(): "DATABASE_URL: Postgres does not accept this user and password",
		nameless.String(): "DATABASE_URL: Postgres has no database of this name",
	} {
		for _, args := range [][]string{
			{"serve", "--addr", "127.0.0.1:0"},
			{"organization", "list"},
			{"migrate", "status"},
			{"setup", "--organization", "Acme", "--email", "a@example.com", "--password-file", "-"},
		} {
			told := in
			told.env = append([]string{"DATABASE_URL=" + address}, in.env...)
			_, errs, code := told.run("correct horse battery", args...)
			last := errs[strings.LastIndex(strings.TrimSuffix(errs, "\n"), "\n")+1:]
			if code != 1 || !strings.HasPrefix(last, "deskcomm: "+want) || strings.Contains(errs, "s3cret-in-test") {
				t.Errorf("%v = exit %d, %q; want exit 1 and a last line that begins with %q", args, code, errs, want)
			}
		}
	}
}
