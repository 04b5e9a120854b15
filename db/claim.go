package db

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
)

// leaseLocked leases what has been locked and reads it with its events. The
// database's own lease_deliveries does the same; here no row has to pass through a
// function. When nothing has been locked there is one row, of nulls but for the
// first two columns.
const leaseLocked = `, lease as materialized (
	    select nextval('lease_token_seq') as token, clock_timestamp() as at
	), claimed as (
	    update delivery d
	       set lease_token = (select token from lease), due_at = (select at + @lease_time from lease), updated_at = (select at from lease)
	     where d.ctid = any ((select taken from locked)::tid[])
	    returning d.*
	)
	select l.crowded, l.lapsed, d.*
	  from locked l
	  left join (
	    select c.consumer_id, c.destination, c.organization_id, c.lane, c.seq, c.lease_token, r.name, c.attempts + c.earlier_attempts + 1,
	           c.attempts + 1, r.max_attempts, c.suspect, c.effect_at is not null, c.interactive, e.id, e.event_type, e.entity_kind, e.entity_id,
	           e.payload, e.metadata, e.created_at
	      from claimed c
	      join consumers r on r.id = c.consumer_id
	      join event_log e on e.id = c.event_id and e.organization_id = c.organization_id
	  ) d on true`

const claimFittingSQL = `
	with locked as materialized (
	    select *
	      from lock_fitting(@consumers, @limits, @expresses, @overflows, @shares, @held_consumers, @held_orgs, @held_destinations, @held, @suspect)
	)` + leaseLocked

const claimFlowsSQL = `
	with locked as materialized (
	    select lock_flows(@consumer_ids, @interactives, @orgs, @destinations, @counts) as taken, '{}'::text[] as crowded, 0 as lapsed
	)` + leaseLocked

const waitingFlowsSQL = `
	select consumer, consumer_id, organization_id as org_id, destination, interactive, due_at, waiting, most
	  from waiting_flows(@consumers, @after, @after_interactive, @rooms, @held, @depth)`

// Claim leases due deliveries of several consumers at once, in one round trip as
// long as a consumer may have all that is due. Where it may not, each flow is
// given its part, which takes two more; and one, when the last claim has left
// enough.
func (d *DB) Claim(ctx context.Context, c bus.Claim) ([]bus.Delivery, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if c.Again {
		if left, since := d.left.take(c.Wants); len(left) > 0 {
			if parts, enough := dealOut(c.Wants, left); enough {
				d.left.keep(left, since)
				return d.claimParts(ctx, parts)
			}
		}
	}
	args := limitColumns(c.Wants)
	args["suspect"], args["lease_time"] = c.Suspect, d.lease
	claim := d.claimed
	if c.Relay {
		claim = d.relayAndClaim
	}
	got, err := claim(ctx, claimFittingSQL, args)
	if err != nil {
		return nil, err
	}
	if len(got.crowded) > 0 {
		err = d.claimCrowded(ctx, c.Wants, args["consumers"], &got)
	}
	if got.lapsed > 0 {
		d.due()
	}
	if len(got.deliveries) > 0 {
		err = nil // they are leased, and what has failed is for the next claim
	}
	return got.deliveries, err
}

const freeLapsedSQL = `select free_lapsed(@consumers)`

// claimCrowded adds to got what the crowded of its wants get, and then ends the
// leases that have run out.
func (d *DB) claimCrowded(ctx context.Context, wants []bus.Want, consumers any, got *claim) error {
	more, err := d.claimFlows(ctx, crowdedWants(wants, *got))
	got.deliveries = append(got.deliveries, more...)
	if err != nil {
		return err
	}
	return wrap("end leases", scan(ctx, d.pool, freeLapsedSQL, named{"consumers": consumers}, &got.lapsed))
}

// claim is what has come of one statement that claims.
type claim struct {
	deliveries []bus.Delivery
	crowded    []string // consumers whose due work has to be dealt out
	lapsed     int      // leases that had run out and were ended
}

// claimed runs a statement that claims.
func (d *DB) claimed(ctx context.Context, sql string, args named) (claim, error) {
	rows, _ := d.pool.Query(ctx, sql, args) // its error comes back from rows
	got, err := readClaim(rows)
	return got, wrap("claim deliveries", err)
}

