package crons

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

// runSchedules runs s in a bubble until stop is called.
func runSchedules(t *testing.T, s *Schedules) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	}
}

func TestSchedulesAreFiredWhenDueAndTheClockIsLeftAloneElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		due := time.Now().Add(time.Hour + 300*time.Millisecond)
		var asks atomic.Int64
		var fired []time.Duration
		left := 250 // more than one round
		stop := runSchedules(t, &Schedules{
			Fire: func(context.Context) (db.Firing, error) {
				if time.Now().Before(due) || left == 0 {
					return db.Firing{}, bus.ErrNotFound
				}
				left--
				fired = append(fired, time.Since(due))
				return db.Firing{}, nil
			},
			Until: func(context.Context) (time.Duration, error) {
				asks.Add(1)
				if left == 0 {
					return time.Hour, nil
				}
				return time.Until(due), nil
			},
			Logger: slog.New(slog.DiscardHandler),
		})
		pass(time.Hour)
		if asked, most := asks.Load(), int64(time.Hour/schedulePoll)+1; asked > most {
			t.Errorf("asked %d times in an idle hour, want %d at most", asked, most)
		}
		pass(time.Second)
		stop()
		if len(fired) != 250 || fired[0] > scheduleRest || fired[249] != fired[0] {
			t.Errorf("fired %d, want 250 as soon as they are due", len(fired))
		}
	})
}

func TestSchedulesOutliveFailuresAndLogThemOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		const failures = 50
		var tried atomic.Int64
		stop := runSchedules(t, &Schedules{
			Fire: func(context.Context) (db.Firing, error) {
				tries := tried.Add(1)
				switch {
				case tries%2 == 0 && tries < failures:
					panic("broken")
				case tries < failures:
					return db.Firing{}, errors.New("no database")
				case tries == failures:
					return db.Firing{Name: "bad", Err: errors.New("unreadable")}, nil
				case tries == failures+1:
					return db.Firing{Name: "bad", Err: errors.New("unreadable"), Repeated: true}, nil
				case tries == failures+2:
					return db.Firing{Name: "late", LeftOut: 7}, nil
				}
				return db.Firing{}, bus.ErrNotFound
			},
			Until:  func(context.Context) (time.Duration, error) { return time.Hour, nil },
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		pass(time.Minute)
		if tries := tried.Load(); tries < 13 || tries > 28 {
			t.Errorf("tried %d times in the first minute, want waits that double up to %v", tries, bus.MostBackoff)
		}
		pass(20 * time.Minute)
		stop()
		if tries := tried.Load(); tries < failures+3 {
			t.Errorf("tried %d times, want the schedules fired after the failures", tries)
		}
		for text, want := range map[string]int{"schedules cannot be fired": 1, "schedule cannot be fired": 1, "cron=bad": 1, "left_out=7": 1} {
			if got := strings.Count(log.String(), text); got != want {
				t.Errorf("the log says %q %d times, want %d:\n%s", text, got, want, log.String())
			}
		}
	})
}
