package app_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// program is the built binary; every test runs the very program that ships.
var program struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	code := dbtest.Main(m)
	if err := closeBrowser(); err != nil {
		fmt.Fprintln(os.Stderr, "close the browser:", err)
		code = max(code, 1)
	}
	if program.dir != "" {
		os.RemoveAll(program.dir) //nolint:errcheck // a temporary directory
	}
	os.Exit(code)
}

func binary(t *testing.T) string {
	t.Helper()
	program.once.Do(func() {
		program.dir, program.err = os.MkdirTemp("", "deskcomm-test-") //nolint:usetesting // outlives the test that builds it
		if program.err != nil {
			return
		}
		out, err := exec.CommandContext(context.Background(), "go", "build", "-race", "-o", filepath.Join(program.dir, "deskcomm"), "..").CombinedOutput()
		if err != nil {
			program.err = fmt.Errorf("build: %w\n%s", err, out)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return filepath.Join(program.dir, "deskcomm")
}

// dataDir is a directory that the database's user can reach too.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "deskcomm-data-") //nolint:usetesting // the database's user cannot pass through t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // Postgres runs as another user
		t.Fatal(err)
	}
	return filepath.Join(dir, "data")
}

// install is one installation: a place for data and the variables of its
// processes.
type install struct {
	*testing.T
	dir string
	env []string
}

// onPrivate is an installation with a Postgres of its own.
func onPrivate(t *testing.T, env ...string) install {
	t.Helper()
	dir := dataDir(t)
	return install{T: t, dir: dir, env: append(env, "DESKCOMM_DATA_DIR="+dir)}
}

// onShared is an installation on a fresh database of the test server.
func onShared(t *testing.T, env ...string) install {
	t.Helper()
	in := onPrivate(t, env...)
	in.env = append(in.env, "DATABASE_URL="+dbtest.Fresh(t))
	return in
}

func (in install) command(args ...string) *exec.Cmd {
	in.Helper()
	cmd := exec.CommandContext(context.Background(), binary(in.T), args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + in.dir, "DESKCOMM_LOG_FORMAT=json"}, in.env...)
	return cmd
}

// run executes a command and returns what it printed and its exit code.
func (in install) run(stdin string, args ...string) (stdout, stderr string, code int) {
	in.Helper()
	cmd := in.command(args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if cmd.ProcessState == nil {
		in.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// runJSON executes a command that must succeed and reads its JSON.
func (in install) runJSON(stdin string, args ...string) map[string]any {
	in.Helper()
	out, errs, code := in.run(stdin, append(args, "--json")...)
	if code != 0 {
		in.Fatalf("deskcomm %v = exit %d: %s", args, code, errs)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		in.Fatalf("deskcomm %v printed %q: %v", args, out, err)
	}
	return v
}

// setUp creates the first organization and returns its id and API token.
func (in install) setUp() (org, token string) {
	in.Helper()
	v := in.runJSON("correct horse battery\n", "setup", "--organization", "Loja Ipê", "--email", "ana@example.com", "--password-file", "-")
	return v["organization_id"].(string), v["api_token"].(string)
}

// process is a running server.
type process struct {
	install
	cmd  *exec.Cmd
	base string
	log  *transcript
	done chan error
}

// transcript is what a process has printed so far.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *transcript) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *transcript) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// serve starts a server on a free port and waits until it is ready.
func (in install) serve(env ...string) *process {
	in.Helper()
	p := in.start(env...)
	dbtest.Eventually(in.T, "the server is ready", func() bool {
		status, _ := p.call("GET", "/readyz", "", nil)
		return status == http.StatusOK
	})
	return p
}

// start starts a server on a free port and waits until it listens.
func (in install) start(env ...string) *process {
	in.Helper()
	in.env = append(append([]string{}, in.env...), env...)
	p := &process{install: in, log: &transcript{}, done: make(chan error, 1)}
	p.cmd = in.command("serve", "--addr", "127.0.0.1:0")
	pipe, err := p.cmd.StderrPipe()
	if err != nil {
		in.Fatal(err)
	}
	p.cmd.Stdout = p.log
	if err := p.cmd.Start(); err != nil {
		in.Fatal(err)
	}
	ready := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(io.TeeReader(pipe, p.log))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var line struct{ Msg, Addr string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "ready" {
				ready <- line.Addr
			}
		}
		p.done <- p.cmd.Wait()
	}()
	in.Cleanup(func() {
		p.kill()
		in.awaitPostgresEnd()
	})
	select {
	case addr := <-ready:
		p.base = "http://" + addr
	case err := <-p.done:
		p.done <- err
		in.Fatalf("the server ended before it was ready: %v\n%s", err, p.log)
	case <-in.Context().Done():
		in.Fatal("the test ended before the server was ready")
	}
	return p
}

// awaitPostgresEnd waits until the Postgres of a killed server has ended too: it
// still writes into the directory that the test removes next. The context of the
// test has ended by then.
func (in install) awaitPostgresEnd() {
	in.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for len(in.postgresProcesses()) > 0 {
		select {
		case <-deadline.C:
			in.Error("Postgres still runs a minute after its server was killed")
			return
		case <-tick.C:
		}
	}
}

// kill ends the process as a power cut would.
func (p *process) kill() {
	if p.cmd.ProcessState == nil {
		p.cmd.Process.Kill() //nolint:errcheck // it may have ended
		p.done <- <-p.done
	}
}

// signal ends the process as an operator would and returns its exit code.
func (p *process) signal(s os.Signal) int {
	p.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.Fatal(err)
	}
	p.done <- <-p.done
	return p.cmd.ProcessState.ExitCode()
}

// call makes one API request and returns the status and the JSON of the answer.
func (p *process) call(method, path, token string, body any) (int, map[string]any) {
	p.Helper()
	return p.do(p.request(method, path, token, body))
}

func (p *process) request(method, path, token string, body any) *http.Request {
	p.Helper()
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case []byte:
		reader = bytes.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			p.Fatal(err)
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, p.base+path, reader)
	if err != nil {
		p.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if reader != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req
}

func (p *process) do(req *http.Request) (int, map[string]any) {
	p.Helper()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil
	}
	defer res.Body.Close() //nolint:errcheck // read whole
	var v map[string]any
	if res.StatusCode != http.StatusNoContent {
		if err := json.NewDecoder(res.Body).Decode(&v); err != nil {
			p.Errorf("%s %s answered %d without JSON: %v", req.Method, req.URL.Path, res.StatusCode, err)
		}
	}
	return res.StatusCode, v
}

// must makes a request that has to be answered with status.
func (p *process) must(status int, method, path, token string, body any) map[string]any {
	p.Helper()
	got, v := p.call(method, path, token, body)
	if got != status {
		p.Fatalf("%s %s = %d %v, want %d", method, path, got, v, status)
	}
	return v
}

// freeAddr is an address nobody listens on right now.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // only its port was wanted
	return l.Addr().String()
}

// status asks for a page and returns the status alone.
func (p *process) status(path string) int {
	p.Helper()
	req, err := http.NewRequestWithContext(p.Context(), http.MethodGet, p.base+path, nil)
	if err != nil {
		p.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		p.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // only the status is wanted
	return res.StatusCode
}
