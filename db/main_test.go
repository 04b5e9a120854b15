package db_test

import (
	"os"
	"testing"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }
