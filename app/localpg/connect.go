package localpg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	role     = "deskcomm" // superuser of the private cluster
	database = "deskcomm"

	pingTimeout = 5 * time.Second
)

// errNotReady stands for a server that is still being made or started.
var errNotReady = errors.New("not ready yet")

// SQLSTATEs told apart here.
const (
	invalidCatalogName = "3D000"
	duplicateDatabase  = "42P04"
	classAuthorization = "28"
)

// ping reports whether the server takes connections. Every error but a refused
// password is errNotReady too: it may be gone a moment later.
func ping(ctx context.Context, url string) error {
	err := withConn(ctx, url, func(ctx context.Context, conn *pgconn.PgConn) error { return conn.Ping(ctx) })
	if err == nil {
		return nil
	}
	if strings.HasPrefix(sqlState(err), classAuthorization) {
		return fmt.Errorf("the password in %s does not fit the cluster: %w", passwordFile, err)
	}
	return fmt.Errorf("%w: %w", errNotReady, err)
}

// createDatabase makes the database deskcomm unless it is there.
func createDatabase(ctx context.Context, c cluster) error {
	err := ping(ctx, c.url(database))
	if sqlState(err) != invalidCatalogName {
		return err
	}
	return withConn(ctx, c.url("postgres"), func(ctx context.Context, conn *pgconn.PgConn) error {
		err := conn.Exec(ctx, "create database "+database).Close()
		if sqlState(err) == duplicateDatabase {
			return nil
		}
		return err
	})
}

func withConn(ctx context.Context, url string, use func(context.Context, *pgconn.PgConn) error) (err error) {
	dial, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	conn, err := pgconn.Connect(dial, url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(dial))) }()
	return use(ctx, conn)
}

// permanent returns an error that waiting does not cure, else nil.
func permanent(err error) error {
	if errors.Is(err, errNotReady) {
		return nil
	}
	return err
}

func sqlState(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}
