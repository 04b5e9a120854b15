package crons

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

const (
	// schedulePoll is the longest wait: another process may have made a schedule.
	schedulePoll = 5 * time.Second
	// scheduleRest is the shortest wait: what is due may be in the hands of another process.
	scheduleRest = 100 * time.Millisecond
	// firesAtOnce is how many instants are fired before the loop looks up.
	firesAtOnce = 100
)

// Schedules fires the stored schedules. Several at once, in as many processes, fire
// each instant once.
type Schedules struct {
	Fire   func(ctx context.Context) (db.Firing, error)     // one instant; bus.ErrNotFound when none is due
	Until  func(ctx context.Context) (time.Duration, error) // to when the next one is
	Logger *slog.Logger
}

// Run fires until ctx ends, and returns nil. A failure is logged once and what
// failed tried again after longer and longer waits.
func (s *Schedules) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	rest, failing := bus.Backoff{First: time.Second}, false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		wait, err := s.round(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			rest.Reset()
			failing = false
		default:
			if !failing {
				s.Logger.ErrorContext(ctx, "schedules cannot be fired", "error", err)
			}
			failing = true
			wait = rest.Next()
		}
		timer.Reset(wait)
	}
}

// round fires what is due and returns how long nothing more will be.
func (s *Schedules) round(life context.Context) (wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(life, jobTimeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		}
	}()
	for range firesAtOnce {
		f, err := s.Fire(ctx)
		if errors.Is(err, bus.ErrNotFound) {
			wait, err := s.Until(ctx)
			return min(max(wait, scheduleRest), schedulePoll), err
		}
		if err != nil {
			return 0, err
		}
		s.log(ctx, f)
	}
	return 0, nil
}

// log says what a person has to know of a firing; that it went well is in the
// database.
func (s *Schedules) log(ctx context.Context, f db.Firing) {
	logger := s.Logger.With("cron", f.Name, "org_id", f.OrgID)
	switch {
	case f.Err != nil && !f.Repeated:
		logger.ErrorContext(ctx, "schedule cannot be fired", "error", f.Err)
	case f.Err == nil && f.LeftOut > 0:
		logger.WarnContext(ctx, "schedule missed instants", "left_out", f.LeftOut)
	}
}
