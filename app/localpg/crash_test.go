package localpg

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestKilledOwnerLeavesNoPostgresAndLosesNoRow(t *testing.T) {
	t.Parallel()
	dir := seeded(t, "data")
	owner := startOwner(t, dir)
	adopter := open(t, dir)
	mustQuery(t, adopter.URL(), "create table kept (n int); insert into kept values (42)")

	owner.kill(t)
	eventually(t, "no Postgres is left", func() bool { return len(postgresIn(dir)) == 0 })

	if got, want := mustQuery(t, open(t, dir).URL(), "select n from kept"), "42"; got != want {
		t.Errorf("row = %s after the owner was killed, want %s", got, want)
	}
}

func TestOpenRightAfterTheOwnerWasKilled(t *testing.T) {
	t.Parallel()
	dir := seeded(t, "data")
	owner := startOwner(t, dir)
	owner.kill(t)
	s := open(t, dir) // its Postgres is still there, or on its way out
	if s.lock == nil {
		t.Error("the server is adopted, want it owned: its owner is dead")
	}
	mustQuery(t, s.URL(), "select 1")
}

func TestRunTakesOverFromAnOwner(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*helper) error{
		"that was killed": func(owner *helper) error { return owner.cmd.Process.Kill() },
		"that closed it":  func(owner *helper) error { return owner.in.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := seeded(t, "data")
			owner := startOwner(t, dir)
			s := open(t, dir)
			run(t, s)
			before := mustQuery(t, s.URL(), "select pg_postmaster_start_time()")
			if err := leave(owner); err != nil {
				t.Fatal(err)
			}
			eventually(t, "another server answers under the same URL", func() bool {
				got, err := query(context.WithoutCancel(t.Context()), s.URL(), "select pg_postmaster_start_time()")
				return err == nil && got != before
			})
		})
	}
}

func TestRunRestartsAKilledPostmaster(t *testing.T) {
	t.Parallel()
	dir := seeded(t, "data")
	s := openWith(t, Options{DataDir: dir, Durable: true})
	run(t, s)
	mustQuery(t, s.URL(), "create table kept (n int); insert into kept values (42)")
	for range 2 {
		before := mustQuery(t, s.URL(), "select pg_postmaster_start_time()")
		if err := syscall.Kill(postmasterPID(t, dir), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "another server answers", func() bool {
			got, err := query(t.Context(), s.URL(), "select pg_postmaster_start_time()")
			return err == nil && got != before
		})
	}
	if got, want := mustQuery(t, s.URL(), "select n from kept"), "42"; got != want {
		t.Errorf("row = %s after two crashes, want %s", got, want)
	}
}

func TestCloseEndsRunWhichStartsNothingMore(t *testing.T) {
	t.Parallel()
	dir := seeded(t, "data")
	s := open(t, dir)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(context.WithoutCancel(t.Context())) }()
	closeServer(t, s)
	if err := <-ended; err != nil {
		t.Errorf("Run() = %v, want nil", err)
	}
	closeServer(t, s)
	if got := postgresIn(dir); len(got) > 0 {
		t.Errorf("processes after Close: %v, want none", got)
	}
}

func TestKillDuringInitLeavesNothingHalfMade(t *testing.T) {
	t.Parallel()
	dir := dataDir(t, "data")
	owner := startHelper(t, "own "+dir)
	unfinished := filepath.Join(dir, "postgres", ".init-*", "data", "PG_VERSION")
	eventually(t, "initdb is at work", func() bool {
		found, _ := filepath.Glob(unfinished)
		return len(found) > 0
	})
	owner.kill(t)
	mustQuery(t, open(t, dir).URL(), "select 1")
	if left, _ := filepath.Glob(filepath.Join(dir, "postgres", ".init-*", "password")); len(left) > 0 {
		t.Errorf("left over: %v, want nothing", left)
	}
}

func TestProcessIDOfAStrangerDoesNotBlockTheStart(t *testing.T) {
	t.Parallel()
	dir := seeded(t, "data")
	s := open(t, dir)
	file := filepath.Join(dir, "postgres", majorOf(t, s), postmasterFile)
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	closeServer(t, s)

	acct, err := chooseAccount(filepath.Dir(file))
	if err != nil {
		t.Fatal(err)
	}
	stranger := cleanCommand(t.Context(), acct, "/bin/sleep", "600") // same user: Postgres takes it for a server
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = stranger.Process.Kill(), stranger.Wait() })
	_, rest, _ := strings.Cut(string(content), "\n")
	if err := os.WriteFile(file, []byte(strconv.Itoa(stranger.Process.Pid)+"\n"+rest), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := acct.own(file); err != nil {
		t.Fatal(err)
	}
	mustQuery(t, open(t, dir).URL(), "select 1")
	if !processExists(stranger.Process.Pid) {
		t.Error("the stranger was ended, want it left alone")
	}
}

// The watcher serves systems without a parent-death signal; its code is the same
// on all.
func TestWatcherInterruptsTheChildOfAKilledParent(t *testing.T) {
	t.Parallel()
	h := startHelper(t, "watch")
	h.says(t, "ready", "watched")
	h.kill(t)
	h.says(t, "interrupted")
}

func TestWatchIsReleasedByTheEndOfItsChild(t *testing.T) {
	t.Parallel()
	child := cleanCommand(t.Context(), account{}, "/bin/sh", "-c", "read -r line")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	release, err := watch(child)
	if err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	err = child.Wait()
	release() // returns only when the watcher has ended
	if got, want := err.Error(), "exit status 1"; got != want {
		t.Errorf("child ended with %q, want %q: not interrupted", got, want)
	}
}

func TestChildInheritsNoVariable(t *testing.T) {
	t.Parallel()
	cmd := cleanCommand(t.Context(), account{}, "/usr/lib/x/postgres")
	want := []string{"PATH=/usr/lib/x:/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	if diff := cmp.Diff(want, cmd.Env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	if !cmd.SysProcAttr.Setpgid {
		t.Error("the child shares our process group, want its own: Ctrl-C is meant for us")
	}
}

func postmasterPID(t *testing.T, dir string) int {
	t.Helper()
	cluster, _ := clusterIn(filepath.Join(dir, "postgres"))
	p, err := readPostmaster(cluster)
	if err != nil {
		t.Fatal(err)
	}
	return p.pid
}
