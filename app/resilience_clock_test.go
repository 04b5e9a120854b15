package app_test

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// fakeClock lets the server's clock be moved while it runs: a library of its
// processes reads the difference to the real one from a file, at each look.
func fakeClock(pg *postgres) {
	pg.Helper()
	pg.env = append(pg.env, preload(pg.T)+"="+fakeTimeLibrary(pg.T), "FAKETIME_TIMESTAMP_FILE="+pg.clockFile(), "FAKETIME_NO_CACHE=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1") // waits are not what is moved
	pg.setClock("+0")
}

func preload(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("/System/Library"); err == nil {
		return "DYLD_INSERT_LIBRARIES"
	}
	return "LD_PRELOAD"
}

// fakeTimeLibrary is where the package libfaketime of the system has put it.
func fakeTimeLibrary(t *testing.T) string {
	t.Helper()
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1", "/opt/homebrew/lib/faketime/libfaketime.1.dylib", "/usr/local/lib/faketime/libfaketime.1.dylib"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[0]
		}
	}
	t.Fatal("libfaketime is not installed: make test installs it, .ci/deps names the package")
	return ""
}

func (pg *postgres) clockFile() string { return filepath.Join(pg.home, "clock") }

// setClock moves the server's clock to a difference from the real one.
func (pg *postgres) setClock(offset string) {
	pg.Helper()
	next := pg.clockFile() + ".next"
	if err := os.WriteFile(next, []byte(offset+"\n"), 0o644); err != nil { //nolint:gosec // another user reads it
		pg.Fatal(err)
	}
	if err := os.Rename(next, pg.clockFile()); err != nil {
		pg.Fatal(err)
	}
}

// skew is how far the server's clock is from this host's.
func (s *shop) skew() time.Duration {
	s.Helper()
	var at time.Time
	if err := dbtest.Row(s.T, s.url, "select clock_timestamp()", nil, &at); err != nil {
		s.Fatal(err)
	}
	return time.Until(at)
}

// movedTo moves the clock and waits until the server shows it.
func (s *shop) movedTo(pg *postgres, offset string, want time.Duration) {
	s.Helper()
	pg.setClock(offset)
	dbtest.Eventually(s.T, "the clock shows "+offset, func() bool { return (s.skew() - want).Abs() < time.Minute })
}

// Every lease runs out while its work is in hand. Who had it is refused, and what
// it has done is done again, under the same id.
func TestAClockThatJumpsAnHourForwardRunsLeasesOutAndSettlesNothingTwice(t *testing.T) {
	t.Parallel()
	pg := newPostgres(t, fakeClock)
	s := onPostgres(t, pg, resilient()...).open()
	gate := make(chan struct{})
	s.hook.holdAll(gate)
	s.emitAll(20)
	dbtest.Eventually(t, "deliveries are in hand", func() bool { return len(s.hook.all()) == 20 })
	s.movedTo(pg, "+3600", time.Hour)
	s.emitAll(5)
	dbtest.Eventually(t, "new deliveries are in hand", func() bool { return len(s.hook.all()) >= 25 })
	s.hook.holdAll(nil)
	close(gate)
	s.emitAll(5)
	s.wantReady()
	s.wantAllSettledOnce()
}

// What has failed before the jump is due an hour later by the clock. It is not lost:
// the next step forward, or the hour, brings it.
func TestAClockThatJumpsAnHourBackDelaysWhatHadATimeAndLosesNothing(t *testing.T) {
	t.Parallel()
	pg := newPostgres(t, fakeClock)
	s := onPostgres(t, pg, append(resilient(), "DESKCOMM_RETRY_LADDER=2s,2s,2s")...).open()
	s.hook.status.Store(http.StatusInternalServerError)
	s.emitAll(3)
	dbtest.Eventually(t, "all wait for their retry", func() bool { return s.count("select count(*) from delivery where attempts > 0") == 3 })
	s.hook.status.Store(http.StatusOK)
	gate := make(chan struct{})
	s.hook.holdAll(gate)
	s.emitAll(5)
	dbtest.Eventually(t, "more are in hand", func() bool {
		return s.count("select count(*) from delivery where attempts = 0 and lease_token is not null") == 5
	})
	s.movedTo(pg, "-3600", -time.Hour)
	s.hook.holdAll(nil)
	close(gate)
	dbtest.Eventually(t, "what was in hand is settled", func() bool {
		return s.count("select count(distinct e) from receipt r, unnest(r.event_ids) e") >= 5
	})
	s.wantReady()
	s.movedTo(pg, "+0", 0)
	s.emitAll(5)
	s.wantAllSettledOnce()
}

// Who subscribed before the jump has subscribed before every event that is emitted
// after it, whatever the clock says of the two.
func TestAClockThatJumpsAnHourBackHidesNoNewEventFromWhoHasSubscribed(t *testing.T) {
	t.Parallel()
	pg := newPostgres(t, fakeClock)
	s := onPostgres(t, pg, resilient()...).open()
	s.emitAll(5)
	s.wantAllSettledOnce()
	s.movedTo(pg, "-3600", -time.Hour)
	s.emitAll(5)
	s.wantReady()
	s.wantAllSettledOnce()
}
