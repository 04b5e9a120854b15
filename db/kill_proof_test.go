package db_test

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// conclude gathers how often each reader has ended each event, and how often
// effects outside have happened.
func (k *killing) conclude() {
	k.Helper()
	_, err := k.conn.Exec(k.Context(), `
		create table ending as
		with ended as (
		    select r.consumer_id, u.event_id, r.outcome as state
		      from receipt r cross join lateral unnest(r.event_ids) as u (event_id)
		    union all
		    select consumer_id, event_id, state from dead_delivery
		)
		select e.id as event_id, c.name as consumer, coalesce(x.states, '{}') as states, coalesce(l.times, 0) as times
		  from event_log e
		 cross join consumers c
		  left join (select consumer_id, event_id, array_agg(state) as states from ended group by 1, 2) x on x.consumer_id = c.id and x.event_id = e.id
		  left join (select consumer, event_id, count(*) as times from ledger group by 1, 2) l on l.consumer = c.name and l.event_id = e.id;
		create table sending as
		select n.event_id, n.states,
		       count(*) filter (where m.mark = 'beginning') as beginning, count(*) filter (where m.mark = 'begun') as begun,
		       count(*) filter (where m.mark = 'saying' and b.mark is not null) as saying, count(*) filter (where m.mark = 'said') as said
		  from ending n
		  left join mark m on m.event_id = n.event_id
		  left join mark b on b.event_id = m.event_id and b.token = m.token and b.mark = 'begun' and m.mark <> 'begun'
		 where n.consumer = 'kill-once-worker'
		 group by n.event_id, n.states`)
	if err != nil {
		k.Fatal(err)
	}
}

// wantAllEnded fails when an event was lost: each is done for each reader, or
// uncertain for the one whose effect must not be repeated.
func (k *killing) wantAllEnded(emitted []uuid.UUID) {
	k.Helper()
	if n := k.count("select count(*) from event_log where id = any ($1)", emitted); n != len(emitted) || n == 0 {
		k.Errorf("%d of the %d emitted events are in the log, want all", n, len(emitted))
	}
	k.none("deliveries are not ended once, as they may", `
		select event_id || ' of ' || consumer || ': ' || states::text from ending
		 where states <> '{done}' and not (states = '{uncertain}' and consumer = $1)`, onceWorker)
	points := make(map[point]int)
	for _, d := range k.deaths {
		points[d.point]++
	}
	k.Logf("%d events, killed %d times: %v", len(emitted), len(k.deaths), points)
	k.Logf("deliveries: %v", k.counts(`select consumer || ' ' || array_to_string(states, ' ') as name, count(*)::int as n from ending group by 1`))
}

// wantNoDoubles fails when an effect has not happened as often as it may.
func (k *killing) wantNoDoubles() {
	k.Helper()
	k.none("local effects have not happened exactly once", `
		select e.id || ' ' || count(a.id) from event_log e
		  left join audit_log a on a.resource_id = e.id and a.action = $1
		 where e.event_type = 'custom.kill'
		 group by e.id having count(a.id) <> 1`, killEffect)
	k.none("effects that may happen once have not, or twice", `
		select event_id || ' ' || times || ' times, ' || states::text from ending
		 where consumer = $1 and (times > 1 or states = '{done}' and times <> 1)`, onceWorker)
	k.none("effects have not happened", `select event_id::text from ending where consumer = $1 and times < 1`, atLeastOnceWorker)
	k.none("effects had a second delivery id", `select event_id::text from ledger group by consumer, event_id having count(distinct delivery_id) > 1`)
	k.Logf("effects, by how often they have happened: %v", k.counts(`
		select consumer || ' ' || times as name, count(*)::int as n from ending where consumer <> 'kill-local-worker' group by 1`))
}

// wantUncertainWhatBegan compares what workers recorded before they died with
// what has become of it. Between its begin and its word an effect is uncertain;
// while the begin or the word is being written, nobody but the database knows.
func (k *killing) wantUncertainWhatBegan() {
	k.Helper()
	k.none("effects began twice", `select event_id::text from sending where begun > 1`)
	k.none("deliveries are uncertain whose effect never began", `select event_id::text from sending where states = '{uncertain}' and beginning = 0`)
	k.none("deliveries are done whose worker died before it had begun to say so", `
		select event_id::text from sending where states = '{done}' and (begun <> 1 or saying = 0)`)
	k.none("deliveries are uncertain whose worker has said that they are done", `
		select event_id::text from sending where states = '{uncertain}' and said > 0`)
	k.none("effects began and are neither done nor uncertain", `
		select event_id::text from sending where begun > 0 and states not in ('{done}', '{uncertain}')`)
	k.Logf("sending: %v", k.counts(`
		select array_to_string(states, ' ') || ', begun ' || begun || ', said ' || said as name, count(*)::int as n from sending group by 1`))
}

// claimedRow is what a worker recorded of a claim.
type claimedRow struct {
	Worker string
	heldLease
	At time.Time
}

// wantClaimedAgain fails when something that the killed held was not claimed
// again, and tells how long that took.
func (k *killing) wantClaimedAgain() {
	k.Helper()
	type name struct {
		consumer int
		event    uuid.UUID
	}
	living := make(map[int64]bool)
	claims := make(map[name][]claimedRow)
	for _, c := range rowsOf[claimedRow](k, "select worker, consumer_id, event_id, token, at from claimed order by token") {
		living[c.Token] = living[c.Token] || c.Worker == "living"
		claims[name{c.ConsumerID, c.EventID}] = append(claims[name{c.ConsumerID, c.EventID}], c)
	}
	var first, all []time.Duration
	held, most, settledByTheDead := 0, 0, 0
	for _, d := range k.deaths {
		var waits []time.Duration
		for _, l := range d.leases {
			if living[l.Token] {
				continue
			}
			again := slices.IndexFunc(claims[name{l.ConsumerID, l.EventID}], func(c claimedRow) bool { return c.Token > l.Token })
			if again < 0 {
				settledByTheDead++ // its statement has outlived it: that each delivery has ended is seen above
				continue
			}
			waits = append(waits, claims[name{l.ConsumerID, l.EventID}][again].At.Sub(d.at))
		}
		if len(waits) > 0 {
			first, all = append(first, slices.Min(waits)), append(all, slices.Max(waits))
		}
		held += len(waits)
		most = max(most, len(waits))
	}
	if held == 0 {
		k.Error("no killed worker held anything, want some at each kill")
		return
	}
	k.Logf("of %d kills %d left work in hand: %d deliveries, %d at most; %d more were settled by statements that outlived their process",
		len(k.deaths), len(all), held, most, settledByTheDead)
	k.Logf("claimed again after the kill, with a lease of %s: the first of what was held after %s at most (p95 %s), all of it after %s at most (p95 %s)",
		killLease, slices.Max(first), p95(first), slices.Max(all), p95(all))
}

func p95(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[(len(d)*95+99)/100-1]
}