// relayAndClaim runs a statement that claims after relaying a batch, in one
// transaction and round trip.
func (d *DB) relayAndClaim(ctx context.Context, sql string, args named) (got claim, err error) {
	batch := &pgx.Batch{}
	batch.Queue(relayEventsSQL, named{"limit": RelayBatch})
	batch.Queue(sql, args)
	results := d.pool.SendBatch(ctx, batch)
	relayed := 0
	if err = results.QueryRow().Scan(&relayed); err == nil {
		rows, _ := results.Query() // its error comes back from rows
		got, err = readClaim(rows)
	}
	if closed := results.Close(); err == nil { // it has committed
		err = closed
	}
	if err != nil {
		return claim{}, wrap("relay events and claim deliveries", err)
	}
	if relayed == RelayBatch {
		d.emitted() // there may be more
	}
	return got, nil
}

// readClaim reads what a statement that claims returns.
func readClaim(rows pgx.Rows) (got claim, err error) {
	defer rows.Close()
	for rows.Next() {
		var v bus.Delivery
		e := &v.Event
		if rows.RawValues()[6] == nil { // seq
			err = rows.Scan(&got.crowded, &got.lapsed, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil)
			break
		}
		err = rows.Scan(&got.crowded, &got.lapsed, &v.ConsumerID, &v.Destination, &v.OrgID, &v.Lane, &v.Seq, &v.Token, &v.Consumer, &v.Attempt, &v.Budgeted,
			&v.MaxAttempts, &v.Suspect, &v.Unknown, &v.Interactive, &e.ID, &e.Type, &e.EntityKind, &e.EntityID, (*[]byte)(&e.Payload), (*[]byte)(&e.Metadata), &e.CreatedAt)
		if err != nil {
			break
		}
		e.OrgID, v.ID = v.OrgID, bus.DeliveryID(e.ID, v.Consumer, v.Destination)
		got.deliveries = append(got.deliveries, v)
	}
	rows.Close()
	if err == nil {
		err = rows.Err()
	}
	return got, err
}

// crowdedWants are the wants that have to be dealt out, without the slot that the
// suspect has taken.
func crowdedWants(wants []bus.Want, got claim) []bus.Want {
	taken := make(map[string]int)
	for _, v := range got.deliveries {
		taken[v.Consumer]++
	}
	byName := make(map[string]bus.Want, len(wants))
	for _, w := range wants {
		byName[w.Consumer] = w
	}
	crowded := make([]bus.Want, 0, len(got.crowded))
	for _, name := range got.crowded {
		w := byName[name]
		if w.Limit > 0 {
			w.Limit -= taken[name]
		} else {
			w.Overflow -= taken[name]
		}
		crowded = append(crowded, w)
	}
	return crowded
}

// claimFlows deals out what is due and claims it. How deep it has to look into
// flows of which many have little and few have much, it learns by trying.
func (d *DB) claimFlows(ctx context.Context, wants []bus.Want) ([]bus.Delivery, error) {
	args := turnColumns(wants)
	for depth := 1; ; depth *= 4 {
		args["depth"] = depth
		began := time.Now()
		flows, err := collect[waitingFlow](ctx, d.pool, waitingFlowsSQL, args)
		if err != nil {
			return nil, wrap("find who has due deliveries", err)
		}
		parts, enough := dealOut(wants, flows)
		if enough {
			d.left.keep(flows, began)
			return d.claimParts(ctx, parts)
		}
	}
}

// claimers is how many connections claim what was dealt out, each a piece of it,
// when there is enough for that to be worth it.
const (
	claimers  = 2
	leastEach = 100
)

// claimParts claims what was dealt out. An error is one of all pieces: what any of
// them has leased is there to be handled.
func (d *DB) claimParts(ctx context.Context, parts []part) (all []bus.Delivery, err error) {
	pieces := divide(parts, claimers, leastEach)
	got, errs := make([]claim, len(pieces)), make([]error, len(pieces))
	var claiming sync.WaitGroup
	for i, piece := range pieces {
		claiming.Go(func() {
			args := partColumns(piece)
			args["lease_time"] = d.lease
			got[i], errs[i] = d.claimed(ctx, claimFlowsSQL, args)
		})
	}
	claiming.Wait()
	for i := range got {
		all = append(all, got[i].deliveries...)
	}
	if len(all) > 0 {
		return all, nil
	}
	return nil, errors.Join(errs...)
}

// part is how much of a flow is to be claimed.
type part struct {
	*waitingFlow
	count int
}

