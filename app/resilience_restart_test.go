package app_test

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// Postgres ends and comes back under a running server that has work in hand, and
// events come all the time.
func TestServerGoesOnByItselfAfterItsPostgresWasRestarted(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]os.Signal{"fast": syscall.SIGINT, "immediately": syscall.SIGQUIT} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pg := newPostgres(t)
			s := onPostgres(t, pg, resilient()...).open()
			gate := make(chan struct{})
			s.hook.holdAll(gate)
			s.emitAll(20)
			dbtest.Eventually(t, "deliveries are in hand", func() bool { return len(s.hook.all()) == 20 })
			stop := s.traffic()
			dbtest.Eventually(t, "more is in hand", func() bool { return len(s.hook.all()) > 25 })
			pg.stop(how)
			s.hook.holdAll(nil)
			close(gate) // what was in hand ends now, and its verdicts have to wait
			s.wantUnready("database", "the database does not answer")
			dbtest.Eventually(t, "an emission was refused", func() bool { return s.emit() == 503 })

			pg.start()
			before, up := len(s.hook.all()), time.Now()
			dbtest.Eventually(t, "an event is delivered again", func() bool { return len(s.hook.all()) > before })
			t.Logf("first delivery %s after Postgres took connections", time.Since(up).Round(time.Millisecond))
			s.wantReady()
			stop()
			s.wantAllSettledOnce()
		})
	}
}
