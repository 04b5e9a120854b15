package app_test

import (
	"testing"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// The database refuses the consumers of a server that starts. The server says so
// and takes events meanwhile, which reach their readers when it no longer does.
func TestAServerWhoseHandlersCannotBeRegisteredTakesEventsAndSaysWhy(t *testing.T) {
	t.Parallel()
	in := onShared(t, resilient()...)
	in.exec("create sequence tries", `create function refuse() returns trigger language plpgsql as
			$$ begin perform nextval('tries'); raise exception 'no consumer today'; end $$`,
		`create trigger refuse before insert on consumers execute function refuse()`)
	p := in.start()
	p.wantUnready("handlers", "the database refuses it, SQLSTATE P0001")
	s := in.openOn(p)
	s.emitAll(5)
	dbtest.Eventually(t, "it was tried again", func() bool {
		return s.count("select last_value from tries") > 2
	})
	if n := s.count("select count(*) from outbox"); n != 5 {
		t.Errorf("%d events wait in the outbox, want all 5: nothing may be relayed without its readers", n)
	}
	in.exec("drop trigger refuse on consumers")
	s.wantReady()
	s.wantAllSettledOnce()
	if n := s.log.lines(`"level":"ERROR"`, "register handlers", "no consumer today"); n != 1 {
		t.Errorf("%d log lines say that the handlers are not registered, want 1", n)
	}
}
