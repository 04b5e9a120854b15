package localpg

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"
)

// helperVariable turns the test binary into a process that tests can kill: "own"
// and a data directory, "watch" or "child".
const helperVariable = "LOCALPG_TEST_HELPER"

func TestMain(m *testing.M) {
	task, dir, _ := strings.Cut(os.Getenv(helperVariable), " ")
	var err error
	switch task {
	case "own":
		err = ownUntilTold(dir)
	case "watch":
		err = watchUntilTold()
	case "child":
		err = sayWhenInterrupted()
	default:
		goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
			_ = os.RemoveAll(pattern.folder)
			os.Exit(code)
		}))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// ownUntilTold opens the server, says so, and closes it when standard input ends.
func ownUntilTold(dir string) error {
	s, err := Open(context.Background(), Options{DataDir: dir})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return s.Close()
}

// watchUntilTold has a child and a watcher for it.
func watchUntilTold() error {
	child := cleanCommand(context.Background(), account{}, os.Args[0])
	child.Env, child.Stdout = []string{helperVariable + "=child"}, os.Stdout
	if err := child.Start(); err != nil {
		return err
	}
	if _, err := watch(child); err != nil {
		return err
	}
	fmt.Println("watched")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// sayWhenInterrupted stands for Postgres.
func sayWhenInterrupted() error {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	fmt.Println("ready")
	<-interrupted
	fmt.Println("interrupted")
	return nil
}

// helper is a running helper process.
type helper struct {
	cmd *exec.Cmd
	in  io.Closer // closing it tells the process to end in good order
	out *bufio.Reader
}

func startHelper(t *testing.T, task string) *helper {
	t.Helper()
	h := &helper{cmd: exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0])}
	h.cmd.Env = append(os.Environ(), helperVariable+"="+task)
	h.cmd.Stderr = os.Stderr
	in, err := h.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h.in, h.out = in, bufio.NewReader(out)
	t.Cleanup(func() {
		_ = in.Close()
		_ = h.cmd.Process.Kill()
		_ = h.cmd.Wait()
	})
	return h
}

// startOwner starts a process that owns the Postgres of dir and waits until it is up.
func startOwner(t *testing.T, dir string) *helper {
	t.Helper()
	h := startHelper(t, "own "+dir)
	h.says(t, "ready")
	return h
}

// says waits for lines of output, in any order.
func (h *helper) says(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	for range want {
		line, err := h.out.ReadString('\n')
		if err != nil {
			t.Fatalf("the helper said %q and then nothing (%v), want %q", got, err, want)
		}
		got = append(got, strings.TrimSuffix(line, "\n"))
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("the helper's words (-want +got):\n%s", diff)
	}
}

func (h *helper) kill(t *testing.T) {
	t.Helper()
	if err := h.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// dataDir returns a path that user postgres may reach, unlike t.TempDir.
func dataDir(t *testing.T, name string) string {
	t.Helper()
	parent, err := os.MkdirTemp("", "lpg") //nolint:usetesting // its folder is closed to others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(parent, name)
}

// pattern is a data directory that seeded copies: making a cluster is what takes
// longest here.
var pattern struct {
	once   sync.Once
	folder string
	err    error
}

func makePattern() {
	pattern.folder, pattern.err = os.MkdirTemp("", "lpg")
	if pattern.err != nil {
		return
	}
	if pattern.err = os.Chmod(pattern.folder, 0o755); pattern.err != nil {
		return
	}
	s, err := Open(context.Background(), Options{DataDir: filepath.Join(pattern.folder, "data")})
	if err != nil {
		pattern.err = err
		return
	}
	pattern.err = s.Close()
}

// seeded returns a data directory with a cluster, as one that was closed.
func seeded(t *testing.T, name string) string {
	t.Helper()
	pattern.once.Do(makePattern)
	if pattern.err != nil {
		t.Fatal(pattern.err)
	}
	dir := dataDir(t, name)
	if out, err := exec.CommandContext(t.Context(), "cp", "-a", filepath.Join(pattern.folder, "data"), dir).CombinedOutput(); err != nil {
		t.Fatalf("copy the cluster: %v: %s", err, out)
	}
	return dir
}

// open opens a server and closes it with the test.
func open(t *testing.T, dir string) *Server {
	t.Helper()
	return openWith(t, Options{DataDir: dir})
}

func openWith(t *testing.T, opts Options) *Server {
	t.Helper()
	s, err := Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeServer(t, s) })
	return s
}

func closeServer(t *testing.T, s *Server) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("Close() = %v, want nil", err)
	}
}

// run runs the server's loop until the test ends.
func run(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v, want nil", err)
		}
	})
}

// query returns the first column of the last row.
func query(ctx context.Context, url, sql string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := pgconn.Connect(ctx, url)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return "", err
	}
	last := results[len(results)-1]
	if len(last.Rows) == 0 {
		return "", nil
	}
	return string(last.Rows[0][0]), nil
}

func mustQuery(t *testing.T, url, sql string) string {
	t.Helper()
	got, err := query(t.Context(), url, sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return got
}

// eventually waits until done reports true.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
	defer cancel()
	if err := poll(ctx, 50*time.Millisecond, func() (bool, error) { return done(), nil }); err != nil {
		t.Errorf("gave up waiting until %s", what)
	}
}

// postgresIn lists the processes that work in folders below dir: a Postgres
// process works in its cluster.
func postgresIn(dir string) []string {
	var found []string
	links, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range links {
		if cwd, err := os.Readlink(link); err == nil && strings.HasPrefix(cwd, dir+"/") {
			found = append(found, link)
		}
	}
	return found
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root changes to another user")
	}
}

func newLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
