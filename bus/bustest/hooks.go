package bustest

import (
	"context"
	"sync/atomic"

	"github.com/deskcomm/deskcomm/bus"
)

// Hooks are asked on each call of a Log, outside its lock, so they may block.
// Those in the present tense run before the call has an effect, and their error
// keeps it from having one. Those in the past tense run after it, and their
// error is an answer that was lost on its way.
type Hooks struct {
	Claim   func(ctx context.Context, c bus.Claim) error
	Claimed func(ctx context.Context, claimed []bus.Delivery) error
	Settle  func(ctx context.Context, settlements []bus.Settlement) error
	Settled func(ctx context.Context, settlements []bus.Settlement) error
	Begin   func(ctx context.Context, lease bus.Lease) error
	Begun   func(ctx context.Context, lease bus.Lease) error
	Extend  func(ctx context.Context, leases []bus.Lease) error
}

// Times returns a hook that fails n times with err and then no more.
func Times[T any](n int, err error) func(context.Context, T) error {
	var left atomic.Int64
	left.Store(int64(n))
	return func(context.Context, T) error {
		if left.Add(-1) >= 0 {
			return err
		}
		return nil
	}
}

// ask runs a hook if there is one.
func ask[T any](ctx context.Context, hook func(context.Context, T) error, arg T) error {
	if hook == nil {
		return ctx.Err()
	}
	if err := hook(ctx, arg); err != nil {
		return err
	}
	return ctx.Err()
}
