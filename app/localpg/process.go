package localpg

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

const (
	fastPatience      = 20 * time.Second // for the checkpoint of a fast shutdown
	immediatePatience = 10 * time.Second // Postgres itself kills what is left after 5 s
)

// process is a child that ends with this process.
type process struct {
	cmd  *exec.Cmd
	pid  int
	done chan struct{} // closed once the child has ended and is reaped
	err  error         // how it ended; valid after done
}

// cleanCommand prepares a program as the account: own process group, so that a
// Ctrl-C meant for us does not reach it first; none of our variables, since any
// PG… would change what it does.
func cleanCommand(ctx context.Context, a account, path string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = "/" // initdb fails when it may not read its working folder
	cmd.Env = []string{"PATH=" + filepath.Dir(path) + ":/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.cred}
	return cmd
}

// spawn starts a child that gets SIGINT when this process dies.
//
// Linux sends the parent-death signal when the starting thread ends, not the
// process. So one goroutine keeps its thread from the start until the child has
// ended.
func spawn(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	dieWithParent(cmd.SysProcAttr)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		release, err := guard(cmd)
		if err != nil {
			started <- errors.Join(err, cmd.Process.Kill(), cmd.Wait())
			return
		}
		p.pid = cmd.Process.Pid
		started <- nil
		p.err = cmd.Wait()
		release()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// stop ends a postmaster: a fast shutdown first, harder when it takes too long.
// Nothing that was committed is lost either way.
func (p *process) stop() error {
	for _, step := range []struct {
		signal   syscall.Signal
		patience time.Duration
	}{
		{syscall.SIGINT, fastPatience},
		{syscall.SIGQUIT, immediatePatience},
		{syscall.SIGKILL, immediatePatience},
	} {
		_ = p.cmd.Process.Signal(step.signal) // it may have ended by itself
		if p.endsWithin(step.patience) {
			return nil
		}
	}
	return fmt.Errorf("postgres %d does not end", p.pid)
}

func (p *process) endsWithin(patience time.Duration) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.done:
		return true
	case <-timer.C:
		return false
	}
}
