// Package dbtest gives tests a migrated Postgres. It uses the server that
// TEST_DATABASE_URL names; make test starts one.
//
// A template database is built once for each state of the migration files. Every
// test package works on one clone of it; a test takes an organization of its own
// there, or a clone of its own when it looks at whole tables.
package dbtest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/db"
)

// shared is the clone of the running test package.
type shared struct {
	once sync.Once
	url  string
	err  error
}

var packageClone shared //nolint:gochecknoglobals // one for each test binary, dropped by Main

// Main runs a package's tests and drops its clone afterwards. Call it from
// TestMain: os.Exit(dbtest.Main(m)).
func Main(m *testing.M) int {
	code := m.Run()
	if packageClone.url != "" {
		if err := drop(context.Background(), packageClone.url); err != nil {
			fmt.Fprintln(os.Stderr, "drop test database:", err)
			return max(code, 1)
		}
	}
	return code
}

// URL returns the address of the package's clone.
func URL(tb testing.TB) string {
	tb.Helper()
	packageClone.once.Do(func() { packageClone.url, packageClone.err = clone(context.Background()) })
	if packageClone.err != nil {
		tb.Fatal(packageClone.err)
	}
	return packageClone.url
}

// Fresh returns the address of a clone that only this test uses.
func Fresh(tb testing.TB) string {
	tb.Helper()
	u, err := clone(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := drop(context.Background(), u); err != nil {
			tb.Error("drop test database:", err)
		}
	})
	return u
}

// Empty returns the address of a database without any table.
func Empty(tb testing.TB) string {
	tb.Helper()
	server, err := serverURL()
	if err != nil {
		tb.Fatal(err)
	}
	name := "dt_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	if err := execute(tb.Context(), server.String(), "create database "+name); err != nil {
		tb.Fatal(err)
	}
	u := withDatabase(server, name)
	tb.Cleanup(func() {
		if err := drop(context.Background(), u); err != nil {
			tb.Error("drop test database:", err)
		}
	})
	return u
}

// MasterKey is the key that test databases are opened with.
func MasterKey() []byte { return []byte("0123456789abcdef0123456789abcdef") }

// DB opens the package's clone.
func DB(tb testing.TB) *db.DB {
	tb.Helper()
	return Open(tb, URL(tb), db.Options{})
}

// Open opens a test database with the test key unless opts has another.
func Open(tb testing.TB, url string, opts db.Options) *db.DB {
	tb.Helper()
	if opts.MasterKey == nil {
		opts.MasterKey = MasterKey()
	}
	d, err := db.Open(tb.Context(), url, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(d.Close)
	return d
}

// Org makes an organization for one test.
func Org(tb testing.TB, d *db.DB) uuid.UUID {
	tb.Helper()
	org, err := d.CreateOrganization(tb.Context(), Actor(), tb.Name()[:min(len(tb.Name()), 100)])
	if err != nil {
		tb.Fatal(err)
	}
	return org.ID
}

// Token makes an API token of an organization; without scopes it has all.
func Token(tb testing.TB, d *db.DB, org uuid.UUID, scopes ...string) string {
	tb.Helper()
	if len(scopes) == 0 {
		scopes = db.Scopes()
	}
	var secret string
	err := d.InOrg(tb.Context(), org, Actor(), func(tx *db.OrgTx) (err error) {
		_, secret, err = tx.CreateToken(tb.Context(), db.NewToken{Name: "test token", Scopes: scopes})
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return secret
}

// Actor is who tests act as.
func Actor() db.Actor { return db.Actor{Kind: db.ActorSystem, Name: "test"} }

// Conn opens a plain connection for statements that no store has: rows moved in
// time, another session's lock.
func Conn(tb testing.TB, url string) *pgx.Conn {
	tb.Helper()
	c, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close(context.Background()) }) //nolint:errcheck // the test is over
	return c
}

// Exec runs one statement and returns how many rows it touched. Its connection is
// closed again: those of Conn stay until the test ends.
func Exec(tb testing.TB, url, sql string, args ...any) (int64, error) {
	tb.Helper()
	c, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		return 0, err
	}
	defer c.Close(context.Background()) //nolint:errcheck // it has served
	tag, err := c.Exec(tb.Context(), sql, args...)
	return tag.RowsAffected(), err
}

