package db

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/deskcomm/deskcomm/bus"
)

// Sessions keeps browser sessions in the table sessions, by a hash of their
// token. It starts no goroutine: PruneExpired deletes what has expired.
type Sessions struct{ pool *pgxpool.Pool }

// SessionStore returns the store of browser sessions.
func (d *DB) SessionStore() Sessions { return Sessions{pool: d.pool} }

const findSessionSQL = `select data from sessions where token = @token and expiry > clock_timestamp()`

// FindCtx returns what a session holds.
func (s Sessions) FindCtx(ctx context.Context, token string) (data []byte, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err = wrap("load session", scan(ctx, s.pool, findSessionSQL, named{"token": token}, &data))
	if errors.Is(err, bus.ErrNotFound) {
		return nil, false, nil
	}
	return data, err == nil, err
}

// One that was ended stays ended: a request that was under way meanwhile keeps what
// it had loaded.
const keepSessionSQL = `
	insert into sessions as s (token, data, expiry) values (@token, @data, @expiry)
	on conflict (token) do update set data = excluded.data, expiry = excluded.expiry where s.expiry > clock_timestamp()`

// CommitCtx keeps what a session holds.
func (s Sessions) CommitCtx(ctx context.Context, token string, data []byte, expiry time.Time) error {
	return s.exec(ctx, "keep session", keepSessionSQL, named{"token": token, "data": data, "expiry": expiry})
}

const endSessionSQL = `update sessions set data = '', expiry = clock_timestamp() where token = @token`

// DeleteCtx ends a session.
func (s Sessions) DeleteCtx(ctx context.Context, token string) error {
	return s.exec(ctx, "end session", endSessionSQL, named{"token": token})
}

func (s Sessions) exec(ctx context.Context, action, sql string, args named) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := s.pool.Exec(ctx, sql, args)
	return wrap(action, err)
}

// Find is FindCtx without a context, which the interface of sessions asks for too.
func (s Sessions) Find(token string) (data []byte, found bool, err error) {
	return s.FindCtx(context.Background(), token)
}

// Commit is CommitCtx without a context.
func (s Sessions) Commit(token string, data []byte, expiry time.Time) error {
	return s.CommitCtx(context.Background(), token, data, expiry)
}

// Delete is DeleteCtx without a context.
func (s Sessions) Delete(token string) error { return s.DeleteCtx(context.Background(), token) }
