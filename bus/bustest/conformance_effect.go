package bustest

import (
	"errors"
	"time"

	"github.com/deskcomm/deskcomm/bus"
)

func (b bench) begin(d *bus.Delivery) {
	b.Helper()
	if err := b.log.BeginEffect(b.Context(), d.Lease()); err != nil {
		b.Fatalf("BeginEffect() = %v", err)
	}
}

func effectBeginsUnderTheLeaseOnly(b bench) {
	b.emit()
	first := b.claimOne(b.consumer)
	b.log.Elapse(b.log.LeaseTime() * 9 / 10)
	b.begin(first)
	b.log.Elapse(b.log.LeaseTime() * 9 / 10)
	b.claimNone(b.consumer, "after the beginning renewed the lease")
	b.begin(first) // twice is once
	b.die(b.consumer)
	lost := func(d *bus.Delivery, when string) {
		b.Helper()
		if err := b.log.BeginEffect(b.Context(), d.Lease()); !errors.Is(err, bus.ErrLeaseLost) {
			b.Errorf("BeginEffect() %s = %v, want %v", when, err, bus.ErrLeaseLost)
		}
	}
	lost(first, "after the lease was taken away")
	second := b.claimOne(b.consumer)
	lost(first, "under a stale token")
	b.settle(settlement(second, bus.VerdictDone, ""))
	lost(second, "after the settlement")
}

func crashAfterTheBeginningIsUnknown(b bench) {
	event := b.emit()
	d := b.claimOne(b.consumer)
	if d.Unknown {
		b.Error("nothing is known to have begun, and it is unknown")
	}
	b.begin(d)
	for _, verdict := range []bus.Verdict{bus.VerdictRetry, bus.VerdictPostpone} { // still unknown
		b.die(b.consumer)
		if d = b.claimOne(b.consumer); !d.Unknown || !d.Suspect {
			b.Errorf("claimed with unknown %t, suspect %t after a crash with an effect begun", d.Unknown, d.Suspect)
		}
		b.settle(bus.Settlement{Delivery: d, Verdict: verdict, Error: "the provider is down", Unknown: true})
		b.log.Elapse(2 * step)
		if d = b.claimOne(b.consumer); !d.Unknown || !d.Suspect {
			b.Errorf("claimed with unknown %t, suspect %t while it is still not known", d.Unknown, d.Suspect)
		}
	}
	// One attempt failed, one crashed alone. The last one does not end it dead.
	b.settle(bus.Settlement{Delivery: d, Verdict: bus.VerdictRetry, Error: "still down", Unknown: true})
	b.wantEnded(d, State{Status: "uncertain", Attempts: 3, LastError: "still down"})
	b.want(event, b.consumer, State{Status: "uncertain", Attempts: 3, LastError: "still down"})
}

func verdictClearsTheEffect(b bench) {
	for _, verdict := range []bus.Verdict{bus.VerdictRetry, bus.VerdictPostpone} {
		consumer := b.register(bus.Ladder([]time.Duration{step}))
		b.emit()
		d := b.claimOne(consumer)
		b.begin(d)
		b.settle(settlement(d, verdict, "surely not done"))
		b.log.Elapse(2 * step)
		if d = b.claimOne(consumer); d.Unknown {
			b.Errorf("unknown after the handler has %s, which says that nothing has happened", verdict)
		}
		b.settle(settlement(d, bus.VerdictDone, ""))
	}
}

// Else a poison that dies after its effect has begun would go on for ever.
func effectNotDoneStaysASuspect(b bench) {
	b.emit()
	b.begin(b.claimOne(b.consumer))
	b.die(b.consumer)
	b.settle(settlement(b.claimOne(b.consumer), bus.VerdictPostpone, "not done"))
	d := b.claimOne(b.consumer)
	if d.Unknown || !d.Suspect || d.Attempt != 1 {
		b.Errorf("claimed with unknown %t, suspect %t, attempt %d, want a suspect at its first attempt", d.Unknown, d.Suspect, d.Attempt)
	}
}

func loneCrashesAfterTheBeginningEndUncertain(b bench) {
	once := b.register(bus.Ladder(nil))
	b.emit()
	d := b.claimOne(once)
	b.begin(d)
	b.die(once)
	d = b.claimOne(once)
	b.die(once)
	b.wantEnded(d, State{Status: "uncertain", Attempts: 1, LastError: bus.ErrCrashed.Error()})
}

func uncertainEndsADelivery(b bench) {
	b.emit()
	d := b.claimOne(b.consumer)
	b.settle(settlement(d, bus.VerdictUncertain, "no answer"))
	b.wantEnded(d, State{Status: "uncertain", Attempts: 1, LastError: "no answer"})
}
