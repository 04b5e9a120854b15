package localpg

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakePrograms makes a folder whose postgres claims a version.
func fakePrograms(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	for name, script := range map[string]string{
		"postgres": "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n",
		"initdb":   "#!/bin/sh\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestBinariesFitTheDataElseAreTheNewest(t *testing.T) {
	t.Parallel()
	pg14, pg15, pg18 := fakePrograms(t, "14.9"), fakePrograms(t, "15.18 (Debian 15.18-0+deb12u1)"), fakePrograms(t, "18beta1")
	odd := fakePrograms(t, "devel")
	onlyClient := t.TempDir()
	for name, tt := range map[string]struct {
		folders []string
		major   int
		want    binaries
		wantErr string
	}{
		"newest without data":  {folders: []string{pg15, pg18, pg14}, want: binaries{pg18, 18}},
		"equal to the data":    {folders: []string{pg18, pg15}, major: 15, want: binaries{pg15, 15}},
		"first of equals":      {folders: []string{onlyClient, pg15, pg15 + "/."}, want: binaries{pg15, 15}},
		"nothing there":        {folders: []string{onlyClient}, wantErr: "version 15 or newer is needed; install it with: "},
		"relative folder":      {folders: []string{"", "."}, wantErr: "version 15 or newer is needed"},
		"only too old":         {folders: []string{pg14}, wantErr: "15 or newer is needed, installed is 14 in " + pg14},
		"only another version": {folders: []string{pg18}, major: 15, wantErr: "existing data needs version 15, installed is 18 in " + pg18},
		"version not readable": {folders: []string{odd}, wantErr: "15 or newer is needed;"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := search{folders: tt.folders}.find(t.Context(), tt.major)
			if tt.wantErr != "" {
				if !errors.Is(err, ErrNoBinaries) || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("find() = %v, want ErrNoBinaries with %q", err, tt.wantErr)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("find() = %v, %v, want %v", got, err, tt.want)
			}
		})
	}
}

