package bus

import (
	"context"
	"log/slog"
	"time"
)

// Relay moves events from the outbox to their consumers' deliveries. Any number
// of processes may run one: the database lets one of them work at a time.
type Relay struct {
	Step   func(ctx context.Context) (int, error) // relays one batch, returns how many
	Batch  int                                    // a step that relays fewer leaves nothing
	Poll   time.Duration                          // the longest wait between two looks at the outbox
	Wake   <-chan struct{}                        // an early look; may be nil
	Drain  func()                                 // called after a batch: deliveries may be due
	Logger *slog.Logger
}

// Run relays until ctx ends and returns nil. After failures it rests, ever longer
// and whoever wakes it.
func (r *Relay) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	wake, rest := r.Wake, Backoff{First: r.Poll}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-wake:
		case <-timer.C:
			wake = r.Wake
		}
		n, err := r.Step(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			r.Logger.ErrorContext(ctx, "relay events", "error", err)
			wake = nil
			timer.Reset(rest.Next())
		case n > 0:
			rest.Reset()
			r.Drain()
			if n < r.Batch {
				timer.Reset(r.Poll)
			} else {
				timer.Reset(0)
			}
		default:
			rest.Reset()
			timer.Reset(r.Poll)
		}
	}
}
