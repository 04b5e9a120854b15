package db

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

var _ bus.Log = (*DB)(nil)

// LeaseTime is how long a claim or an extension lasts.
func (d *DB) LeaseTime() time.Duration { return d.lease }

const relayEventsSQL = `select relay_events(@limit)`

// RelayBatch is how many events one transaction relays.
const RelayBatch = 1000

// Relay moves one batch from the outbox to deliveries and returns how many
// events that were.
func (d *DB) Relay(ctx context.Context) (int, error) {
	var n int
	err := scan(ctx, d.pool, relayEventsSQL, named{"limit": RelayBatch}, &n)
	return n, wrap("relay events", err)
}

const extendLeasesSQL = `
	with mine as (
	    select d.consumer_id, d.destination, d.organization_id, d.lane, d.seq
	      from delivery d
	      join unnest(@consumer_ids::smallint[], @destinations::uuid[], @org_ids::uuid[], @lanes::bigint[], @seqs::bigint[], @tokens::bigint[])
	           as l (consumer_id, destination, organization_id, lane, seq, token) using (consumer_id, destination, organization_id, lane, seq)
	     where d.lease_token is not distinct from l.token
	     order by d.consumer_id, d.destination, d.organization_id, d.lane, d.seq
	       for update of d
	)
	update delivery d
	   set due_at = clock_timestamp() + @lease_time
	  from mine m
	 where d.consumer_id = m.consumer_id
	   and d.destination = m.destination
	   and d.organization_id = m.organization_id
	   and d.lane = m.lane
	   and d.seq = m.seq
	returning d.consumer_id, d.destination, d.organization_id as org_id, d.lane, d.seq, d.lease_token as token`

// Extend renews leases and returns those that another claim has taken.
func (d *DB) Extend(ctx context.Context, leases []bus.Lease) ([]bus.Lease, error) {
	args := leaseColumns(leases)
	args["lease_time"] = d.lease
	kept, err := collect[bus.Lease](ctx, d.pool, extendLeasesSQL, args)
	if err != nil {
		return nil, wrap("extend leases", err)
	}
	return missing(leases, kept), nil
}

const beginEffectSQL = `
	update delivery
	   set effect_at = coalesce(effect_at, clock_timestamp()), due_at = clock_timestamp() + @lease_time
	 where consumer_id = @consumer_id and destination = @destination and organization_id = @org_id and lane = @lane and seq = @seq
	   and lease_token is not distinct from @token`

// BeginEffect records that the effect of a claimed delivery may happen from now
// on. It returns bus.ErrLeaseLost when the delivery is not held under the lease.
func (d *DB) BeginEffect(ctx context.Context, l bus.Lease) error {
	tag, err := d.pool.Exec(ctx, beginEffectSQL, named{
		"consumer_id": l.ConsumerID, "destination": l.Destination, "org_id": l.OrgID, "lane": l.Lane, "seq": l.Seq, "token": l.Token,
		"lease_time": d.lease,
	})
	if err == nil && tag.RowsAffected() == 0 {
		return bus.ErrLeaseLost
	}
	return wrap("begin an effect", err)
}

// leaseColumns turns leases into one array for each column of their key.
func leaseColumns(leases []bus.Lease) named {
	n := len(leases)
	consumers, lanes, seqs, tokens := make([]int16, n), make([]int64, n), make([]int64, n), make([]int64, n)
	destinations, orgs := make([]uuid.UUID, n), make([]uuid.UUID, n)
	for i, l := range leases {
		consumers[i], destinations[i], orgs[i] = l.ConsumerID, l.Destination, l.OrgID
		lanes[i], seqs[i], tokens[i] = l.Lane, l.Seq, l.Token
	}
	return named{
		"consumer_ids": consumers, "destinations": destinations, "org_ids": orgs,
		"lanes": lanes, "seqs": seqs, "tokens": tokens,
	}
}

// missing returns those of all that are not in kept.
func missing(all, kept []bus.Lease) []bus.Lease {
	if len(all) == len(kept) {
		return nil
	}
	have := make(map[bus.Lease]bool, len(kept))
	for _, l := range kept {
		have[l] = true
	}
	var lost []bus.Lease
	for _, l := range all {
		if !have[l] {
			lost = append(lost, l)
		}
	}
	return lost
}
