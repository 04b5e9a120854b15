package app

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/web"
)

// leastStale is how long a loop may go at least without a sign of life before the
// process is not ready.
const leastStale = 30 * time.Second

// pulse records when each loop last got something done.
type pulse struct {
	stale    time.Duration // longer than leases: a busy worker may only renew them
	mu       sync.Mutex
	beats    map[string]time.Time
	stopping bool
}

func (p *pulse) beat(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.beats == nil {
		p.beats = make(map[string]time.Time)
	}
	p.beats[name] = time.Now()
}

func (p *pulse) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopping = true
}

// check is nil when every loop beats, and names those that do not.
func (p *pulse) check(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping {
		return web.ReasonError("stopping")
	}
	var still []string
	for name, at := range p.beats {
		if time.Since(at) > max(p.stale, leastStale) {
			still = append(still, name)
		}
	}
	if still == nil {
		return nil
	}
	slices.Sort(still)
	return web.ReasonError("no sign of life from " + strings.Join(still, ", "))
}

// watchStep makes a successful step of a loop a beat.
func (p *pulse) watchStep(name string, step func(context.Context) (int, error)) func(context.Context) (int, error) {
	p.beat(name)
	return func(ctx context.Context) (int, error) {
		n, err := step(ctx)
		if err == nil {
			p.beat(name)
		}
		return n, err
	}
}

// watchedLog makes every successful call of a drain loop a beat: with all slots
// busy it claims nothing for long, but renews its leases.
type watchedLog struct {
	bus.Log
	beat func()
}

func (p *pulse) watchLog(name string, log bus.Log) bus.Log {
	p.beat(name)
	return watchedLog{Log: log, beat: func() { p.beat(name) }}
}

func (w watchedLog) Claim(ctx context.Context, c bus.Claim) ([]bus.Delivery, error) {
	claimed, err := w.Log.Claim(ctx, c)
	if err == nil {
		w.beat()
	}
	return claimed, err
}

func (w watchedLog) Settle(ctx context.Context, settlements []bus.Settlement) ([]bus.Lease, error) {
	lost, err := w.Log.Settle(ctx, settlements)
	if err == nil {
		w.beat()
	}
	return lost, err
}

func (w watchedLog) Extend(ctx context.Context, leases []bus.Lease) ([]bus.Lease, error) {
	lost, err := w.Log.Extend(ctx, leases)
	if err == nil {
		w.beat()
	}
	return lost, err
}
