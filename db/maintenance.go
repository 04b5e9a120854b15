package db

import "context"

// partitionsAhead is how many months of the log exist before they begin.
const partitionsAhead = 3

const ensurePartitionsSQL = `select ensure_event_partitions(@months)`

// EnsurePartitions makes the partitions of the log that are missing for the
// months to come. Running it again changes nothing.
func (d *DB) EnsurePartitions(ctx context.Context) error {
	_, err := d.pool.Exec(ctx, ensurePartitionsSQL, named{"months": partitionsAhead})
	return wrap("make partitions", err)
}

const pruneExpiredSQL = `
	with keys as (
	    delete from idempotency_keys where expires_at < clock_timestamp()
	), dedup as (
	    delete from event_dedup where expires_at < clock_timestamp()
	)
	delete from parked_message_updates where expires_at < clock_timestamp()`

// PruneExpired deletes what was kept for a while only: answers to idempotent
// requests, keys of emitted events, updates of messages that never came.
func (d *DB) PruneExpired(ctx context.Context) error {
	_, err := d.pool.Exec(ctx, pruneExpiredSQL)
	return wrap("prune expired rows", err)
}
