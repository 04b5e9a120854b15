package bus

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

const (
	settleBatch = 500              // verdicts written by one statement
	settleRetry = time.Second      // wait after the first failed write
	refusedWait = 30 * time.Second // longest wait between two tries to write what was refused
	settleGrace = 5 * time.Second  // bound of the last writes, from the end of the last handler
)

// settleLoop writes verdicts, as many at once as have come while the last write
// was under way, until results is closed. A verdict that cannot be written is
// tried again until ctx ends: giving it up would repeat an effect that has
// happened.
func (r *run) settleLoop(ctx context.Context) {
	for first := range r.results {
		r.settle(ctx, r.collect(first))
	}
	r.refused.Wait()
}

// collect returns first and the verdicts that are there already.
func (r *run) collect(first Settlement) []Settlement {
	batch := append(make([]Settlement, 0, 16), first)
	for len(batch) < settleBatch {
		select {
		case s, ok := <-r.results:
			if !ok {
				return batch
			}
			batch = append(batch, s)
		default:
			return batch
		}
	}
	return batch
}

// settle writes a batch and frees its slots. A database that is away is asked
// again until it is back. One that refuses the batch gets each half of it, down
// to the verdicts that it cannot take, which are tried again on their own, ever
// less often: they must not keep the others.
func (r *run) settle(ctx context.Context, batch []Settlement) {
	err := r.write(ctx, batch)
	for away := (Backoff{First: settleRetry}); errors.Is(err, ErrUnavailable) && rest(ctx, away.Next()); {
		err = r.write(ctx, batch)
	}
	half := len(batch) / 2
	switch {
	case err == nil || ctx.Err() != nil:
		r.settled(ctx, batch, err)
	case half > 0:
		r.settle(ctx, batch[:half])
		r.settle(ctx, batch[half:])
	default:
		r.refused.Go(func() {
			for again := (Backoff{First: settleRetry, Most: refusedWait}); err != nil && rest(ctx, again.Next()); {
				err = r.write(ctx, batch)
			}
			r.settled(ctx, batch, err)
		})
	}
}

// write tries once to write a batch.
func (r *run) write(ctx context.Context, batch []Settlement) error {
	lost, err := r.Log.Settle(ctx, batch)
	if err != nil {
		attrs := []any{"deliveries", len(batch), "error", err}
		if len(batch) == 1 {
			attrs = append(attrs, batch[0].attrs()...)
		}
		r.Logger.ErrorContext(ctx, "settle deliveries", attrs...)
		return err
	}
	r.report(ctx, batch, lost)
	return nil
}

// settled frees the slots of a batch that was written or, with an error, is
// given up.
func (r *run) settled(ctx context.Context, batch []Settlement, err error) {
	if err != nil {
		r.Logger.ErrorContext(ctx, "verdicts given up, their leases run out", "deliveries", len(batch))
	}
	for _, s := range batch {
		r.release(s.Delivery)
	}
}

// rest waits before the next try of a write and reports whether there may be one.
func rest(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// report writes one line for each verdict that a person may look for.
func (r *run) report(ctx context.Context, batch []Settlement, lost []Lease) {
	gone := make(map[Lease]bool, len(lost))
	for _, k := range lost {
		gone[k] = true
	}
	for _, s := range batch {
		spent := s.Verdict == VerdictRetry && s.Delivery.Budgeted >= s.Delivery.MaxAttempts
		switch {
		case gone[s.Delivery.Lease()]:
			r.Logger.WarnContext(ctx, "verdict refused, the lease was lost", s.attrs()...)
		case s.Verdict == VerdictUncertain || spent && s.Unknown:
			r.Logger.WarnContext(ctx, "delivery is uncertain", append(s.attrs(), "error", s.Error)...)
		case s.Verdict == VerdictDead || spent:
			r.Logger.InfoContext(ctx, "delivery is dead", append(s.attrs(), "error", s.Error)...)
		case s.Verdict == VerdictPostpone:
			r.Logger.InfoContext(ctx, "attempt postponed", append(s.attrs(), "error", s.Error)...)
		case s.Verdict == VerdictRetry:
			r.Logger.WarnContext(ctx, "attempt failed", append(s.attrs(), "error", s.Error)...)
		case r.Logger.Enabled(ctx, slog.LevelDebug): // most deliveries end here, most installations log no such line
			r.Logger.DebugContext(ctx, "delivery settled", append(s.attrs(), "outcome", s.Verdict)...)
		}
	}
}

// attrs are what a log line says of a delivery.
func (s Settlement) attrs() []any {
	d := s.Delivery
	return []any{
		"consumer", d.Consumer, "destination", d.Destination, "delivery_id", d.ID, "event_id", d.Event.ID, "event_type", d.Event.Type,
		"org_id", d.OrgID, "attempt", d.Attempt,
	}
}

// heartbeat renews the leases of the work in hand three times in their length
// and cancels the handlers of those that were lost. What fails is tried again
// sooner: a database that was away for a moment must not cost the leases.
func (r *run) heartbeat(ctx context.Context) {
	interval := r.Log.LeaseTime() / 3
	timer := time.NewTimer(interval)
	defer timer.Stop()
	again := Backoff{First: min(interval, settleRetry), Most: min(interval, MostBackoff)}
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		began := time.Now()
		if err := r.extend(ctx, interval); err != nil {
			timer.Reset(again.Next())
			continue
		}
		again.Reset()
		timer.Reset(interval - time.Since(began)) // a slow renewal must not put off the next
	}
}

// extend renews once. It gives up within the interval: a connection that hangs
// must leave time for another try before the leases run out.
func (r *run) extend(ctx context.Context, interval time.Duration) error {
	leases := r.inflight.leases()
	if len(leases) == 0 {
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, interval)
	defer cancel()
	lost, err := r.Log.Extend(bounded, leases)
	if err != nil && ctx.Err() == nil {
		r.Logger.ErrorContext(ctx, "extend leases", "error", err)
	}
	for _, l := range lost {
		r.inflight.cancel(l)
	}
	return err
}

// inflight is the set of deliveries that this process holds.
type inflight struct {
	mu   sync.Mutex
	held map[Key]held
}

type held struct {
	token  int64
	cancel context.CancelCauseFunc
}

// add holds d. When this process held it already, under a lease that ran out
// meanwhile, the older handler is cancelled.
func (f *inflight) add(d *Delivery, cancel context.CancelCauseFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil {
		f.held = make(map[Key]held)
	}
	if old, ok := f.held[d.Key]; ok {
		old.cancel(ErrLeaseLost)
	}
	f.held[d.Key] = held{token: d.Token, cancel: cancel}
}

// remove forgets d, unless it is held under a newer lease by now.
func (f *inflight) remove(d *Delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held[d.Key].token == d.Token {
		delete(f.held, d.Key)
	}
}

func (f *inflight) leases() []Lease {
	f.mu.Lock()
	defer f.mu.Unlock()
	leases := make([]Lease, 0, len(f.held))
	for k, h := range f.held {
		leases = append(leases, Lease{Key: k, Token: h.token})
	}
	return leases
}

func (f *inflight) cancel(l Lease) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h, ok := f.held[l.Key]; ok && h.token == l.Token {
		h.cancel(ErrLeaseLost)
	}
}
