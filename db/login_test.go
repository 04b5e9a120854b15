package db_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

const (
	home    = "203.0.113.7"
	faraway = "198.51.100.77"
	hisMail = "bruno@example.com"
)

// alone is a world of its own: what tests look at belongs to no organization.
func alone(t *testing.T) world {
	t.Helper()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	return world{T: t, db: d, url: url, org: dbtest.Org(t, d)}
}

// try begins a login and returns how long it must wait.
func (w world) try(email, address string) time.Duration {
	w.Helper()
	wait, err := w.db.BeginLogin(w.Context(), email, db.Origin{Address: address})
	if err != nil {
		w.Fatal(err)
	}
	return wait
}

// waited makes the throttle as old as if d had passed.
func (w world) waited(d time.Duration) {
	w.Helper()
	w.exec("update login_throttle set allowed_at = allowed_at - $1::interval, updated_at = updated_at - $1::interval", d)
}

func TestPasswordHas8To200CharactersAndOnlyItVerifies(t *testing.T) {
	t.Parallel()
	for password, want := range map[string]bool{
		"": false, "1234567": false, "12345678": true, "sãoçõés": false, "sãoçõése": true,
		strings.Repeat("é", 200): true, strings.Repeat("é", 201): false,
	} {
		err := db.CheckPassword(password)
		field, isField := errors.AsType[*bus.FieldError](err)
		if (err == nil) != want || err != nil && (!isField || field.Field != "password") {
			t.Errorf("a password of %d bytes: %v, want it taken: %t", len(password), err, want)
		}
	}
	if _, err := db.HashPassword(t.Context(), "short"); err == nil {
		t.Error("a short password is hashed")
	}
	hash, err := db.HashPassword(t.Context(), "correct horse")
	if err != nil || !strings.HasPrefix(hash, "$argon2id$") || strings.Contains(hash, "horse") {
		t.Fatalf("HashPassword() = %q, %v", hash, err)
	}
	if again, err := db.HashPassword(t.Context(), "correct horse"); err != nil || again == hash {
		t.Errorf("the same password has the same hash twice, %v", err)
	}
	for password, want := range map[string]bool{"correct horse": true, "correct horsf": false, "": false} {
		if got, err := db.VerifyPassword(t.Context(), password, hash); err != nil || got != want {
			t.Errorf("VerifyPassword(%q) = %t, %v, want %t", password, got, err, want)
		}
	}
	if same, err := db.VerifyPassword(t.Context(), "correct horse", "no hash"); err == nil || same {
		t.Errorf("VerifyPassword() of no hash = %t, %v, want an error", same, err)
	}
	if err := db.VerifyNothing(t.Context(), "correct horse"); err != nil {
		t.Error(err)
	}
}

func TestManyPasswordsAtOnceAreAllVerified(t *testing.T) {
	t.Parallel()
	hash, err := db.HashPassword(t.Context(), "correct horse")
	if err != nil {
		t.Fatal(err)
	}
	var logins sync.WaitGroup
	for range 6 {
		logins.Go(func() {
			if err := db.VerifyNothing(t.Context(), "correct horse"); err != nil {
				t.Errorf("VerifyNothing() = %v", err)
			}
			if same, err := db.VerifyPassword(t.Context(), "correct horse", hash); err != nil || !same {
				t.Errorf("VerifyPassword() = %t, %v", same, err)
			}
		})
	}
	logins.Wait()
}

