package localpg

import (
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// dieWithParent asks the kernel for a fast shutdown of the child when we die.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGINT }

// guard has nothing to add to the kernel's own signal.
func guard(*exec.Cmd) (release func(), err error) { return func() {}, nil }

// isPostmaster reports whether pid is a live postmaster of a cluster. It works
// in the cluster's folder; a zombie and a stranger do not.
func isPostmaster(pid int, cluster string) bool {
	cwd, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/cwd")
	if err != nil {
		return false
	}
	dir, err := os.Stat(cluster)
	return err == nil && os.SameFile(cwd, dir)
}
