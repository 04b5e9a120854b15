package db

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// settleDoneSQL ends deliveries that are done, with nothing to record of the
// attempt: what settleDeliveriesSQL does for them, without its detours. It
// returns the places of the leases that were no longer valid, from 1.
//
// Its verdicts come in the order of their keys, in which they are looked up and
// locked one by one; see there.
const settleDoneSQL = `
	with verdict as materialized (
	    select *
	      from unnest(@seqs::bigint[], @consumer_ids::smallint[], @destinations::uuid[], @tokens::bigint[])
	           with ordinality as v (seq, consumer_id, destination, token, n)
	), finished as (
	    delete from delivery d
	     using verdict v
	     where d.seq = v.seq and d.consumer_id = v.consumer_id and d.destination = v.destination
	       and d.lease_token is not distinct from v.token
	    returning d.organization_id, d.consumer_id, d.event_id, d.destination, d.attempts + 1 as attempts, v.n
	), receipts as (
	    insert into receipt (organization_id, consumer_id, outcome, first_event_id, last_event_id, event_ids, destinations, attempts)
	    select g.organization_id, g.consumer_id, 'done', g.event_ids[1], g.event_ids[cardinality(g.event_ids)], g.event_ids, g.destinations, g.attempts
	      from (select f.organization_id, f.consumer_id, array_agg(f.event_id) as event_ids, array_agg(f.destination) as destinations,
	                   array_agg(f.attempts::smallint) as attempts
	              from (select * from finished order by organization_id, consumer_id, event_id) f
	             group by f.organization_id, f.consumer_id) g
	)
	select v.n
	  from verdict v
	 where (select count(*) from finished) < cardinality(@seqs::bigint[])
	   and v.n not in (select n from finished)
	 order by v.n`

// isPlain reports whether a verdict is all that there is to settle.
func isPlain(s bus.Settlement) bool {
	d := s.Delivery
	return s.Verdict == bus.VerdictDone && d.Lane == 0 && d.Detail == nil && !d.Unknown && d.Destination == uuid.Nil
}

// settleDone settles deliveries that are all plain.
func (d *DB) settleDone(ctx context.Context, settlements []bus.Settlement) (lost []bus.Lease, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	n := len(settlements)
	leases := make([]bus.Lease, n)
	for i, s := range settlements {
		leases[i] = s.Delivery.Lease()
	}
	slices.SortFunc(leases, func(a, b bus.Lease) int { return compareKeys(a.Key, b.Key) })
	seqs, consumers, destinations, tokens := make([]int64, n), make([]int16, n), make([]uuid.UUID, n), make([]int64, n)
	for i, l := range leases {
		seqs[i], consumers[i], destinations[i], tokens[i] = l.Seq, l.ConsumerID, l.Destination, l.Token
	}
	rows, _ := d.pool.Query(ctx, settleDoneSQL, named{"seqs": seqs, "consumer_ids": consumers, "destinations": destinations, "tokens": tokens})
	numbers, err := collectColumn[int](rows)
	for _, n := range numbers {
		lost = append(lost, leases[n-1])
	}
	return lost, wrap("settle deliveries", err)
}

// compareKeys is the order in which rows are locked.
func compareKeys(a, b bus.Key) int {
	return cmp.Or(cmp.Compare(a.ConsumerID, b.ConsumerID), bytes.Compare(a.Destination[:], b.Destination[:]), bytes.Compare(a.OrgID[:], b.OrgID[:]),
		cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Seq, b.Seq))
}
