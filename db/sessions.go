package db

import "github.com/alexedwards/scs/pgxstore"

// SessionStore keeps browser sessions in the table sessions. It starts no
// goroutine: PruneExpired deletes what has expired.
func (d *DB) SessionStore() *pgxstore.PostgresStore {
	return pgxstore.NewWithCleanupInterval(d.pool, 0)
}
