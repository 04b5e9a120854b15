package localpg

import (
	"bytes"
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRowsSurviveCloseAndOpen(t *testing.T) {
	t.Parallel()
	dir := dataDir(t, "data")
	if Exists(dir) {
		t.Error("Exists() = true before the first Open, want false")
	}

	first := openWith(t, Options{DataDir: dir, Durable: true})
	mustQuery(t, first.URL(), "create table kept (n int); insert into kept values (41), (1)")
	closeServer(t, first)
	if got := postgresIn(dir); len(got) > 0 {
		t.Errorf("processes after Close: %v, want none", got)
	}
	if !Exists(dir) {
		t.Error("Exists() = false after Open and Close, want true")
	}

	second := open(t, dir)
	if got, want := mustQuery(t, second.URL(), "select sum(n) from kept"), "42"; got != want {
		t.Errorf("sum = %s after a restart, want %s", got, want)
	}
	if got, want := second.URL(), first.URL(); got != want {
		t.Error("URL() differs after a restart, want the same")
	}
}

func TestServerIsPrivateAndConfigured(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		durable bool
		want    []string
	}{
		"durable":                   {true, []string{"on", "on", "on"}},
		"not durable 100%+&? signs": {false, []string{"off", "off", "off"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := seeded(t, name+` "x"`)
			s := openWith(t, Options{DataDir: dir, Durable: tt.durable})

			var got []string
			for _, setting := range []string{"fsync", "full_page_writes", "synchronous_commit"} {
				got = append(got, mustQuery(t, s.URL(), "show "+setting))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("durability settings (-want +got):\n%s", diff)
			}
			for setting, want := range map[string]string{
				"listen_addresses": "", "max_connections": "200", "timezone": "UTC", "server_encoding": "UTF8",
				"lc_collate": "C", "unix_socket_permissions": "0700", "log_min_messages": "warning", "data_checksums": "on",
			} {
				if got := mustQuery(t, s.URL(), "select current_setting('"+setting+"')"); got != want {
					t.Errorf("%s = %q, want %q", setting, got, want)
				}
			}
			if got, want := mustQuery(t, s.URL(), "select current_user || ' ' || current_database()"), "deskcomm deskcomm"; got != want {
				t.Errorf("connected as %q, want %q", got, want)
			}
			for path, want := range map[string]os.FileMode{
				s.site.file(passwordFile): 0o600, s.site.file(logFile): 0o600, s.site.file(lockFile): 0o600, s.socket: 0o700,
			} {
				if got := mode(t, path); got != want {
					t.Errorf("mode of %s = %o, want %o", path, got, want)
				}
			}
			wantMode := os.FileMode(0o700)
			if os.Geteuid() == 0 {
				wantMode = 0o711
			}
			if got := mode(t, dir); got != wantMode {
				t.Errorf("mode of the data directory = %o, want %o", got, wantMode)
			}
			wrong := strings.Replace(s.URL(), "deskcomm:", "deskcomm:x", 1)
			if _, err := query(t.Context(), wrong, "select 1"); sqlState(err) != "28P01" {
				t.Errorf("connecting with a wrong password = %v, want a refusal", err)
			}
		})
	}
}

func TestSecondOpenAdoptsAndDoesNotStop(t *testing.T) {
	t.Parallel()
	dir := seeded(t, "data")
	owner, adopter := open(t, dir), open(t, dir)
	if got, want := adopter.URL(), owner.URL(); got != want {
		t.Error("the adopter's URL differs from the owner's")
	}
	closeServer(t, adopter)
	if _, err := query(t.Context(), owner.URL(), "select 1"); err != nil {
		t.Errorf("query after the adopter closed = %v, want nil", err)
	}
}

