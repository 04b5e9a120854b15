package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
)

const (
	crowded  = 1000   // organizations that a backlog belongs to
	smallest = 10_000 // deliveries of the backlog that the other is held against
	rounds   = 400    // of a relay and a claim each
	claimed  = 20     // deliveries of one claim
	relayed  = 10     // events of one relay
)

// backlog measures a claim and a relay beside deliveries that wait, once beside few
// and once beside all that were asked for, while another connection holds an old
// snapshot: nothing that is deleted goes away then.
func (r *run) backlog(ctx context.Context) error {
	var few, many waits
	for _, c := range []struct {
		ready int
		into  *waits
	}{{min(smallest, r.Backlog), &few}, {r.Backlog, &many}} {
		var err error
		if *c.into, err = r.beside(ctx, c.ready); err != nil {
			return err
		}
		params := fmt.Sprintf("%d ready, %d organizations, a snapshot held", c.ready, crowded)
		for _, m := range []struct {
			metric string
			value  float64
		}{
			{"claim_p50_ms", quantile(c.into.claims, 0.5)},
			{"claim_p99_ms", quantile(c.into.claims, 0.99)},
			{"relay_p50_ms", quantile(c.into.relays, 0.5)},
			{"relay_p99_ms", quantile(c.into.relays, 0.99)},
		} {
			if err := r.report(params, m.metric, m.value); err != nil {
				return err
			}
		}
	}
	params := fmt.Sprintf("%d ready to %d", r.Backlog, min(smallest, r.Backlog))
	if err := r.report(params, "claim_p99_ratio", quantile(many.claims, 0.99)/quantile(few.claims, 0.99)); err != nil {
		return err
	}
	return r.report(params, "relay_p99_ratio", quantile(many.relays, 0.99)/quantile(few.relays, 0.99))
}

// waits are how long each of some calls took.
type waits struct{ claims, relays []time.Duration }

// beside measures while n deliveries wait.
func (r *run) beside(ctx context.Context, n int) (w waits, err error) {
	if err := r.reset(ctx, 1); err != nil {
		return w, err
	}
	orgs, err := r.crowd(ctx)
	if err != nil {
		return w, err
	}
	if err := r.pile(ctx, n); err != nil {
		return w, err
	}
	conn, err := pgx.Connect(ctx, r.URL)
	if err != nil {
		return w, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // its snapshot goes with it
	snapshot, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return w, fmt.Errorf("begin: %w", err)
	}
	if _, err := snapshot.Exec(ctx, "select 1 from organizations limit 1"); err != nil {
		return w, fmt.Errorf("take a snapshot: %w", err)
	}
	want := bus.Want{Consumer: consumers[0], Limit: claimed, Express: 4, Overflow: 4, Side: 2, Share: 5, Bulk: 3}
	for i := range min(rounds, n/claimed/2+1) {
		if err := r.emitFor(ctx, orgs[i%len(orgs)], r.batch(i*relayed, relayed)); err != nil {
			return w, err
		}
		began := time.Now()
		if _, err := r.store.Relay(ctx); err != nil {
			return w, err
		}
		w.relays = append(w.relays, time.Since(began))
		began = time.Now()
		got, err := r.store.Claim(ctx, bus.Claim{Wants: []bus.Want{want}, Suspect: true})
		if err != nil {
			return w, err
		}
		w.claims = append(w.claims, time.Since(began))
		if len(got) == 0 {
			return w, fmt.Errorf("nothing was claimed of %d", n)
		}
		want.After = got[len(got)-1].OrgID
		if err := r.settleAll(ctx, got); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (r *run) settleAll(ctx context.Context, got []bus.Delivery) error {
	done := make([]bus.Settlement, len(got))
	for i := range got {
		done[i] = bus.Settlement{Delivery: &got[i], Verdict: bus.VerdictDone}
	}
	_, err := r.store.Settle(ctx, done)
	return err
}

// crowd makes the organizations of a backlog, once.
func (r *run) crowd(ctx context.Context) ([]uuid.UUID, error) {
	if missing := crowded - len(r.orgs); missing > 0 {
		rows, _ := r.pool.Query(ctx, "insert into organizations (name) select 'Organization ' || n from generate_series(1, $1) n returning id", missing) // its error comes back from rows
		more, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil {
			return nil, fmt.Errorf("make organizations: %w", err)
		}
		r.orgs = append(r.orgs, more...)
	}
	return r.orgs[:crowded], nil
}

// pile makes n deliveries of the first consumer due, spread over the crowd. Those
// of an organization are all of one event, which spares the log's share of the
// work and of the disk.
func (r *run) pile(ctx context.Context, n int) error {
	for _, org := range r.orgs[:crowded] {
		if err := r.emitOneFor(ctx, org, 0); err != nil {
			return err
		}
	}
	if err := r.fill(ctx, 0); err != nil {
		return err
	}
	const pileSQL = `
		insert into delivery (consumer_id, destination, organization_id, seq, event_id, due_at)
		select d.consumer_id, d.destination, d.organization_id, (select max(seq) from delivery) + row_number() over (order by n, d.seq), d.event_id, d.due_at - interval '1 hour' + n * interval '1 millisecond'
		  from generate_series(1, $1) n cross join delivery d
		 order by n, d.seq`
	if _, err := r.pool.Exec(ctx, pileSQL, max(n/crowded-1, 0)); err != nil {
		return fmt.Errorf("pile up deliveries: %w", err)
	}
	if err := r.exec(ctx, "update relay_state set last_seq = (select max(seq) from delivery)"); err != nil {
		return err
	}
	return r.rest(ctx)
}