func TestTriesToLogInWaitLongerAndLonger(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		address func(n int) string // of the nth try
		free    int
		seconds []int // that the tries after the free ones wait
	}{
		"from one address":     {func(int) string { return home }, 5, []int{1, 2, 4, 8, 16, 32, 60, 60}},
		"from an address each": {func(n int) string { return fmt.Sprintf("198.51.100.%d", n) }, 50, []int{1, 2, 4, 8, 10, 10}},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := alone(t)
			for n := range tt.free {
				if wait := w.try(hisMail, tt.address(n)); wait != 0 {
					t.Fatalf("free try %d must wait %s", n+1, wait)
				}
			}
			for n, seconds := range tt.seconds {
				if got := w.longestWait(); got != seconds {
					t.Errorf("after %d tries the next must wait %d s, want %d", tt.free+n, got, seconds)
				}
				w.exec("update login_throttle set allowed_at = clock_timestamp() + interval '1 hour' where allowed_at > updated_at + interval '1 ms'")
				if wait := w.try(strings.ToUpper(hisMail), tt.address(tt.free+n)); wait <= 0 || wait > time.Hour {
					t.Errorf("try %d must wait %s, want up to an hour", tt.free+n+1, wait)
				}
				w.exec("update login_throttle set allowed_at = updated_at")
				if wait := w.try(hisMail, tt.address(tt.free+n)); wait != 0 {
					t.Fatalf("try %d must wait %s after the wait", tt.free+n+1, wait)
				}
			}
		})
	}
}

// longestWait is the wait that the last counted try caused, in seconds.
func (w world) longestWait() int {
	w.Helper()
	return w.count("select coalesce(max(round(extract(epoch from allowed_at - updated_at))), 0)::int from login_throttle")
}

func TestRefusedTryIsNotCountedAndDoesNotExtendTheWait(t *testing.T) {
	t.Parallel()
	w := alone(t)
	w.try(hisMail, home)
	w.exec("update login_throttle set failures = 30, allowed_at = clock_timestamp() + interval '1 hour'")
	const state = "select string_agg(encode(key, 'hex') || failures || allowed_at || updated_at, ' ' order by key) from login_throttle"
	before := w.text(state)
	for range 3 {
		if wait := w.try(hisMail, home); wait <= 0 {
			t.Error("a try is let through before its time")
		}
	}
	if diff := cmp.Diff(before, w.text(state)); diff != "" {
		t.Errorf("refused tries changed the count (-before +after):\n%s", diff)
	}
}

func (w world) text(sql string, args ...any) string {
	w.Helper()
	var text string
	if err := dbtest.Row(w.T, w.url, sql, args, &text); err != nil {
		w.Fatal(err)
	}
	return text
}

func TestTwentyTriesAtOnceAreCountedOneByOne(t *testing.T) {
	t.Parallel()
	// A race for rows that are not there yet: whatever the hour, what got through
	// is what was counted.
	t.Run("of a new address", func(t *testing.T) {
		t.Parallel()
		w := alone(t)
		through := w.tries(20)
		if through < 5 {
			t.Errorf("%d tries got through, want the 5 that are free at least", through)
		}
		if n := w.count("select count(*) from login_throttle where failures = $1", through); n != 3 {
			t.Errorf("%d of the 3 counts are the %d tries that got through", n, through)
		}
	})
	t.Run("after a wait", func(t *testing.T) {
		t.Parallel()
		w := alone(t)
		w.try(hisMail, home)
		w.exec("update login_throttle set failures = 11")
		if through := w.tries(20); through != 1 {
			t.Errorf("%d tries got through, want 1: the next waits for a minute", through)
		}
	})
}

// tries begins n logins at once and returns how many got through.
func (w world) tries(n int) int {
	w.Helper()
	var mu sync.Mutex
	var through int
	var logins sync.WaitGroup
	for range n {
		logins.Go(func() {
			wait, err := w.db.BeginLogin(w.Context(), hisMail, db.Origin{Address: home})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				w.Error(err)
			} else if wait == 0 {
				through++
			}
		})
	}
	logins.Wait()
	return through
}

