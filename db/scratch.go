package db

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// BlockedError says that a measurement could not begin, and why: nothing was
// measured and nothing is wrong with what it measures.
type BlockedError struct {
	Reason string
	Err    error // may be nil
}

func (e *BlockedError) Error() string { return e.Reason }
func (e *BlockedError) Unwrap() error { return e.Err }

// blocked makes a BlockedError of what Postgres refuses for want of a right, and
// of a server that is not there; any other error stays a surprise.
func blocked(reason string, err error) error {
	pg, answered := errors.AsType[*pgconn.PgError](err)
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	if connecting || answered && pg.Code == "42501" {
		return &BlockedError{Reason: reason, Err: err}
	}
	return err
}

// scratchTimeout bounds the making and the dropping of a scratch database each.
const scratchTimeout = time.Minute

// inScratch makes a database beside the one at the address, brings it to this program's
// schema, runs fn on a connection to it and drops it, whatever has happened. The
// database at url is not touched.
func inScratch(ctx context.Context, at string, fn func(ctx context.Context, c *pgx.Conn) error) (err error) {
	cfg, err := pgx.ParseConfig(at)
	if err != nil {
		return &BlockedError{Reason: "DATABASE_URL: " + errConnectionString.Error()}
	}
	cfg.ConnectTimeout = 10 * time.Second
	server, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return blocked("DATABASE_URL: the database does not answer", err)
	}
	defer server.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it has served
	name := "deskcomm_bench_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	if err := execWithin(ctx, server, "create database "+name+" template template0"); err != nil {
		return blocked("the role of DATABASE_URL may not create databases, and a measurement needs one of its own: alter role ... createdb", err)
	}
	defer func() {
		dropErr := execWithin(context.WithoutCancel(ctx), server, "drop database "+name+" with (force)")
		if dropErr != nil {
			err = errors.Join(err, fmt.Errorf("drop %s, which has to be done by hand now: %w", name, dropErr))
		}
	}()
	scratch := cfg.Copy()
	scratch.Database = name
	c, err := pgx.ConnectConfig(ctx, scratch)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", name, err)
	}
	defer c.Close(context.WithoutCancel(ctx)) //nolint:errcheck // its database goes too
	if err := checkScratch(ctx, c, name); err != nil {
		return err
	}
	if err := migrateScratch(ctx, scratch); err != nil {
		return blocked("the role of DATABASE_URL may not make the schema in a database of its own", err)
	}
	return fn(ctx, c)
}

// InScratch runs fn with the address of a database that it makes beside the one at
// url, with this program's schema, and drops, whatever has happened.
func InScratch(ctx context.Context, at string, fn func(ctx context.Context, url string) error) error {
	return inScratch(ctx, at, func(ctx context.Context, c *pgx.Conn) error { return fn(ctx, otherDatabase(at, c.Config().Database)) })
}

// otherDatabase is the address of another database of the same server, in either
// form that an address can have.
func otherDatabase(at, name string) string {
	u, err := url.Parse(at)
	if err != nil || !strings.HasPrefix(u.Scheme, "postgres") {
		return at + " dbname=" + name
	}
	u.Path = "/" + name
	return u.String()
}

func execWithin(ctx context.Context, c *pgx.Conn, sql string) error {
	ctx, cancel := context.WithTimeout(ctx, scratchTimeout)
	defer cancel()
	_, err := c.Exec(ctx, sql)
	return err
}

const scratchTablesSQL = `
	select current_database()::text as database, count(c.oid) as tables
	  from (select) x
	  left join pg_class c on c.relnamespace = 'public'::regnamespace`

// checkScratch refuses any database but the empty one that was just made: a
// pooler may lead to another than the one that was asked for.
func checkScratch(ctx context.Context, c *pgx.Conn, name string) error {
	var database string
	var tables int
	if err := scan(ctx, c, scratchTablesSQL, named{}, &database, &tables); err != nil {
		return wrap("look at the scratch database", err)
	}
	if database != name || tables > 0 {
		return &BlockedError{Reason: "connections do not lead to the database that was made for the measurement; set DATABASE_DIRECT_URL to the server without a pooler between"}
	}
	return nil
}

func migrateScratch(ctx context.Context, cfg *pgx.ConnConfig) error {
	m, err := newMigrator(cfg)
	if err != nil {
		return err
	}
	_, err = m.Up(ctx)
	return errors.Join(err, m.Close())
}
