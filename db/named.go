package db

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// named are the arguments of a statement by name; a missing or surplus one is an
// error.
type named = pgx.StrictNamedArgs

// collect reads all rows of a statement into structs whose fields are named like
// its columns. Like every call here it is bounded by callTimeout.
func collect[T any](ctx context.Context, c conn, sql string, args named) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	rows, _ := c.Query(ctx, sql, args) // its error comes back from rows
	return pgx.CollectRows(rows, pgx.RowToStructByName[T])
}

// one reads the only row of a statement; none is bus.ErrNotFound after translate.
func one[T any](ctx context.Context, c conn, sql string, args named) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	rows, _ := c.Query(ctx, sql, args) // its error comes back from rows
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[T])
}

// collectColumn reads the single column of all rows.
func collectColumn[T any](rows pgx.Rows) ([]T, error) {
	return pgx.CollectRows(rows, pgx.RowTo[T])
}

// scan reads the only row of a statement into dest.
func scan(ctx context.Context, c conn, sql string, args named, dest ...any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.QueryRow(ctx, sql, args).Scan(dest...)
}
