package bus

import (
	"context"
	"sync"
	"time"
)

const (
	settleBatch = 500              // verdicts written by one statement
	settleRetry = time.Second      // wait after a failed write
	settleGrace = 10 * time.Second // bound of the last writes of a shutdown
)

// settleLoop writes verdicts, as many at once as have come while the last write
// was under way, until results is closed. A verdict that cannot be written is
// tried again: giving it up would repeat an effect that has happened. Only a
// shutdown gives up, settleGrace after work has ended, and leaves the deliveries
// to their leases.
func (r *run) settleLoop(work context.Context) {
	bound, giveUp := context.WithCancel(context.WithoutCancel(work))
	defer giveUp()
	stop := context.AfterFunc(work, func() {
		late := time.AfterFunc(settleGrace, giveUp)
		<-bound.Done()
		late.Stop()
	})
	defer stop()
	for first := range r.results {
		r.settle(bound, r.collect(first))
	}
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

// settle writes one batch, however often that takes, and frees its slots.
func (r *run) settle(ctx context.Context, batch []Settlement) {
	defer func() {
		for _, s := range batch {
			r.release(s.Delivery)
		}
	}()
	for {
		lost, err := r.Log.Settle(ctx, batch)
		if err == nil {
			r.report(ctx, batch, lost)
			return
		}
		r.Logger.ErrorContext(ctx, "settle deliveries", "deliveries", len(batch), "error", err)
		retry := time.NewTimer(settleRetry)
		select {
		case <-ctx.Done():
			retry.Stop()
			r.Logger.ErrorContext(ctx, "verdicts given up, their leases run out", "deliveries", len(batch))
			return
		case <-retry.C:
		}
	}
}

// report writes one line for each verdict that a person may look for.
func (r *run) report(ctx context.Context, batch []Settlement, lost []Lease) {
	gone := make(map[Lease]bool, len(lost))
	for _, k := range lost {
		gone[k] = true
	}
	for _, s := range batch {
		attrs := []any{
			"consumer", s.Delivery.Consumer, "event_id", s.Delivery.Event.ID, "event_type", s.Delivery.Event.Type,
			"org_id", s.Delivery.OrgID, "attempt", s.Delivery.Attempt,
		}
		switch {
		case gone[s.Delivery.Lease()]:
			r.Logger.WarnContext(ctx, "verdict refused, the lease was lost", attrs...)
		case s.Verdict == VerdictDead:
			r.Logger.InfoContext(ctx, "delivery is dead", append(attrs, "error", s.Error)...)
		case s.Verdict == VerdictRetry:
			r.Logger.WarnContext(ctx, "attempt failed", append(attrs, "error", s.Error)...)
		default:
			r.Logger.DebugContext(ctx, "delivery settled", append(attrs, "outcome", s.Verdict)...)
		}
	}
}

// heartbeat renews the leases of the work in hand three times in their length
// and cancels the handlers of those that were lost.
func (r *run) heartbeat(ctx context.Context) {
	tick := time.NewTicker(r.Log.LeaseTime() / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		leases := r.inflight.leases()
		if len(leases) == 0 {
			continue
		}
		lost, err := r.Log.Extend(ctx, leases)
		if err != nil {
			r.Logger.ErrorContext(ctx, "extend leases", "error", err)
			continue
		}
		for _, l := range lost {
			r.inflight.cancel(l)
		}
	}
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