func TestTriesFromElsewhereSlowTheOwnerByTenSecondsAtMost(t *testing.T) {
	t.Parallel()
	w := alone(t)
	const elsewhere = "198.51.100.1"
	w.try(hisMail, elsewhere)
	w.exec("update login_throttle set failures = 100000")
	w.try(hisMail, elsewhere)
	if wait := w.try(hisMail, home); wait <= 0 || wait > 10*time.Second {
		t.Errorf("the owner must wait %s, want up to 10 seconds", wait)
	}
	if wait := w.try("carla@example.com", "192.0.2.200"); wait != 0 {
		t.Errorf("another person must wait %s", wait)
	}
}

func TestTriesCountByPlace(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		other string
		same  bool
	}{
		"2001:db8:1:2::1":     {"2001:db8:1:2:ffff::9", true},
		"2001:db8:1:3::1":     {"2001:db8:1:4::1", false},
		"192.0.2.1":           {"::ffff:192.0.2.1", true},
		"192.0.2.2":           {"192.0.2.2:4711", true},
		"[2001:db8:1:5::1]:1": {"2001:db8:1:5::2%eth0", true},
		"192.0.2.3":           {"192.0.2.4", false},
		"no address":          {"", true},
	}
	for one, tt := range cases {
		t.Run(one, func(t *testing.T) {
			t.Parallel()
			w := alone(t)
			w.try(hisMail, one)
			w.try(hisMail, tt.other)
			want := 5 // the person's, and two for each place
			if tt.same {
				want = 3
			}
			if n := w.count("select count(*) from login_throttle"); n != want {
				t.Errorf("%d counts, want %d", n, want)
			}
		})
	}
}

func TestCountStartsAnewAfterAQuarterOfAnHour(t *testing.T) {
	t.Parallel()
	w := alone(t)
	w.try(hisMail, home)
	w.exec("update login_throttle set failures = 20")
	w.waited(14 * time.Minute)
	w.try(hisMail, home)
	if got := w.longestWait(); got != 60 {
		t.Errorf("a try within a quarter of an hour makes the next wait %d s, want 60", got)
	}
	w.waited(15 * time.Minute)
	if wait := w.try(hisMail, home); wait != 0 {
		t.Errorf("the first try after a quarter of an hour must wait %s", wait)
	}
	if n := w.count("select max(failures) from login_throttle"); n != 1 {
		t.Errorf("a quarter of an hour later a try is the %dth, want the first", n)
	}
}

func TestLoginForgetsTheTriesAndIsAudited(t *testing.T) {
	t.Parallel()
	w := alone(t)
	user := uuid.New()
	w.try(hisMail, home)
	w.try(hisMail, "198.51.100.1")
	w.try("carla@example.com", home)
	if err := w.db.LoggedIn(t.Context(), user, strings.ToUpper(hisMail), db.Origin{Address: home + ":4711"}, "req-1"); err != nil {
		t.Fatal(err)
	}
	if n := w.count("select count(*) from login_throttle"); n != 5 {
		t.Errorf("%d counts are left, want the one of elsewhere, the two of the other person and the two places'", n)
	}
	if n := w.count("select count(*) from login_throttle where failures = 0"); n != 0 {
		t.Errorf("%d counts are empty: the login took back more than its own try", n)
	}
	if err := w.db.LoggedOut(t.Context(), user, hisMail, "req-2"); err != nil {
		t.Fatal(err)
	}
	got := w.text(`
		select string_agg(concat_ws(' ', action, actor_kind, actor_name, request_id, metadata, organization_id), '; ' order by id)
		  from audit_log where actor_id = $1 and resource_id = $1 and resource_type = 'user'`, user)
	want := `user.logged_in user bruno@example.com req-1 {"network": "203.0.113.7"}; user.logged_out user bruno@example.com req-2 {}`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("audit (-want +got):\n%s", diff)
	}
}

func TestThrottleKeepsNoAddressOfAPerson(t *testing.T) {
	t.Parallel()
	w := alone(t)
	w.try(hisMail, home)
	if n := w.count("select count(*) from login_throttle t where position('bruno' in encode(key, 'escape')) > 0 or length(key) <> 32"); n != 0 {
		t.Error("an e-mail address can be read in login_throttle")
	}
}

