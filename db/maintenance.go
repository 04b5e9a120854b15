package db

import (
	"context"
)

// partitionsAhead is how many months of the log exist before they begin.
const partitionsAhead = 3

const ensurePartitionsSQL = `select ensure_event_partitions(@months)`

// EnsurePartitions makes the partitions of the log that are missing for the
// months to come. Running it again changes nothing.
func (d *DB) EnsurePartitions(ctx context.Context) error {
	_, err := d.pool.Exec(ctx, ensurePartitionsSQL, named{"months": partitionsAhead})
	return wrap("make partitions", err)
}

// pruneStep is how many rows of a table one statement deletes, so that none
// holds locks for long.
const pruneStep = 1000

// Locking the rows first keeps one whose life is prolonged at this moment.
const pruneExpiredSQL = `
	with keys as (
	    delete from idempotency_keys
	     where ctid = any(array(
	        select ctid from idempotency_keys where expires_at < clock_timestamp() limit @step for update skip locked))
	    returning 1
	), dedup as (
	    delete from event_dedup
	     where ctid = any(array(
	        select ctid from event_dedup where expires_at < clock_timestamp() limit @step for update skip locked))
	    returning 1
	), parked as (
	    delete from parked_message_updates
	     where ctid = any(array(
	        select ctid from parked_message_updates where expires_at < clock_timestamp() limit @step for update skip locked))
	    returning 1
	), ended as (
	    delete from sessions
	     where ctid = any(array(
	        select ctid from sessions where expiry < clock_timestamp() - interval '1 hour' limit @step for update skip locked))
	    returning 1
	), tries as (
	    delete from login_throttle
	     where ctid = any(array(
	        select ctid from login_throttle where updated_at < clock_timestamp() - @forgotten::interval limit @step for update skip locked))
	    returning 1
	)
	select greatest((select count(*) from keys), (select count(*) from dedup), (select count(*) from parked),
	                (select count(*) from ended), (select count(*) from tries))`

// A key whose job is unfinished is looked at again in a day.
const pruneSingletonsSQL = `
	with old as materialized (
	    select ctid as at, event_id from job_singleton where check_after < now() order by check_after limit @step for update skip locked
	), judged as materialized (
	    select at, job_state(event_id) is null as ended from old
	), gone as (
	    delete from job_singleton where ctid = any(array(select at from judged where ended))
	), kept as (
	    update job_singleton set check_after = now() + interval '1 day' where ctid = any(array(select at from judged where not ended))
	)
	select (select count(*) from judged)`

// firesKept is how long it is known what became of each instant of a schedule.
const firesKept = "30 days"

const pruneFiresSQL = `
	with gone as (
	    delete from schedule_fire
	     where ctid = any(array(
	        select ctid from schedule_fire where fired_at < now() - @kept::interval order by fired_at limit @step for update skip locked))
	    returning 1
	)
	select count(*) from gone`

// PruneExpired deletes what was kept for a while only: answers to idempotent
// requests, keys of emitted events, updates of messages that never came, browser
// sessions, counts of login tries, keys of jobs that have ended and instants of
// schedules. It does so step by step.
func (d *DB) PruneExpired(ctx context.Context) error {
	for _, prune := range []struct {
		sql  string
		args named
	}{
		{pruneExpiredSQL, named{"step": pruneStep, "forgotten": triesForgotten}},
		{pruneSingletonsSQL, named{"step": pruneStep}},
		{pruneFiresSQL, named{"step": pruneStep, "kept": firesKept}},
	} {
		if err := d.prune(ctx, prune.sql, prune.args); err != nil {
			return err
		}
	}
	return nil
}

// prune repeats a statement that says how many rows it dealt with.
func (d *DB) prune(ctx context.Context, sql string, args named) error {
	for {
		var most int
		if err := scan(ctx, d.pool, sql, args, &most); err != nil {
			return wrap("prune expired rows", err)
		}
		if most < pruneStep {
			return nil
		}
	}
}
