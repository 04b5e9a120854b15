package db_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

func TestMigrationsGoUpDownAndUpAgain(t *testing.T) {
	t.Parallel()
	url := dbtest.Empty(t)
	m, err := db.NewMigrator(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})

	applied, err := m.Up(t.Context())
	if err != nil || applied == 0 {
		t.Fatalf("Up() = %d files, %v, want some", applied, err)
	}
	first := tables(t, url)
	for {
		version, err := m.Down(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if version == 0 {
			break
		}
	}
	if got := tables(t, url); !cmp.Equal(got, []string{"goose_db_version"}) {
		t.Errorf("tables left after going down = %v, want only goose's own", got)
	}
	if again, err := m.Up(t.Context()); err != nil || again != applied {
		t.Fatalf("Up() again = %d files, %v, want %d", again, err, applied)
	}
	if diff := cmp.Diff(first, tables(t, url)); diff != "" {
		t.Errorf("tables differ after up, down, up (-first +second):\n%s", diff)
	}
}

func TestNewerSchemaIsRefusedWithBothVersions(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	c := dbtest.Conn(t, url)
	if _, err := c.Exec(t.Context(), "insert into goose_db_version (version_id, is_applied) values (99999, true)"); err != nil {
		t.Fatal(err)
	}
	d := dbtest.Open(t, url, db.Options{})
	if err := d.CheckSchema(t.Context()); err == nil || !strings.Contains(err.Error(), "99999") {
		t.Errorf("CheckSchema() = %v, want a refusal that names both versions", err)
	}
	m, err := db.NewMigrator(url)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close() //nolint:errcheck // the test is over
	if _, err := m.Up(t.Context()); err == nil || !strings.Contains(err.Error(), "99999") {
		t.Errorf("Up() = %v, want a refusal that names both versions", err)
	}
}

func tables(t *testing.T, url string) []string {
	t.Helper()
	rows, err := dbtest.Conn(t, url).Query(t.Context(), `
		select relname from pg_class
		 where relnamespace = 'public'::regnamespace and relkind in ('r', 'p', 'v') order by relname`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return names
}