func TestCredentialsAreFoundInAnyCase(t *testing.T) {
	t.Parallel()
	w := setup(t)
	email := w.person(db.RoleViewer)
	for name, written := range map[string]string{"as given": email, "in capitals": strings.ToUpper(email)} {
		if c, err := w.db.Credentials(t.Context(), written); err != nil || c.UserID == uuid.Nil || c.PasswordHash != "a hash" || c.SessionVersion != 1 {
			t.Errorf("%s: %+v, %v, want the person's", name, c, err)
		}
	}
	for name, written := range map[string]string{
		"nobody's": "nobody@example.com", "empty": "", "no address": "x", "with NUL": "a\x00@example.com", "no UTF-8": "\xff@example.com",
		"a pattern": "%@example.com", "endless": strings.Repeat("a", 1<<20) + "@example.com",
	} {
		if _, err := w.db.Credentials(t.Context(), written); !errors.Is(err, bus.ErrNotFound) {
			t.Errorf("%s: %v, want not found", name, err)
		}
		if _, err := w.db.BeginLogin(t.Context(), written, db.Origin{Address: home}); err != nil {
			t.Errorf("%s: BeginLogin: %v", name, err)
		}
	}
}

func TestSessionsAreKeptUntilTheyExpire(t *testing.T) {
	t.Parallel()
	w := alone(t)
	store := w.db.SessionStore()
	if err := store.Commit("a", []byte("data"), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if data, found, err := store.Find("a"); err != nil || !found || string(data) != "data" {
		t.Errorf("Find() = %q, %t, %v, want the session", data, found, err)
	}
	w.exec("update sessions set expiry = expiry - interval '2 hours'")
	if _, found, err := store.Find("a"); err != nil || found {
		t.Errorf("Find() = %t, %v, want none after its end", found, err)
	}
	if err := store.Delete("a"); err != nil {
		t.Error(err)
	}
}

func TestPruningDeletesAllThatHasExpiredAndNothingElse(t *testing.T) {
	t.Parallel()
	w := alone(t)
	// More than two steps of each; of each, one row is kept.
	w.exec(`insert into sessions select 't' || n, '', clock_timestamp() - interval '1 hour 1 second' from generate_series(1, 2500) n`)
	w.exec(`insert into sessions values ('kept', '', clock_timestamp() + interval '1 hour')`)
	w.exec(`insert into login_throttle (key, updated_at) select sha256(n::text::bytea), clock_timestamp() - interval '16 minutes' from generate_series(1, 2500) n`)
	w.exec(`insert into login_throttle (key, updated_at) values (sha256('kept'), clock_timestamp() - interval '14 minutes')`)
	w.exec(`insert into event_dedup select $1, 'k' || n, uuid_v7(), clock_timestamp() - interval '1 second' from generate_series(1, 2500) n`, w.org)
	w.exec(`insert into event_dedup values ($1, 'kept', uuid_v7())`, w.org)
	w.exec(`insert into idempotency_keys (organization_id, endpoint, key, request_hash, status_code, response, expires_at)
		select $1, 'e', 'k' || n, '', 200, '', clock_timestamp() - interval '1 second' from generate_series(1, 2500) n`, w.org)
	w.exec(`insert into idempotency_keys (organization_id, endpoint, key, request_hash, status_code, response) values ($1, 'e', 'kept', '', 200, '')`, w.org)
	if err := w.db.PruneExpired(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"sessions", "login_throttle", "event_dedup", "idempotency_keys"} {
		if n := w.count("select count(*) from " + table); n != 1 {
			t.Errorf("%s has %d rows, want the one that is kept", table, n)
		}
	}
}

// Whoever tries passwords for a known e-mail takes every try that becomes free,
// also those of its owner, unless the owner's browser is known.
func TestKnownBrowserIsNotInTheQueueOfWhoGuesses(t *testing.T) {
	t.Parallel()
	w := alone(t)
	device, err := w.db.NewDevice(hisMail)
	if err != nil {
		t.Fatal(err)
	}
	w.tries(20)
	for from, want := range map[db.Origin]bool{
		{Address: home}:                                 true,
		{Address: home, Device: device}:                 false,
		{Address: home, Device: device + "x"}:           true,
		{Address: home, Device: "not even base64 \x00"}: true,
	} {
		wait, err := w.db.BeginLogin(t.Context(), strings.ToUpper(hisMail), from)
		if err != nil || (wait > 0) != want {
			t.Errorf("a try from %+v must wait %s, %v; want a wait: %t", from, wait, err, want)
		}
	}
	// It is known for the e-mail that it has logged in as, and counted too.
	for range 100 {
		if _, err := w.db.BeginLogin(t.Context(), "carla@example.com", db.Origin{Address: faraway}); err != nil {
			t.Fatal(err)
		}
	}
	if wait, err := w.db.BeginLogin(t.Context(), "carla@example.com", db.Origin{Address: faraway, Device: device}); err != nil || wait <= 0 {
		t.Errorf("a browser that is known for another e-mail must wait %s, %v; want a wait", wait, err)
	}
	for range 5 {
		if _, err := w.db.BeginLogin(t.Context(), hisMail, db.Origin{Address: home, Device: device}); err != nil {
			t.Fatal(err)
		}
	}
	if wait, err := w.db.BeginLogin(t.Context(), hisMail, db.Origin{Address: home, Device: device}); err != nil || wait <= 0 {
		t.Errorf("the 7th try of a known browser must wait %s, %v; want a wait", wait, err)
	}
}

// A new e-mail for each try has no count of its own to slow it down.
func TestManyEmailsFromOneNetworkAreSlowedDown(t *testing.T) {
	t.Parallel()
	w := alone(t)
	through := 0
	for i := range 150 {
		wait, err := w.db.BeginLogin(t.Context(), fmt.Sprintf("p%d@example.com", i), db.Origin{Address: home})
		if err != nil {
			t.Fatal(err)
		}
		if wait == 0 {
			through++
		}
	}
	if through < 100 || through > 120 {
		t.Errorf("%d of 150 e-mails were tried, want 100 and few more", through)
	}
	if wait := w.try("carla@example.com", faraway); wait != 0 {
		t.Errorf("another network must wait %s", wait)
	}
}

func TestPasswordsAreNotHashedForWhoHasLeft(t *testing.T) {
	t.Parallel()
	gone, leave := context.WithCancel(t.Context())
	leave()
	for name, hash := range map[string]func() error{
		"a new one":   func() error { _, err := db.HashPassword(gone, "correct horse"); return err },
		"one to test": func() error { _, err := db.VerifyPassword(gone, "correct horse", "x"); return err },
		"nobody's":    func() error { return db.VerifyNothing(gone, "correct horse") },
	} {
		if err := hash(); !errors.Is(err, bus.ErrUnavailable) {
			t.Errorf("%s: %v, want unavailable", name, err)
		}
	}
}

// A request that is under way while its person logs out keeps its session with its
// answer.
func TestSessionThatWasEndedDoesNotComeBack(t *testing.T) {
	t.Parallel()
	w := alone(t)
	s, later := w.db.SessionStore(), time.Now().Add(time.Hour)
	if err := s.CommitCtx(t.Context(), "token", []byte("ana"), later); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteCtx(t.Context(), "token"); err != nil {
		t.Fatal(err)
	}
	if err := s.CommitCtx(t.Context(), "token", []byte("ana"), later); err != nil {
		t.Fatal(err)
	}
	if data, found, err := s.FindCtx(t.Context(), "token"); err != nil || found {
		t.Errorf("FindCtx() = %q, %t, %v; want nothing", data, found, err)
	}
}
