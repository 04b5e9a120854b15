package db_test

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// TestMain runs the tests, or is one of the workers that they start or kill.
func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": "30", "rapid.steps": "200"} { // unless they are given
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	flag.Parse()
	err := error(nil)
	switch task := os.Getenv(helperVariable); { //nolint:forbidigo // what a test tells its helper process
	case task != "":
		err = drainUntilTold(task)
	case *workerTask != "":
		err = work(*workerTask)
	default:
		os.Exit(dbtest.Main(m))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
