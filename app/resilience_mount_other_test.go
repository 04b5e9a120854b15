//go:build !linux

package app_test

import "testing"

func mountSmallDisk(t *testing.T, _ string) {
	t.Helper()
	t.Fatal("only on Linux")
}

// mayMount is false where the test does not know how.
func mayMount(*testing.T) bool { return false }
