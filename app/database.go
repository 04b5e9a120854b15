package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/deskcomm/deskcomm/app/localpg"
	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

// database is where the data is: a server that somebody else runs, or the
// private one.
type database struct {
	url    string
	direct string          // for migrations
	server *localpg.Server // nil when DATABASE_URL is set
}

// keep looks after the private Postgres until the returned function is called: it
// may be another process's, which can end at any moment, also while this one is
// still starting.
func (d database) keep(ctx context.Context) (stop func()) {
	if d.server == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var keeper sync.WaitGroup
	keeper.Go(func() { _ = d.server.Run(ctx) }) // returns when ctx ends, and then nil
	return func() {
		cancel()
		keeper.Wait()
	}
}

func (d database) close() error {
	if d.server == nil {
		return nil
	}
	return d.server.Close()
}

// locate finds the database of a command. It never makes a new one.
func (c Common) locate(ctx context.Context, logger *slog.Logger) (database, error) {
	if c.DatabaseURL == "" && !localpg.Exists(c.DataDir) {
		return database{}, errNoData
	}
	return c.provide(ctx, logger)
}

// provide finds the database, and makes the private one when there is none.
func (c Common) provide(ctx context.Context, logger *slog.Logger) (database, error) {
	if c.DatabaseURL != "" {
		return database{url: c.DatabaseURL, direct: cmp.Or(c.DatabaseDirectURL, c.DatabaseURL)}, nil
	}
	server, err := localpg.Open(ctx, localpg.Options{DataDir: c.DataDir, Logger: logger, Durable: true})
	if err != nil {
		return database{}, err
	}
	return database{url: server.URL(), direct: server.URL(), server: server}, nil
}

// bootPatience is how long a start waits for a database that is starting too.
const bootPatience = 30 * time.Second

// migrate brings the schema up to date.
func (d database) migrate(ctx context.Context, logger *slog.Logger) error {
	m, err := db.NewMigrator(d.direct)
	if err != nil {
		return err
	}
	n, err := m.Up(ctx)
	if n > 0 {
		logger.InfoContext(ctx, "schema migrated", "files", n)
	}
	return errors.Join(err, m.Close())
}

// open connects, waiting for a server that does not answer yet.
func (d database) open(ctx context.Context, logger *slog.Logger, opts db.Options) (*db.DB, error) {
	patience := time.NewTimer(bootPatience)
	defer patience.Stop()
	for first := true; ; first = false {
		store, err := db.Open(ctx, d.url, opts)
		if err == nil || !errors.Is(err, bus.ErrUnavailable) {
			return store, err
		}
		if db.Refused(err) {
			return nil, fmt.Errorf("DATABASE_URL: %w", err)
		}
		if first {
			logger.WarnContext(ctx, "the database does not answer yet", "error", err)
		}
		again := time.NewTimer(time.Second)
		select {
		case <-ctx.Done():
			again.Stop()
			return nil, ctx.Err()
		case <-patience.C:
			again.Stop()
			return nil, fmt.Errorf("DATABASE_URL: no answer for %s: %w", bootPatience, err)
		case <-again.C:
		}
	}
}

// withDB runs fn on the database of a command and closes everything after it.
func (c Common) withDB(ctx context.Context, con console, fn func(store *db.DB) error) (err error) {
	logger := c.quiet().logger(con.err)
	where, err := c.locate(ctx, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, where.close()) }()
	store, err := db.Open(ctx, where.url, db.Options{MaxConns: 2})
	if err != nil {
		return err
	}
	defer store.Close()
	if err := store.CheckSchema(ctx); err != nil {
		return err
	}
	return fn(store)
}