// Row reads one row into dest, over a connection that it closes again.
func Row(tb testing.TB, url, sql string, args []any, dest ...any) error {
	tb.Helper()
	c, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		return err
	}
	defer c.Close(context.Background()) //nolint:errcheck // it has served
	return c.QueryRow(tb.Context(), sql, args...).Scan(dest...)
}

// Eventually waits until ok returns true and fails the test when that takes
// longer than a minute: a bound for a hanging test, not an expectation.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline.C:
			tb.Fatalf("still not true after a minute: %s", what)
		case <-tb.Context().Done():
			tb.Fatalf("test ended while waiting: %s", what)
		case <-tick.C:
		}
	}
}

func serverURL() (*url.URL, error) {
	given := os.Getenv("TEST_DATABASE_URL")
	if given == "" {
		return nil, errors.New("TEST_DATABASE_URL is not set: run the tests with make test, which starts a Postgres for them")
	}
	u, err := url.Parse(given)
	if err != nil {
		return nil, errors.New("TEST_DATABASE_URL is not a URL")
	}
	return u, nil
}

// clone copies the template, which it builds first if nobody has.
func clone(ctx context.Context) (string, error) {
	server, err := serverURL()
	if err != nil {
		return "", err
	}
	template, err := ensureTemplate(ctx, server)
	if err != nil {
		return "", fmt.Errorf("build template database: %w", err)
	}
	name := "dt_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	if err := execute(ctx, server.String(), "create database "+name+" template "+template); err != nil {
		return "", fmt.Errorf("clone template database: %w", err)
	}
	return withDatabase(server, name), nil
}

// ensureTemplate builds the template under an advisory lock and gives it its
// name when it is complete, so that nobody clones half of one.
func ensureTemplate(ctx context.Context, server *url.URL) (string, error) {
	files, err := db.MigrationFiles()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(files)
	name := "dt_template_" + hex.EncodeToString(sum[:6])
	c, err := pgx.Connect(ctx, server.String())
	if err != nil {
		return "", err
	}
	defer c.Close(ctx) //nolint:errcheck // only read from
	if _, err := c.Exec(ctx, "select pg_advisory_lock(hashtextextended('dbtest', 0))"); err != nil {
		return "", err
	}
	var exists bool
	if err := c.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", name).Scan(&exists); err != nil || exists {
		return name, err
	}
	building := name + "_building"
	for _, sql := range []string{"drop database if exists " + building, "create database " + building} {
		if _, err := c.Exec(ctx, sql); err != nil {
			return "", err
		}
	}
	m, err := db.NewMigrator(withDatabase(server, building))
	if err != nil {
		return "", err
	}
	_, err = m.Up(ctx)
	if err := errors.Join(err, m.Close()); err != nil {
		return "", err
	}
	_, err = c.Exec(ctx, "alter database "+building+" rename to "+name)
	return name, err
}

func withDatabase(server *url.URL, name string) string {
	u := *server
	u.Path = "/" + name
	return u.String()
}

func drop(ctx context.Context, database string) error {
	u, err := url.Parse(database)
	if err != nil {
		return err
	}
	server, err := serverURL()
	if err != nil {
		return err
	}
	return execute(ctx, server.String(), "drop database if exists "+strings.TrimPrefix(u.Path, "/")+" with (force)")
}

func execute(ctx context.Context, url, sql string) error {
	c, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	_, err = c.Exec(ctx, sql)
	return errors.Join(err, c.Close(ctx))
}
