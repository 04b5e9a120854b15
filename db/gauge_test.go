package db

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

func TestALevelIsMeasuredOnceInAWhileHoweverManyAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g gauge
		var measured atomic.Int32
		org := uuid.New()
		ask := func(key uuid.UUID) {
			var all sync.WaitGroup
			for range 50 {
				all.Go(func() {
					g.level(t.Context(), key, func(context.Context, Pressure) (Pressure, error) {
						measured.Add(1)
						time.Sleep(time.Second) //nolint:forbidigo // in a bubble
						return PressureElevated, nil
					})
				})
			}
			all.Wait()
		}
		ask(org)
		ask(org)
		if n := measured.Load(); n != 1 || g.last(org) != PressureElevated || g.last(uuid.New()) != PressureNormal {
			t.Errorf("measured %d times and got %s, want once and elevated, and normal of who was never measured", n, g.last(org))
		}
		ask(uuid.Nil)
		if n := measured.Load(); n != 2 {
			t.Errorf("measured %d times for two keys, want twice", n)
		}
		time.Sleep(pressureAge) //nolint:forbidigo // in a bubble
		ask(org)
		if n := measured.Load(); n != 3 {
			t.Errorf("measured %d times when the level was old, want anew", n)
		}
	})
}

func TestADatabaseThatDoesNotAnswerTwiceIsPressureUntilItDoes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var g gauge
		ask := func(ctx context.Context, answer Pressure, err error) Pressure {
			time.Sleep(pressureAge) //nolint:forbidigo // in a bubble
			return g.level(ctx, uuid.Nil, func(ctx context.Context, _ Pressure) (Pressure, error) {
				if errors.Is(err, context.DeadlineExceeded) {
					<-ctx.Done()
					return "", ctx.Err()
				}
				return answer, err
			})
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		broken := errors.New("no connection")
		for i, step := range []struct {
			ctx  context.Context //nolint:containedctx // of one question
			got  Pressure
			err  error
			want Pressure
		}{
			{t.Context(), PressureNormal, nil, PressureNormal},
			{t.Context(), "", broken, PressureNormal},
			{gone, "", context.Canceled, PressureNormal}, // the client went away
			{t.Context(), "", context.DeadlineExceeded, PressureHigh},
			{t.Context(), "", broken, PressureHigh},
			{t.Context(), PressureElevated, nil, PressureElevated},
			{t.Context(), "", broken, PressureElevated},
		} {
			if got := ask(step.ctx, step.got, step.err); got != step.want {
				t.Errorf("answer %d: %s, want %s", i+1, got, step.want)
			}
		}
	})
}

func TestAGaugeForgetsOrganizationsBeforeItGrowsWithoutEnd(t *testing.T) {
	t.Parallel()
	var g gauge
	for range maxGauged + 10 {
		g.level(t.Context(), uuid.New(), func(context.Context, Pressure) (Pressure, error) { return PressureNormal, nil })
	}
	if n := len(g.readings); n > maxGauged {
		t.Errorf("%d levels are remembered, want at most %d", n, maxGauged)
	}
}
