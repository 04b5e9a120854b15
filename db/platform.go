package db

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// The methods of this file see every organization. They are for people who
// administer the platform, and each of them leaves an audit row.

const pageOfDeadEverywhereSQL = filterDeadSQL + `
	 order by x.died_at desc, x.delivery_id desc
	 limit @limit`

const listDeadEverywhereSQL = `with page as (` + pageOfDeadEverywhereSQL + `)` + deadColumnsSQL + `
	  join page on page.delivery_id = x.delivery_id
	 order by x.died_at desc, x.delivery_id desc`

const countDeadEverywhereSQL = `select count(*) from (` + pageOfDeadEverywhereSQL + `) x`

// DeadEverywhere lists what is dead in any organization, the latest death first,
// and counts it up to CountCap; CountCap and one means more.
func (d *DB) DeadEverywhere(ctx context.Context, actor Actor, f DeadFilter) (rows []DeadDelivery, n int, err error) {
	err = d.inTx(ctx, func(tx pgx.Tx) error {
		if rows, err = f.list(ctx, tx, listDeadEverywhereSQL, nil); err != nil {
			return wrap("list dead deliveries", err)
		}
		if n, err = f.count(ctx, tx, countDeadEverywhereSQL, nil); err != nil {
			return wrap("count dead deliveries", err)
		}
		return auditRead(ctx, tx, actor, "dead_delivery")
	})
	return rows, n, err
}

const showDeadEverywhereSQL = deadColumnsSQL + `
	 where x.delivery_id = any(@ids)
	 order by x.died_at desc, x.delivery_id desc`

// DeadEverywhereByID returns those of the deliveries that have ever died, in any
// organization, without their payloads.
func (d *DB) DeadEverywhereByID(ctx context.Context, actor Actor, ids ...uuid.UUID) (rows []DeadDelivery, err error) {
	err = d.inTx(ctx, func(tx pgx.Tx) error {
		if rows, err = collect[DeadDelivery](ctx, tx, showDeadEverywhereSQL, named{"ids": ids, "bare": true}); err != nil {
			return wrap("load dead deliveries", err)
		}
		return auditRead(ctx, tx, actor, "dead_delivery")
	})
	return rows, err
}

// OrganizationCountCap is how far each of many organizations is counted.
const OrganizationCountCap = 1000

// OrganizationDead is an organization and how much is dead in it, up to
// OrganizationCountCap; that and one means more.
type OrganizationDead struct {
	ID     uuid.UUID
	Name   string
	Status string
	Dead   int
}

// maxOrganizations bounds what one page names.
const maxOrganizations = 200

const listOrganizationsDeadSQL = `
	select o.id, o.name, o.status, d.n::int as dead
	  from (select * from organizations order by lower(name), id limit @limit) o
	 cross join lateral (
	    select count(*) as n
	      from (select from dead_delivery x
	              where x.organization_id = o.id and x.state in ('dead', 'uncertain')
	              order by x.died_at desc, x.delivery_id desc -- leads the planner to the index, whatever the share of o
	              limit @cap) x
	 ) d
	 order by lower(o.name), o.id`

// OrganizationsDead lists the organizations by name, 200 at most, with how much
// is dead or uncertain in each.
func (d *DB) OrganizationsDead(ctx context.Context, actor Actor) (list []OrganizationDead, err error) {
	err = d.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, planAnewSQL); err != nil { // how far to count decides how
			return wrap("list organizations", err)
		}
		args := named{"limit": maxOrganizations, "cap": OrganizationCountCap + 1}
		if list, err = collect[OrganizationDead](ctx, tx, listOrganizationsDeadSQL, args); err != nil {
			return wrap("list organizations", err)
		}
		return auditRead(ctx, tx, actor, "organization")
	})
	return list, err
}

const showOrganizationNameSQL = `
	select id as org_id, name as organization, timezone, '' as role from organizations where id = @id`

// OrganizationName returns one organization that a person who administers the
// platform has chosen, or bus.ErrNotFound. The look into it is audited by who
// enters it.
func (d *DB) OrganizationName(ctx context.Context, id uuid.UUID) (Membership, error) {
	m, err := one[Membership](ctx, d.pool, showOrganizationNameSQL, named{"id": id})
	return m, wrap("load organization", err)
}

// Record audits an act that is about no organization, or about all.
func (d *DB) Record(ctx context.Context, actor Actor, action, resourceType string, id uuid.UUID) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return insertAudit(ctx, d.pool, uuid.NullUUID{}, actor, auditEntry{action: action, resourceType: resourceType, resourceID: id})
}

// auditRead records that somebody looked across organizations.
func auditRead(ctx context.Context, tx pgx.Tx, actor Actor, what string) error {
	return insertAudit(ctx, tx, uuid.NullUUID{}, actor, auditEntry{action: "platform.read", resourceType: what})
}
