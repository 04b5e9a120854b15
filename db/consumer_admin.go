package db

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
)

// ConsumerCountCap is how far what waits for a consumer, and what is dead of it,
// is counted.
const ConsumerCountCap = 1000

// ConsumerRow is a consumer and how it is doing. Counts go up to
// ConsumerCountCap; that and one means more.
type ConsumerRow struct {
	Name         string
	EventTypes   []string // none when subscriptions decide
	Effect       bus.Effect
	Ordering     bus.Ordering
	External     bool // reads by the SQL contract
	PausedAt     *time.Time
	PausedBy     *string
	PausedReason *string
	Waiting      int        // unfinished, in hand included
	OldestDueAt  *time.Time // since when the longest of what is due waits
	Dead         int        // or uncertain
}

// Each part of a line walks one index no further than to the cap, whatever the
// share of the consumer is; the orders lead the planner to it.
const listConsumersSQL = `
	select c.name, c.event_types, c.effect, c.ordering, c.external, c.paused_at, c.paused_by, c.paused_reason,
	       (select count(*) from (
	          (select from delivery d where d.consumer_id = c.id and d.interactive and d.lease_token is null and not d.suspect order by d.due_at limit @cap)
	          union all
	          (select from delivery d where d.consumer_id = c.id and not d.interactive and d.lease_token is null and not d.suspect order by d.due_at limit @cap)
	          union all
	          (select from delivery d where d.consumer_id = c.id and d.lease_token is null and d.suspect order by d.due_at limit @cap)
	          union all
	          (select from delivery d where d.consumer_id = c.id and d.lease_token is not null order by d.due_at limit @cap)
	          limit @cap) w)::int as waiting,
	       least((select min(o.due_at)
	                from (values (true), (false)) k (interactive)
	               cross join lateral (
	                  select d.due_at from delivery d
	                   where d.consumer_id = c.id and d.interactive = k.interactive and d.lease_token is null and not d.suspect and d.due_at <= now()
	                   order by d.due_at limit 1) o),
	             (select d.due_at from delivery d where d.consumer_id = c.id and d.lease_token is null and d.suspect and d.due_at <= now()
	               order by d.due_at limit 1)) as oldest_due_at,
	       (select count(*) from (
	          select from dead_delivery x where x.consumer_id = c.id and x.state in ('dead', 'uncertain')
	           order by x.died_at desc, x.delivery_id desc limit @cap) x)::int as dead
	  from consumers c
	 order by c.name`

// Consumers lists the consumers by name.
func (d *DB) Consumers(ctx context.Context) (list []ConsumerRow, err error) {
	err = d.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, planAnewSQL); err != nil { // how far to count decides how
			return wrap("list consumers", err)
		}
		list, err = collect[ConsumerRow](ctx, tx, listConsumersSQL, named{"cap": ConsumerCountCap + 1})
		return wrap("list consumers", err)
	})
	return list, err
}

const pauseConsumerSQL = `
	update consumers set paused_at = clock_timestamp(), paused_by = @actor_name, paused_reason = @reason
	 where name = @name and paused_at is null
	returning null::timestamptz as paused_at, null::text as paused_reason`

// PauseConsumer lets nothing more be claimed for a consumer, until ResumeConsumer
// and whatever restarts. What is in hand, or is being claimed at this moment, comes
// to its end; emission and relay go on. It returns bus.ErrConflict when the
// consumer is paused already and bus.ErrNotFound when there is none of the name.
func (d *DB) PauseConsumer(ctx context.Context, actor Actor, name, reason string) error {
	if strings.TrimSpace(reason) == "" {
		return bus.Invalid("reason", "is required")
	}
	return d.changeConsumer(ctx, consumerChange{"consumer.paused", name, reason}, actor, pauseConsumerSQL, named{"name": name, "reason": reason, "actor_name": actor.Name})
}

const resumeConsumerSQL = `
	with was as (
	    select id, paused_at, paused_reason from consumers where name = @name and paused_at is not null for update
	)
	update consumers c set paused_at = null, paused_by = null, paused_reason = null
	  from was
	 where c.id = was.id
	returning was.paused_at, was.paused_reason`

// ResumeConsumer lets a paused consumer's deliveries be claimed again. It returns
// bus.ErrConflict when the consumer is not paused and bus.ErrNotFound when there
// is none of the name.
func (d *DB) ResumeConsumer(ctx context.Context, actor Actor, name, reason string) error {
	err := d.changeConsumer(ctx, consumerChange{"consumer.resumed", name, reason}, actor, resumeConsumerSQL, named{"name": name})
	if err == nil {
		d.due()
	}
	return err
}

// pausedSince is what a change of a consumer leaves to be audited beside itself.
type pausedSince struct {
	PausedAt     *time.Time
	PausedReason *string
}

const consumerExistsSQL = `select exists (select from consumers where name = @name)`

// consumerChange is one act of a person on a consumer.
type consumerChange struct{ action, name, reason string }

func (d *DB) changeConsumer(ctx context.Context, change consumerChange, actor Actor, sql string, args named) error {
	if err := checkReason(change.reason); err != nil {
		return err
	}
	err := d.inTx(ctx, func(tx pgx.Tx) error {
		was, err := one[pausedSince](ctx, tx, sql, args)
		if err != nil {
			return wrap(change.action, err)
		}
		metadata := map[string]any{"consumer": change.name, "reason": change.reason}
		if was.PausedAt != nil {
			metadata["paused_at"], metadata["paused_reason"] = was.PausedAt, was.PausedReason
		}
		return insertAudit(ctx, tx, uuid.NullUUID{}, actor, auditEntry{action: change.action, resourceType: "consumer", metadata: metadata})
	})
	if !errors.Is(err, bus.ErrNotFound) {
		return err
	}
	var exists bool
	if err := scan(ctx, d.pool, consumerExistsSQL, named{"name": change.name}, &exists); err != nil {
		return wrap(change.action, err)
	}
	if exists {
		return fmt.Errorf("%s: %w", change.action, bus.ErrConflict)
	}
	return err
}

// PausedConsumer is a consumer that a person has stopped for all organizations.
type PausedConsumer struct {
	Name         string
	PausedAt     time.Time
	PausedBy     string
	PausedReason string // for who administers the platform
}

const listPausedConsumersSQL = `
	select name, paused_at, coalesce(paused_by, '') as paused_by, coalesce(paused_reason, '') as paused_reason
	  from consumers where paused_at is not null order by name`

// PausedConsumers lists the consumers that are paused, by name.
func (d *DB) PausedConsumers(ctx context.Context) ([]PausedConsumer, error) {
	list, err := collect[PausedConsumer](ctx, d.pool, listPausedConsumersSQL, named{})
	return list, wrap("list paused consumers", err)
}
