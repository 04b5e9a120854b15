package app_test

import (
	"syscall"
	"testing"
)

// mountSmallDisk mounts a file system in memory that has little more room than an
// empty cluster takes.
func mountSmallDisk(t *testing.T, dir string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=96m,mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// mayMount reports whether this process may mount a file system: root of a
// container often may not.
func mayMount(t *testing.T) bool {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		return false
	}
	return syscall.Unmount(dir, 0) == nil
}

// dieWithThread ends a child when the thread that starts it does: a test that is
// killed must leave no server.
func dieWithThread(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGQUIT }
