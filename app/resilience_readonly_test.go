package app_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// The database becomes read-only, as one that another server has taken over from,
// and then takes writes again, but not over the connections that are there.
func TestADatabaseThatTakesNoWritesIsLeftAndFoundAgain(t *testing.T) {
	t.Parallel()
	s := onShared(t, resilient()...).open()
	u, err := url.Parse(s.url)
	if err != nil {
		t.Fatal(err)
	}
	alter := func(change string) {
		t.Helper()
		sql := "alter database " + strings.TrimPrefix(u.Path, "/") + " " + change
		if _, err := dbtest.Exec(t, dbtest.URL(t), sql); err != nil { // from another one: this one takes no writes
			t.Fatal(err)
		}
	}
	s.emitAll(5)
	alter("set default_transaction_read_only = on")
	if _, err := dbtest.Exec(t, s.url, cutAllSQL); err != nil {
		t.Fatal(err)
	}
	dbtest.Eventually(t, "an emission is refused", func() bool { return s.emit() == 503 })
	s.wantUnready("database", "the database takes no writes")
	alter("reset default_transaction_read_only")
	// Before anybody asks for readiness, which would find it out too.
	dbtest.Eventually(t, "an emission is taken", func() bool { return s.emit() == 201 })
	s.wantReady()
	for range 10 { // some meet the rest of the connections that take none
		dbtest.Eventually(t, "an emission is taken", func() bool { return s.emit() == 201 })
	}
	s.wantAllSettledOnce()
}
