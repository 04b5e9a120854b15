//go:build unix && !linux

package localpg

import (
	"context"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// dieWithParent does nothing: this system has no parent-death signal.
func dieWithParent(*syscall.SysProcAttr) {}

// guard stands in for the missing signal.
func guard(cmd *exec.Cmd) (release func(), err error) { return watch(cmd) }

// isPostmaster reports whether pid is a live postmaster of a cluster, whose
// folder is on its command line.
func isPostmaster(pid int, cluster string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := cleanCommand(ctx, account{}, "/bin/ps", "-o", "command=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.Contains(string(out), "-D "+cluster)
}