func TestConcurrentOpensOfAnEmptyDirectoryShareOneServer(t *testing.T) {
	t.Parallel()
	dir := dataDir(t, "data")
	servers := make([]*Server, 5)
	var wg sync.WaitGroup
	for i := range servers {
		wg.Go(func() {
			var err error
			if servers[i], err = Open(t.Context(), Options{DataDir: dir}); err != nil {
				t.Errorf("Open() = %v, want nil", err)
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	owners, started := 0, map[string]bool{}
	for _, s := range servers {
		if s.lock != nil {
			owners++
			defer closeServer(t, s)
		}
		started[mustQuery(t, s.URL(), "select pg_postmaster_start_time()")] = true
	}
	if owners != 1 || len(started) != 1 {
		t.Errorf("%d owners and %d servers, want 1 and 1", owners, len(started))
	}
}

func TestUnfitPathMovesOnlyTheSocket(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]string{
		"long":         strings.Repeat("long-", 20),
		"with a comma": "a,b",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testUnfitPath(t, seeded(t, dir))
		})
	}
}

func testUnfitPath(t *testing.T, dir string) {
	t.Helper()
	s := open(t, dir)
	t.Cleanup(func() { _ = os.RemoveAll(s.socket) })
	if got, want := filepath.Dir(s.socket), filepath.Clean(os.TempDir()); got != want {
		t.Errorf("socket is in %s, want in %s", got, want)
	}
	if got, want := mode(t, s.socket), os.FileMode(0o700); got != want {
		t.Errorf("mode of the socket's folder = %o, want %o", got, want)
	}
	if got := len(filepath.Join(s.socket, socketName)); got > maxSocketPath {
		t.Errorf("socket path has %d bytes, want at most %d", got, maxSocketPath)
	}
	adopter := open(t, dir)
	if got, want := mustQuery(t, adopter.URL(), "show data_directory"), filepath.Join(dir, "postgres", majorOf(t, s)); got != want {
		t.Errorf("cluster is in %s, want in %s", got, want)
	}
}

func TestStartFailureShowsTheLog(t *testing.T) {
	t.Parallel()
	dir := seeded(t, "data")
	s := open(t, dir)
	conf := filepath.Join(dir, "postgres", majorOf(t, s), "postgresql.conf")
	closeServer(t, s)
	if err := os.WriteFile(conf, []byte("no_such_setting = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Options{DataDir: dir})
	if err == nil || !strings.Contains(err.Error(), `unrecognized configuration parameter "no_such_setting"`) {
		t.Errorf("Open() = %v, want the log's last lines", err)
	}
	lock, err := tryLock(filepath.Join(dir, lockFile))
	if err != nil {
		t.Fatalf("lock after a start that went wrong: %v, want it free", err)
	}
	_ = lock.Close()
}

func TestLostPasswordIsAnErrorAndNotANewOne(t *testing.T) {
	t.Parallel()
	dir := seeded(t, "data")
	closeServer(t, open(t, dir))
	path := filepath.Join(dir, passwordFile)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{DataDir: dir}); err == nil || !strings.Contains(err.Error(), passwordFile+" is missing") {
		t.Errorf("Open() without its password = %v, want an error that names the file", err)
	}
	if err := os.WriteFile(path, []byte("another\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Options{DataDir: dir}); sqlState(err) != "28P01" {
		t.Errorf("Open() with another password = %v, want the server's refusal", err)
	}
	if got := postgresIn(dir); len(got) > 0 {
		t.Errorf("processes after a refused Open: %v, want none", got)
	}
}

func TestDataOfAnotherMajorVersionIsAClearError(t *testing.T) {
	t.Parallel()
	dir := dataDir(t, "data")
	if err := os.MkdirAll(filepath.Join(dir, "postgres", "99"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Options{DataDir: dir})
	if !errors.Is(err, ErrNoBinaries) || !strings.Contains(err.Error(), "the existing data needs version 99") {
		t.Errorf("Open() = %v, want ErrNoBinaries that names the version", err)
	}
}

func TestClosedFolderSendsTheClusterElsewhere(t *testing.T) {
	t.Parallel()
	needRoot(t)
	state := dataDir(t, "state")
	closed := t.TempDir()
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(closed, "data")
	var log bytes.Buffer
	s := openWith(t, Options{DataDir: dir, Logger: newLogger(&log), stateDir: state})

	home := filepath.Join(state, s.site.key())
	if got, want := mustQuery(t, s.URL(), "show data_directory"), filepath.Join(home, majorOf(t, s)); got != want {
		t.Errorf("cluster is in %s, want in %s", got, want)
	}
	if got := log.String(); !strings.Contains(got, "location="+home) || !strings.Contains(got, "level=WARN") {
		t.Errorf("log = %q, want a warning that names %s", got, home)
	}
	if got, want := mode(t, dir), os.FileMode(0o700); got != want {
		t.Errorf("mode of the data directory = %o, want %o", got, want)
	}
	mustQuery(t, s.URL(), "create table kept ()")
	closeServer(t, s)

	log.Reset()
	if !Exists(dir) {
		t.Error("Exists() = false, want true: the location is recorded")
	}
	again := openWith(t, Options{DataDir: dir, Logger: newLogger(&log)}) // found without being told the place
	mustQuery(t, again.URL(), "select * from kept")
	if strings.Contains(log.String(), "level=WARN") {
		t.Errorf("log of the second start = %q, want no warning", log.String())
	}
}

func TestClusterRunsAsItsOwnerUnlessThatIsRoot(t *testing.T) {
	t.Parallel()
	needRoot(t)
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	asNobody, err := accountOf(nobody)
	if err != nil {
		t.Fatal(err)
	}
	usual, err := chooseAccount("")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ owner, want account }{
		"nobody": {asNobody, asNobody},
		"root":   {account{cred: &syscall.Credential{}}, usual},
		"a number without a name, from another machine": {account{cred: &syscall.Credential{Uid: 54321, Gid: 54321}}, usual},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := seeded(t, "data")
			cluster, _ := clusterIn(filepath.Join(dir, insideFolder))
			if err := tt.owner.ownTree(cluster); err != nil {
				t.Fatal(err)
			}
			mustQuery(t, open(t, dir).URL(), "select 1")
			if uid, _ := ownerOf(cluster); uid != tt.want.uid() {
				t.Errorf("the cluster belongs to user %d, want %d", uid, tt.want.uid())
			}
		})
	}
}

// majorOf returns the major version of a server as its folder is named.
func majorOf(t *testing.T, s *Server) string {
	t.Helper()
	home, err := s.site.home()
	if err != nil {
		t.Fatal(err)
	}
	_, major := clusterIn(home)
	return strconv.Itoa(major)
}
