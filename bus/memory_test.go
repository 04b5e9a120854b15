package bus_test

import (
	"context"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/deskcomm/deskcomm/bus"
)

func TestOneSlowDeliveryDoesNotKeepThePayloadsOfItsWholeBatch(t *testing.T) {
	t.Parallel()
	var payloads []weak.Pointer[byte]
	handle := func(_ context.Context, d *bus.Delivery) error {
		if d.Seq == 1 {
			<-time.After(time.Minute)
		}
		return nil
	}
	inBubble(t, func(r *rig) {
		r.log.Hooks.Claimed = func(_ context.Context, claimed []bus.Delivery) error {
			for i := range claimed {
				claimed[i].Event.Payload = make([]byte, 1<<20)
				payloads = append(payloads, weak.Make(&claimed[i].Event.Payload[0]))
			}
			return nil
		}
		r.log.Emit(happened, 20)
		r.start()
		r.wantCount("done", 19)
		runtime.GC()
		kept := 0
		for _, p := range payloads {
			if p.Value() != nil {
				kept++
			}
		}
		if kept != 1 {
			t.Errorf("%d payloads are in memory while one delivery is in hand, want 1", kept)
		}
	}, handler{reader("wide", concurrency(20)), handle})
}
