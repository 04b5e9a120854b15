package db_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

func TestMain(m *testing.M) {
	if task := os.Getenv(helperVariable); task != "" { //nolint:forbidigo // what a test tells its helper process
		if err := drainUntilTold(task); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(dbtest.Main(m))
}
