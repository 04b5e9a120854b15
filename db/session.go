package db

import (
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// sessionLimits are what the server itself ends. Our own deadlines are shorter;
// these are for a process that hangs or is stopped, whose locks nobody else could
// take. The wait for a lock is the exception: a statement that queues for a strong
// one keeps everybody behind it, so it gives up first and comes again.
func sessionLimits() map[string]string {
	return map[string]string{
		"statement_timeout":                   "60s",
		"lock_timeout":                        "10s",
		"idle_in_transaction_session_timeout": "60s",
	}
}

// limitSessions adds the limits to what connections begin with, unless the
// connection string has its own.
func limitSessions(cfg *pgxpool.Config) {
	for name, value := range sessionLimits() {
		if _, given := cfg.ConnConfig.RuntimeParams[name]; !given {
			cfg.ConnConfig.RuntimeParams[name] = value
		}
	}
}

// leaveSessions takes the limits out again.
func leaveSessions(cfg *pgxpool.Config) {
	for name := range sessionLimits() {
		delete(cfg.ConnConfig.RuntimeParams, name)
	}
}

// refusesLimits reports whether a transaction pooler stands between: it hands a
// server's sessions from one client to the next, and takes no such settings.
func refusesLimits(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "08P01" && strings.Contains(pg.Message, "startup parameter")
}