func TestBinariesOutsideThePathAreFound(t *testing.T) {
	t.Parallel()
	pg15, pg16, pg17 := fakePrograms(t, "15.1"), fakePrograms(t, "16.1"), fakePrograms(t, "17.1")
	path := t.TempDir()
	if err := os.WriteFile(filepath.Join(path, "pg_config"), []byte("#!/bin/sh\necho "+pg17+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := search{folders: []string{path, pg15}, globs: []string{filepath.Dir(pg16) + "/*"}}
	for major, want := range map[int]string{15: pg15, 16: pg16, 17: pg17} {
		if got, err := s.find(t.Context(), major); err != nil || got.dir != want {
			t.Errorf("find(%d) = %v, %v, want %s", major, got, err, want)
		}
	}
}

func TestInstallCommandFitsTheSystem(t *testing.T) {
	t.Parallel()
	sudo := "sudo "
	if os.Geteuid() == 0 {
		sudo = ""
	}
	for name, tt := range map[string]struct {
		manager string
		major   int
		want    string
	}{
		"Debian":                 {"apt-get", 0, sudo + "apt-get install postgresql"},
		"Debian, a version":      {"apt-get", 15, sudo + "apt-get install postgresql-15"},
		"macOS":                  {"brew", 0, "brew install postgresql@17"},
		"macOS, a version":       {"brew", 16, "brew install postgresql@16"},
		"no known manager":       {"none", 0, "your system's package manager (package postgresql)"},
		"Fedora":                 {"dnf", 0, sudo + "dnf install postgresql-server"},
		"Alpine, with a version": {"apk", 16, sudo + "apk add postgresql16"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lookPath := func(program string) (string, error) {
				if program == tt.manager {
					return program, nil
				}
				return "", os.ErrNotExist
			}
			if got := installCommand(lookPath, tt.major); got != tt.want {
				t.Errorf("installCommand() = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestFirstClosedFolderIsFoundForAUser(t *testing.T) {
	t.Parallel()
	top := dataDir(t, "")
	inner := filepath.Join(top, "closed", "inner")
	if err := os.MkdirAll(inner, 0o755); err != nil {
		t.Fatal(err)
	}
	uid, _ := ownerOf(top)
	stranger := account{cred: &syscall.Credential{Uid: 12345, Gid: 12345}}
	sameGroup := account{cred: &syscall.Credential{Uid: 12345, Gid: 12345, Groups: []uint32{uint32(os.Getegid())}}}
	owner := account{cred: &syscall.Credential{Uid: uint32(uid), Gid: 12345}}

	for _, tt := range []struct {
		mode                            os.FileMode
		stranger, sameGroup, same, self bool // may enter
	}{
		{0o755, true, true, true, true},
		{0o711, true, true, true, true},
		{0o750, false, true, true, true},
		{0o700, false, false, true, true},
		{0o701, true, false, true, true}, // the group's bits count for the group, not the others'
		{0o677, true, true, false, true},
	} {
		if tt.mode == 0o677 && os.Geteuid() != 0 {
			continue // this process could not look either
		}
		if err := os.Chmod(filepath.Dir(inner), tt.mode); err != nil {
			t.Fatal(err)
		}
		for name, check := range map[string]struct {
			account account
			enters  bool
		}{
			"stranger": {stranger, tt.stranger}, "same group": {sameGroup, tt.sameGroup}, "owner": {owner, tt.same}, "this process": {account{}, tt.self},
		} {
			want := filepath.Dir(inner)
			if check.enters {
				want = ""
			}
			if got := check.account.blockedAt(inner); got != want {
				t.Errorf("mode %o, %s: blockedAt() = %q, want %q", tt.mode, name, got, want)
			}
		}
	}
	if err := os.Chmod(filepath.Dir(inner), 0o755); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(inner, "missing")
	if got := stranger.blockedAt(missing); got != missing {
		t.Errorf("blockedAt() = %q for a missing folder, want it", got)
	}
}

func TestHomeElsewhereBelongsToOneDataDirectory(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	first := newSite(t, state)
	home, err := first.elsewhere(account{})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := first.elsewhere(account{}); err != nil || again != home {
		t.Errorf("elsewhere() after an attempt that was killed = %q, %v, want %q again", again, err, home)
	}
	if err := os.Mkdir(filepath.Join(home, "15"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := first.claimHome(home); err != nil {
		t.Errorf("claimHome() by its own = %v, want nil", err)
	}

	copied := newSite(t, state)
	if err := writeFile(copied.file(locationFile), home); err != nil {
		t.Fatal(err)
	}
	if err := copied.claimHome(home); err == nil || !strings.Contains(err.Error(), "belongs to data directory "+first.data) {
		t.Errorf("claimHome() by a copy = %v, want a refusal that names the original", err)
	}

	if err := os.Remove(first.file(locationFile)); err != nil { // as if first had been moved to copied
		t.Fatal(err)
	}
	if err := copied.claimHome(home); err != nil {
		t.Errorf("claimHome() after a move = %v, want nil", err)
	}
	if other, err := first.elsewhere(account{}); err != nil || other != home+"-2" {
		t.Errorf("elsewhere() for a new directory at the old path = %q, %v, want %q", other, err, home+"-2")
	}

	if err := os.RemoveAll(home); err != nil {
		t.Fatal(err)
	}
	if err := copied.claimHome(home); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("claimHome() of a lost cluster = %v, want an error and no empty database", err)
	}
}

func newSite(t *testing.T, state string) site {
	t.Helper()
	place, err := openSite(filepath.Join(t.TempDir(), "data"), state)
	if err != nil {
		t.Fatal(err)
	}
	return place
}

func TestSocketFolderOfSomebodyElseIsRefused(t *testing.T) {
	t.Parallel()
	shared := t.TempDir()
	link := filepath.Join(shared, "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if err := makePrivate(link, "/home", account{}); err == nil {
		t.Error("makePrivate() took a symbolic link, want a refusal")
	}
	needRoot(t)
	foreign := filepath.Join(shared, "foreign")
	if err := os.Mkdir(foreign, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(foreign, 12345, 12345); err != nil {
		t.Fatal(err)
	}
	if err := makePrivate(foreign, "/home", account{}); err == nil {
		t.Error("makePrivate() took another user's folder, want a refusal")
	}
	if err := trustSocketDir(foreign, shared); err == nil || errors.Is(err, errNotReady) {
		t.Errorf("trustSocketDir() = %v for another user's folder, want a refusal", err)
	}
}

func TestLogIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), logFile)
	writer, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = writer.Close() }()
	for _, line := range []string{"first\n", "second\n"} {
		if _, err := writer.WriteString(line); err != nil {
			t.Fatal(err)
		}
		if err := trimLog(path, 5); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := writer.WriteString("3\n"); err != nil {
		t.Fatal(err)
	}
	if err := trimLog(path, 5); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, name := range []string{path + ".1", path} {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(raw))
	}
	if diff := cmp.Diff([]string{"second\n", "3\n"}, got); diff != "" {
		t.Errorf("old and new log (-want +got):\n%s", diff)
	}
}

func TestLogTailIsWhatWasAddedAndShort(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), logFile)
	lines := strings.Repeat("line\n", 30)
	if err := os.WriteFile(path, []byte("before\n"+lines+"last\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := logTail(path, 7+5*28), "line\nline\nlast"; got != want {
		t.Errorf("logTail() = %q, want %q", got, want)
	}
	if got, want := strings.Count(logTail(path, 0), "\n"), 14; got != want {
		t.Errorf("logTail() has %d line ends, want %d", got, want)
	}
}
