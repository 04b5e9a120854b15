//go:build !linux

package app_test

import (
	"syscall"
	"testing"
)

func mountSmallDisk(t *testing.T, _ string) {
	t.Helper()
	t.Fatal("only on Linux")
}

// mayMount is false where the test does not know how.
func mayMount(*testing.T) bool { return false }

// dieWithThread does nothing: this system has no parent-death signal.
func dieWithThread(*syscall.SysProcAttr) {}
