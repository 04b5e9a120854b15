package bus

import (
	"math/rand/v2"
	"time"
)

// MostBackoff is the longest rest of a loop that the database fails. It is short:
// this long may a database that is back go without its work.
const MostBackoff = 5 * time.Second

// Backoff paces tries that fail one after the other. It is for one goroutine.
type Backoff struct {
	First time.Duration // the rest after the first failure; each later one is twice as long
	Most  time.Duration // up to this; 0 means MostBackoff, or First if that is longer
	step  time.Duration
}

// Next returns the rest before the next try. A random part of it, up to half, is
// left out: processes that have lost their database at one instant must not all
// come back at one instant.
func (b *Backoff) Next() time.Duration {
	most := b.Most
	if most == 0 {
		most = max(b.First, MostBackoff)
	}
	b.step = min(max(2*b.step, b.First), most)
	return b.step - rand.N(b.step/2+1) //nolint:gosec // spreads load, guards nothing
}

// Reset is for a try that has succeeded.
func (b *Backoff) Reset() { b.step = 0 }
