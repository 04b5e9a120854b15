// Package crons owns what runs by the clock: names and times. The work itself is
// a function that the composition root hands over.
package crons

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// jobTimeout bounds one run of a job.
const jobTimeout = 10 * time.Minute

// Job is one named schedule. Spec is a five-field cron expression in UTC.
type Job struct {
	Name string
	Spec string
	Run  func(ctx context.Context) error
}

// Run fires the jobs until ctx ends, waits for those under way, and returns nil.
// It returns an error only for a spec that cannot be read. A job that is still
// running when it is due again is skipped; one that fails or panics is logged and
// fires again at its next time.
func Run(ctx context.Context, logger *slog.Logger, jobs []Job) error {
	// Version 3 of the library runs in local time and lets panics through.
	c := cron.New(cron.WithLocation(time.UTC))
	for _, j := range jobs {
		run := cron.SkipIfStillRunning(cron.DiscardLogger)(cron.FuncJob(func() { fire(ctx, logger, j) }))
		if _, err := c.AddJob(j.Spec, run); err != nil {
			return fmt.Errorf("schedule %s: %w", j.Name, err)
		}
	}
	c.Start()
	<-ctx.Done()
	<-c.Stop().Done()
	return nil
}

// readExpression reads five fields or @every, @daily and the like.
func readExpression(text string) (rule, error) {
	// The library takes a zone here too, and panics when nothing follows it.
	if len(text) > 100 || strings.Contains(text, "TZ=") {
		return rule{}, errExpression
	}
	parsed, err := cron.ParseStandard(text)
	if err != nil {
		return rule{}, errExpression
	}
	switch s := parsed.(type) {
	case cron.ConstantDelaySchedule:
		if s.Delay < time.Minute || s.Delay > 366*24*time.Hour {
			return rule{}, errExpression
		}
		return rule{after: s.Next, elapsed: true}, nil
	case *cron.SpecSchedule:
		const allHours = 1<<24 - 1
		s.Location = time.UTC
		return rule{after: s.Next, hourly: s.Hour&allHours == allHours}, nil
	default:
		return rule{}, errExpression
	}
}

// fire runs one job once.
func fire(life context.Context, logger *slog.Logger, j Job) {
	ctx, cancel := context.WithTimeout(life, jobTimeout)
	defer cancel()
	defer func() {
		if v := recover(); v != nil {
			logger.ErrorContext(ctx, "cron panicked", "cron", j.Name, "error", v, "stack", string(debug.Stack()))
		}
	}()
	if err := j.Run(ctx); err != nil && life.Err() == nil {
		logger.ErrorContext(ctx, "cron failed", "cron", j.Name, "error", err)
	}
}
