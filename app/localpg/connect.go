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

// classAuthorization starts the SQLSTATEs of a refused login.
const classAuthorization = "28"

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

const findDatabaseSQL = "select 1 from pg_database where datname = '" + database + "'"

// createDatabase makes the database deskcomm unless it is there.
func createDatabase(ctx context.Context, c cluster) error {
	return withConn(ctx, c.url("postgres"), func(ctx context.Context, conn *pgconn.PgConn) error {
		found, err := conn.Exec(ctx, findDatabaseSQL).ReadAll()
		if err != nil || len(found[0].Rows) > 0 {
			return err
		}
		return conn.Exec(ctx, "create database "+database).Close()
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
