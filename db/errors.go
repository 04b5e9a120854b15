package db

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/deskcomm/deskcomm/bus"
)

// wrap names the action that failed and turns what the driver says into the
// errors of package bus that others branch on.
func wrap(action string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", action, translate(err))
}

func translate(err error) error {
	if errors.Is(err, bus.ErrUnavailable) {
		return err // translated already, inside a transaction
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return bus.ErrNotFound
	}
	pg, answered := errors.AsType[*pgconn.PgError](err)
	// A server that refuses a connection answers too.
	if _, connecting := errors.AsType[*pgconn.ConnectError](err); connecting || !answered {
		if unreachable(err) {
			return fmt.Errorf("%w: %w", bus.ErrUnavailable, err)
		}
		return err
	}
	switch pg.Code {
	case "22023", "23503", "42501": // raised by our functions, which name the field
		if pg.ColumnName != "" && pg.TableName == "" {
			return bus.Invalid(pg.ColumnName, pg.Message)
		}
	case "23505":
		return fmt.Errorf("%w: %s", bus.ErrConflict, pg.ConstraintName)
	case "22P02", "22P05", "22003", "54000", "54001": // text that jsonb cannot hold
		return bus.Invalid("payload", "must be JSON that the database can hold: no NUL, no unpaired surrogate, no number beyond 131072 digits, not nested thousands deep")
	case "55P03", "25P03", "25P04": // a lock was waited for too long, a transaction idled or lasted too long
		return fmt.Errorf("%w: %w", bus.ErrUnavailable, pg)
	}
	if known := trouble(pg.Code); known != nil {
		return fmt.Errorf("%w: %w", known, pg)
	}
	switch pg.Code[:2] {
	case "08", "40", "53", "57", "58": // connection, rolled back for another's sake, resources, operator intervention, the system below
		return fmt.Errorf("%w: %w", bus.ErrUnavailable, pg) // kept whole: rolledBack reads its code
	}
	return err
}

// Refused tells a server that knows no such role, password or database from one
// that cannot answer right now.
func Refused(err error) bool { return RefusedLogin(err) || RefusedName(err) }

// RefusedLogin reports whether a server knows no such role, or another password.
func RefusedLogin(err error) bool {
	pg, answered := errors.AsType[*pgconn.PgError](err)
	return answered && pg.Code[:2] == "28"
}

// RefusedName reports whether a server has no database of that name.
func RefusedName(err error) bool {
	pg, answered := errors.AsType[*pgconn.PgError](err)
	return answered && pg.Code == "3D000"
}

// rolledBack reports whether Postgres gave the transaction up for another's sake:
// a deadlock, or a conflict of serialization.
func rolledBack(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code == "40P01" || pg.Code == "40001")
}

// unreachable tells a connection that failed from a statement that did.
func unreachable(err error) bool {
	if errors.Is(err, context.Canceled) {
		return false
	}
	_, connect := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[net.Error](err)
	cut := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
	return connect || network || cut || pgconn.SafeToRetry(err)
}

// errConnectionString replaces the driver's complaint about a connection string,
// which repeats it with its password.
var errConnectionString = errors.New("must be a Postgres connection string, as in postgres://user:password@host:5432/database")
