package bus_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
)

// lane is a log in which a delivery is due when the one before it is settled.
type lane struct {
	*bustest.Log
	behind int
}

func (l *lane) Claim(ctx context.Context, c bus.Claim) ([]bus.Delivery, error) {
	claimed, err := l.Log.Claim(ctx, c)
	for i := range claimed {
		claimed[i].Lane = 1
	}
	return claimed, err
}

func (l *lane) Settle(ctx context.Context, settlements []bus.Settlement) ([]bus.Lease, error) {
	settlements = slices.Clone(settlements)
	for i := range settlements {
		free := *settlements[i].Delivery
		free.Lane = 0
		settlements[i].Delivery = &free
	}
	lost, err := l.Log.Settle(ctx, settlements)
	if l.behind > 0 && err == nil {
		l.behind--
		l.Emit(happened, 1)
	}
	return lost, err
}

func TestInvariant10TheNextOfALaneIsClaimedAtOnceAndNotAtTheNextPoll(t *testing.T) {
	t.Parallel()
	inBubble(t, func(r *rig) {
		r.drainer.Log = &lane{Log: r.log, behind: 9}
		r.drainer.Poll = time.Hour
		r.log.Emit(happened, 1)
		r.start()
		r.wantCount("done", 10)
		if r.at() != 0 {
			r.Errorf("the lane has taken %s, want no time", r.at())
		}
	}, handler{reader("a", concurrency(8)), succeed})
}
