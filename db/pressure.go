package db

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Pressure says how far the bus is behind what is emitted.
type Pressure string

// The levels of pressure. At the highest what can be emitted later should be;
// nothing that belongs to a change of the domain is ever refused.
const (
	PressureNormal   Pressure = "normal"
	PressureElevated Pressure = "elevated"
	PressureHigh     Pressure = "high"
)

// worst returns the worst of some levels.
func worst(levels ...Pressure) Pressure {
	for _, p := range []Pressure{PressureHigh, PressureElevated} {
		if slices.Contains(levels, p) {
			return p
		}
	}
	return PressureNormal
}

const (
	// pressureAge is how old a level may be: as long as an organization is busy it is
	// measured this often by each process.
	pressureAge = 2 * time.Second

	// pressurePatience is how long measuring may take. It takes milliseconds; a
	// database that does not answer twice in this time is the pressure.
	pressurePatience = 5 * time.Second

	// maxGauged bounds how many organizations' levels a process remembers.
	maxGauged = 10_000
)

const installationPressureSQL = `select installation_pressure(@before)`

const organizationPressureSQL = `select organization_pressure(@org_id, @before)`

// Pressure is the level that an emission of an organization meets, at most some
// seconds old: the worse of its own backlog and of the whole installation. The
// backlog of one organization is no pressure on the others. It never fails: a
// database that cannot be asked is pressure.
func (d *DB) Pressure(ctx context.Context, org uuid.UUID) Pressure {
	return worst(
		d.gauge.level(ctx, uuid.Nil, func(ctx context.Context, before Pressure) (level Pressure, err error) {
			err = scan(ctx, d.pool, installationPressureSQL, named{"before": before}, &level)
			return level, err
		}),
		d.gauge.level(ctx, org, func(ctx context.Context, before Pressure) (level Pressure, err error) {
			err = scan(ctx, d.pool, organizationPressureSQL, named{"org_id": org, "before": before}, &level)
			return level, err
		}))
}

// Pressure is the level that was measured last; it asks nobody.
func (t *OrgTx) Pressure() Pressure { return worst(t.gauge.last(uuid.Nil), t.gauge.last(t.org)) }

// gauge remembers levels for a while, so that a busy process asks for each but
// now and then. The level of the nil organization is the installation's.
type gauge struct {
	mu       sync.Mutex
	readings map[uuid.UUID]*reading
}

// reading is what is known of one level.
type reading struct {
	level    Pressure
	at       time.Time
	busy     bool // somebody is measuring
	failures int  // in a row
}

// now is the level that a reading tells.
func (r *reading) now() Pressure {
	if r.failures > 1 {
		return PressureHigh
	}
	return r.level
}

// level returns a level, measured anew if it is old and nobody else does so: who
// finds it being measured gets the old one and does not wait.
func (g *gauge) level(ctx context.Context, key uuid.UUID, measure func(ctx context.Context, before Pressure) (Pressure, error)) Pressure {
	r, before, stale := g.take(key)
	if !stale {
		return before
	}
	measuring, cancel := context.WithTimeout(ctx, pressurePatience)
	defer cancel()
	level, err := measure(measuring, r.level) // r.level is the measurer's to write
	g.mu.Lock()
	defer g.mu.Unlock()
	r.busy = false
	switch {
	case err == nil:
		r.level, r.failures, r.at = level, 0, time.Now()
	case ctx.Err() == nil: // else who asked is gone, which says nothing
		r.failures++
		r.at = time.Now()
	}
	return r.now()
}

// take returns what is known of a level, and whether the caller has to measure it.
func (g *gauge) take(key uuid.UUID) (r *reading, level Pressure, stale bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r, known := g.readings[key]
	if !known {
		if len(g.readings) >= maxGauged || g.readings == nil {
			g.readings = make(map[uuid.UUID]*reading) // all are measured anew
		}
		r = &reading{level: PressureNormal}
		g.readings[key] = r
	}
	if r.busy || !r.at.IsZero() && time.Since(r.at) < pressureAge {
		return r, r.now(), false
	}
	r.busy = true
	return r, r.now(), true
}

func (g *gauge) last(key uuid.UUID) Pressure {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r, known := g.readings[key]; known {
		return r.now()
	}
	return PressureNormal
}
