package db

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
)

// The row of a consumer keeps its birthday: what was emitted before it was first
// registered is not for it. A name that a program of another language has
// registered becomes this program's, and the other one is refused from then on.
const registerConsumerSQL = `
	insert into consumers (name, event_types, effect, ordering, retry_steps, retry_jitter, max_attempts)
	values (@name, @event_types, @effect, @ordering, @retry_steps, @retry_jitter, @max_attempts)
	on conflict (name) do update
	   set event_types = excluded.event_types, effect = excluded.effect, ordering = excluded.ordering, retry_steps = excluded.retry_steps,
	       retry_jitter = excluded.retry_jitter, max_attempts = excluded.max_attempts, external = false`

// RegisterConsumers makes the consumers known to the relay, with their retry
// policies as they are now.
func (d *DB) RegisterConsumers(ctx context.Context, consumers []bus.Consumer) error {
	return d.inTx(ctx, func(tx pgx.Tx) error {
		for _, c := range consumers {
			types := make([]string, len(c.Types))
			for i, t := range c.Types {
				types[i] = string(t)
			}
			steps := c.Retry.Steps
			if steps == nil {
				steps = []time.Duration{}
			}
			_, err := tx.Exec(ctx, registerConsumerSQL, named{
				"name": c.Name, "event_types": types, "effect": c.Effect, "ordering": cmp.Or(c.Ordering, bus.OrderingNone), "retry_steps": steps,
				"retry_jitter": c.Retry.Jitter, "max_attempts": c.Retry.MaxAttempts,
			})
			if err != nil {
				return wrap("register "+c.Name, err)
			}
		}
		return nil
	})
}
