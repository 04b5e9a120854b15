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
	Poll   time.Duration                          // the longest wait between two looks at the outbox
	Wake   <-chan struct{}                        // an early look; may be nil
	Drain  func()                                 // called after a batch: deliveries may be due
	Logger *slog.Logger
}

// Run relays until ctx ends and returns nil. After a failure it rests for a Poll,
// whoever wakes it.
func (r *Relay) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	wake := r.Wake
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
			timer.Reset(r.Poll)
		case n > 0:
			r.Drain()
			timer.Reset(0)
		default:
			timer.Reset(r.Poll)
		}
	}
}