// dealOut deals the flows of each want into parts, which it takes out of them. It
// takes nothing and returns false when one that would give all that was counted
// may have more.
func dealOut(wants []bus.Want, flows []waitingFlow) (parts []part, enough bool) {
	for _, w := range wants {
		room := roomOf(w)
		var mine []*waitingFlow
		var known []bus.Flow
		for i := range flows {
			if f := &flows[i]; f.Consumer == w.Consumer {
				mine = append(mine, f)
				known = append(known, bus.Flow{
					OrgID: f.OrgID, Destination: f.Destination, Interactive: f.Interactive, DueAt: f.DueAt, Waiting: min(f.Waiting, room),
				})
			}
		}
		for i, n := range bus.Deal(w, known) {
			if n == mine[i].Most && n < room {
				return nil, false
			}
			if n > 0 {
				parts = append(parts, part{mine[i], n})
			}
		}
	}
	for _, p := range parts {
		p.Waiting -= p.count
		p.Most -= p.count
	}
	return parts, true
}

// divide cuts parts into at most n pieces of the same size, none smaller than
// least when there are several.
func divide(parts []part, n, least int) (pieces [][]part) {
	total := 0
	for _, p := range parts {
		total += p.count
	}
	if total == 0 {
		return nil
	}
	size := max((total+n-1)/n, least)
	var piece []part
	room := size
	for _, p := range parts {
		for p.count > 0 {
			cut := p
			cut.count = min(p.count, room)
			piece = append(piece, cut)
			p.count -= cut.count
			if room -= cut.count; room == 0 {
				pieces, piece, room = append(pieces, piece), nil, size
			}
		}
	}
	if len(piece) > 0 {
		pieces = append(pieces, piece)
	}
	return pieces
}

// partColumns turns parts into one array for each of their columns.
func partColumns(parts []part) named {
	n := len(parts)
	consumers, interactives, counts := make([]int16, n), make([]bool, n), make([]int, n)
	orgs, destinations := make([]uuid.UUID, n), make([]uuid.UUID, n)
	for i, p := range parts {
		consumers[i], interactives[i], counts[i], orgs[i], destinations[i] = p.ConsumerID, p.Interactive, p.count, p.OrgID, p.Destination
	}
	return named{"consumer_ids": consumers, "interactives": interactives, "orgs": orgs, "destinations": destinations, "counts": counts}
}

// roomOf is the most that a want can get.
func roomOf(w bus.Want) int { return w.Limit + w.Express + w.Overflow }

// limitColumns turns wants into one array for each of their limits, and what they
// have in hand into more.
func limitColumns(wants []bus.Want) named {
	n := len(wants)
	names, limits, expresses, overflows, shares := make([]string, n), make([]int, n), make([]int, n), make([]int, n), make([]int, n)
	heldConsumers, heldOrgs, heldDestinations, held := []string{}, []uuid.UUID{}, []uuid.UUID{}, []int{}
	for i, w := range wants {
		names[i], limits[i], expresses[i], overflows[i], shares[i] = w.Consumer, w.Limit, w.Express, w.Overflow, w.Share
		for _, h := range w.InHand {
			heldConsumers, held = append(heldConsumers, w.Consumer), append(held, h.Count)
			heldOrgs, heldDestinations = append(heldOrgs, h.OrgID), append(heldDestinations, h.Destination)
		}
	}
	return named{
		"consumers": names, "limits": limits, "expresses": expresses, "overflows": overflows, "shares": shares,
		"held_consumers": heldConsumers, "held_orgs": heldOrgs, "held_destinations": heldDestinations, "held": held,
	}
}

// turnColumns turns wants into one array for each column of whose turn is next.
func turnColumns(wants []bus.Want) named {
	n := len(wants)
	names, rooms, held := make([]string, n), make([]int, n), make([]int, n)
	after, afterInteractive := make([]uuid.UUID, n), make([]uuid.UUID, n)
	for i, w := range wants {
		names[i], rooms[i], after[i], afterInteractive[i] = w.Consumer, roomOf(w), w.After, w.AfterInteractive
		orgs := make(map[uuid.UUID]bool)
		for _, h := range w.InHand {
			orgs[h.OrgID] = true
		}
		held[i] = len(orgs)
	}
	return named{"consumers": names, "after": after, "after_interactive": afterInteractive, "rooms": rooms, "held": held}
}
