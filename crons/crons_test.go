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

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs jobs in a bubble until stop is called.
func start(t *testing.T, logger *slog.Logger, jobs ...Job) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, logger, jobs) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	}
}

// pass moves the bubble's clock.
func pass(d time.Duration) {
	timer := time.NewTimer(d)
	<-timer.C
	synctest.Wait()
}

func TestJobsFireAtTheirTimesInUTC(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var hours []int
		stop := start(t, slog.New(slog.DiscardHandler), Job{Name: "nightly", Spec: "20 3 * * *", Run: func(context.Context) error {
			hours = append(hours, time.Now().UTC().Hour(), time.Now().UTC().Minute())
			return nil
		}})
		pass(48 * time.Hour)
		stop()
		if len(hours) != 4 || hours[0] != 3 || hours[1] != 20 || hours[2] != 3 || hours[3] != 20 {
			t.Errorf("fired at %v in two days, want 3:20 twice", hours)
		}
	})
}

func TestFailingAndPanickingJobsFireAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var failed, panicked atomic.Int32
		var log strings.Builder
		logger := slog.New(slog.NewTextHandler(&log, nil))
		stop := start(t, logger,
			Job{Name: "fails", Spec: "* * * * *", Run: func(context.Context) error { failed.Add(1); return errors.New("broken") }},
			Job{Name: "panics", Spec: "* * * * *", Run: func(context.Context) error { panicked.Add(1); panic("broken") }})
		pass(3*time.Minute + time.Second)
		stop()
		if failed.Load() != 3 || panicked.Load() != 3 {
			t.Errorf("fired %d and %d times in three minutes, want 3 each", failed.Load(), panicked.Load())
		}
		for _, want := range []string{"cron=fails", "cron=panics", "broken"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log does not mention %q", want)
			}
		}
	})
}

func TestJobThatIsStillRunningIsSkippedAndEndedByTheShutdown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var began atomic.Int32
		ended := false
		stop := start(t, slog.New(slog.DiscardHandler), Job{Name: "slow", Spec: "* * * * *", Run: func(ctx context.Context) error {
			began.Add(1)
			<-ctx.Done()
			ended = true
			return ctx.Err()
		}})
		pass(5*time.Minute + time.Second)
		if n := began.Load(); n != 1 {
			t.Errorf("began %d times while it was running, want once", n)
		}
		stop()
		if !ended {
			t.Error("Run returned before its job had ended")
		}
	})
}

func TestJobThatTakesTooLongIsEndedAndSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		stop := start(t, slog.New(slog.NewTextHandler(&log, nil)), Job{Name: "endless", Spec: "0 * * * *", Run: func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}})
		pass(time.Hour + jobTimeout + time.Second)
		stop()
		if !strings.Contains(log.String(), "cron=endless") {
			t.Errorf("a job that was ended for its time left no line: %q", log.String())
		}
	})
}

func TestSpecThatCannotBeReadIsAnErrorThatNamesTheJob(t *testing.T) {
	t.Parallel()
	err := Run(t.Context(), slog.New(slog.DiscardHandler), []Job{{Name: "odd", Spec: "every day"}})
	if err == nil || !strings.Contains(err.Error(), "odd") {
		t.Errorf("Run() = %v, want an error that names the job", err)
	}
}
