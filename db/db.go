package db

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	pgxuuid "github.com/vgarvardt/pgx-google-uuid/v5"
)

// callTimeout bounds one transaction, waiting for a connection included.
const callTimeout = 30 * time.Second

// Options are what a DB needs beside its address.
type Options struct {
	MasterKey []byte        // 32 bytes; encrypts secrets at rest; nil for a caller that touches none
	Lease     time.Duration // how long a claim lasts; 0 means DefaultLease
	MaxConns  int32         // 0 means 20
	Emitted   func()        // called after a commit that emitted; may be nil
	Due       func()        // called after a commit that made a delivery due; may be nil
}

// DefaultLease is the length of a lease. It is renewed each third, so a holder may
// miss two renewals; a crash delays what was in hand by no more than it.
const DefaultLease = 30 * time.Second

// DB is a pool of connections to one deskcomm database. It is safe for use by
// many goroutines; Close releases it.
type DB struct {
	pool    *pgxpool.Pool
	box     box
	lease   time.Duration
	inbound turns
	watch   *watch
	gauge   gauge
	left    leftover
	group   *group
	emitted func()
	due     func()
}

// conn is what a pool and a transaction share.
type conn interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Open connects to the database at url and proves it with one round trip. It
// does not migrate.
func Open(ctx context.Context, url string, opts Options) (*DB, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("DATABASE_URL: %w", errConnectionString)
	}
	cfg.MaxConns = 20
	if opts.MaxConns > 0 {
		cfg.MaxConns = opts.MaxConns
	}
	cfg.ConnConfig.ConnectTimeout = 10 * time.Second
	cfg.AfterConnect = func(_ context.Context, c *pgx.Conn) error {
		pgxuuid.Register(c.TypeMap()) // without it each goes through its text
		return nil
	}
	limitSessions(cfg)
	d := &DB{watch: &watch{}, lease: opts.Lease, emitted: opts.Emitted, due: opts.Due}
	if d.lease <= 0 {
		d.lease = DefaultLease
	}
	if d.emitted == nil {
		d.emitted = func() {}
	}
	if d.due == nil {
		d.due = func() {}
	}
	if opts.MasterKey != nil {
		if d.box, err = newBox(opts.MasterKey); err != nil {
			return nil, err
		}
	}
	err = d.connect(ctx, cfg)
	if refusesLimits(err) {
		leaveSessions(cfg)
		err = d.connect(ctx, cfg)
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// connect makes the pool and proves it.
func (d *DB) connect(ctx context.Context, cfg *pgxpool.Config) error {
	cfg.ConnConfig.Tracer = tracer{watch: d.watch, giveUp: func() { d.pool.Reset() }}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	d.pool, d.group = pool, newGroup(d)
	if err := d.Ping(ctx); err != nil {
		pool.Close()
		return err
	}
	return nil
}

// Close ends all connections; it waits for those in use, and for who waits for a
// shared commit.
func (d *DB) Close() {
	d.group.close()
	d.pool.Close()
}

// Ping makes one round trip to the database.
func (d *DB) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := d.pool.Ping(ctx); err != nil {
		return wrap("reach the database", err)
	}
	return nil
}

// txTries is how often a transaction is run that Postgres rolls back for the sake
// of another.
const txTries = 3

// inTx runs fn in one transaction as the owner, who sees every organization. When
// Postgres rolls it back for the sake of another transaction fn runs again, so it
// must not keep anything of a run that failed.
func (d *DB) inTx(ctx context.Context, fn func(tx pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var err error
	for range txTries {
		var refused error // what fn says, which it has wrapped
		err = pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
			refused = fn(tx)
			return refused
		})
		if refused == nil {
			err = wrap("run a transaction", err)
		}
		if !rolledBack(err) {
			break
		}
	}
	return err
}
