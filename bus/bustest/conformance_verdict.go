package bustest

import (
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// wantEnded checks that a delivery has come to an end that holds: it is never
// claimed again, and its lease settles nothing any more.
func (b bench) wantEnded(d *bus.Delivery, want State) {
	b.Helper()
	b.want(d.Event.ID, d.Consumer, want)
	b.log.Elapse(1000 * step)
	b.claimNone(d.Consumer, "after the end")
	if lost := b.trySettle(settlement(d, bus.VerdictRetry, "again")); len(lost) != 1 {
		b.Error("a second verdict was accepted")
	}
	b.want(d.Event.ID, d.Consumer, want)
}

func doneEndsADelivery(b bench) {
	b.emit()
	d := b.claimOne(b.consumer)
	b.settle(settlement(d, bus.VerdictDone, ""))
	b.wantEnded(d, State{Status: "done", Attempts: 1})
}

func skipEndsADelivery(b bench) {
	b.emit()
	d := b.claimOne(b.consumer)
	b.settle(settlement(d, bus.VerdictSkip, "the contact has left"))
	b.wantEnded(d, State{Status: "skipped", Attempts: 1, LastError: "the contact has left"})
}

func permanentIsDeadAtOnce(b bench) {
	b.emit()
	d := b.claimOne(b.consumer)
	b.settle(settlement(d, bus.VerdictDead, "no such number"))
	b.wantEnded(d, State{Status: "dead", Attempts: 1, LastError: "no such number"})
}

func retryWaitsForTheStep(b bench) {
	consumer := b.register(bus.RetryPolicy{Steps: []time.Duration{step, 3 * step}, MaxAttempts: 10})
	event := b.emit()
	for attempt, wait := range []time.Duration{step, 3 * step, 3 * step} { // the last step repeats
		d := b.claimOne(consumer)
		b.settle(settlement(d, bus.VerdictRetry, "refused"))
		b.want(event, consumer, State{Status: "pending", Attempts: attempt + 1, LastError: "refused"})
		b.log.Elapse(wait * 9 / 10)
		b.claimNone(consumer, "before the step has passed")
		b.log.Elapse(wait * 2 / 10)
	}
	if d := b.claimOne(consumer); d.Attempt != 4 {
		b.Errorf("attempt %d after three retries, want 4", d.Attempt)
	}
}

func jitterNeverShortens(b bench) {
	consumer := b.register(bus.RetryPolicy{Steps: []time.Duration{10 * step}, Jitter: 1, MaxAttempts: 2})
	const events = 100
	b.log.Emit(b.typ, events)
	claimAndSettle := func(verdict bus.Verdict) int {
		claimed := b.claim(consumer, events)
		b.settle(all(claimed, verdict)...)
		return len(claimed)
	}
	claimAndSettle(bus.VerdictRetry)
	b.log.Elapse(9 * step)
	if n := claimAndSettle(bus.VerdictDone); n != 0 {
		b.Errorf("%d of %d came back before the step", n, events)
	}
	b.log.Elapse(6 * step) // half of the time that jitter may add
	early := claimAndSettle(bus.VerdictDone)
	b.log.Elapse(6 * step)
	late := claimAndSettle(bus.VerdictDone)
	if early == 0 || late == 0 || early+late != events {
		b.Errorf("%d came back in the first half of the jitter and %d in the second, want %d over both", early, late, events)
	}
}

func retryIsNotEarlierThanTold(b bench) {
	for told, want := range map[time.Duration]time.Duration{
		5 * step: 5 * step,
		step / 5: step, // nor earlier than the policy says
		-step:    step,
	} {
		consumer := b.register(bus.Ladder([]time.Duration{step}))
		b.emit()
		b.settle(bus.Settlement{Delivery: b.claimOne(consumer), Verdict: bus.VerdictRetry, Error: "busy", NotUntil: told})
		b.log.Elapse(want * 9 / 10)
		b.claimNone(consumer, "earlier than told")
		b.log.Elapse(want * 2 / 10)
		b.claimOne(consumer)
	}
}

func postponedSpendsNothing(b bench) {
	event := b.emit()
	for _, wait := range []time.Duration{step, 0, -step} {
		d := b.claimOne(b.consumer)
		if d.Attempt != 1 || d.Budgeted != 1 {
			b.Errorf("attempt %d (%d of the budget) after postponements only, want the first", d.Attempt, d.Budgeted)
		}
		b.settle(bus.Settlement{Delivery: d, Verdict: bus.VerdictPostpone, Error: "too early", NotUntil: wait})
		b.want(event, b.consumer, State{Status: "pending", LastError: "too early"})
		if wait > 0 {
			b.log.Elapse(wait * 9 / 10)
			b.claimNone(b.consumer, "earlier than told")
			b.log.Elapse(wait * 2 / 10)
		}
	}
	b.settle(settlement(b.claimOne(b.consumer), bus.VerdictRetry, "refused"))
	b.log.Elapse(2 * step)
	last := b.claimOne(b.consumer)
	b.settle(settlement(last, bus.VerdictPostpone, ""))
	b.want(event, b.consumer, State{Status: "pending", Attempts: 1, LastError: "refused"})
	if lost := b.trySettle(settlement(last, bus.VerdictDone, "")); len(lost) != 1 {
		b.Error("a verdict was accepted after the postponement")
	}
	again := b.claimOne(b.consumer)
	if again.Attempt != 2 || again.Budgeted != 2 {
		b.Errorf("attempt %d (%d of the budget) after one failure, want the second", again.Attempt, again.Budgeted)
	}
	b.settle(settlement(again, bus.VerdictDone, ""))
	b.wantEnded(again, State{Status: "done", Attempts: 2})
}

func lastAttemptEndsDead(b bench) {
	b.emit()
	for range 2 {
		b.settle(settlement(b.claimOne(b.consumer), bus.VerdictRetry, "refused"))
		b.log.Elapse(2 * step)
	}
	last := b.claimOne(b.consumer)
	b.settle(bus.Settlement{Delivery: last, Verdict: bus.VerdictRetry, Error: "refused again", NotUntil: step})
	b.wantEnded(last, State{Status: "dead", Attempts: 3, LastError: "refused again"})
}

func mixedBatchSettlesEach(b bench) {
	once := b.register(bus.Ladder(nil))
	events := b.log.Emit(b.typ, 4)
	claimed := make(map[string]map[uuid.UUID]*bus.Delivery)
	for _, consumer := range []string{b.consumer, once} {
		claimed[consumer] = make(map[uuid.UUID]*bus.Delivery)
		for _, d := range b.claim(consumer, 10) {
			claimed[consumer][d.Event.ID] = &d
		}
	}
	stale := *claimed[once][events[3]]
	stale.Token--
	detailed := claimed[b.consumer][events[1]]
	detailed.Detail = &bus.AttemptDetail{StartedAt: time.Now(), Duration: time.Second, StatusCode: 503, Response: "busy"}
	lost := b.trySettle(
		settlement(claimed[b.consumer][events[0]], bus.VerdictDone, ""),
		settlement(claimed[once][events[0]], bus.VerdictRetry, "refused"),
		settlement(detailed, bus.VerdictRetry, "busy"),
		settlement(&stale, bus.VerdictDone, ""),
		settlement(claimed[once][events[1]], bus.VerdictSkip, "pointless"),
		settlement(claimed[b.consumer][events[2]], bus.VerdictDead, "impossible"),
	)
	if want := []bus.Lease{stale.Lease()}; !slices.Equal(lost, want) {
		b.Errorf("Settle() lost %v, want %v", lost, want)
	}
	b.want(events[0], b.consumer, State{Status: "done", Attempts: 1})
	b.want(events[0], once, State{Status: "dead", Attempts: 1, LastError: "refused"})
	b.want(events[1], b.consumer, State{Status: "pending", Attempts: 1, LastError: "busy"})
	b.want(events[1], once, State{Status: "skipped", Attempts: 1, LastError: "pointless"})
	b.want(events[2], b.consumer, State{Status: "dead", Attempts: 1, LastError: "impossible"})
	b.want(events[2], once, State{Status: "processing"})
	b.want(events[3], once, State{Status: "processing"})
}

func consumersAreApart(b bench) {
	other := b.register(bus.Ladder([]time.Duration{step}))
	event := b.emit()
	mine, theirs := b.claimOne(b.consumer), b.claimOne(other)
	if mine.Key == theirs.Key || mine.ID == theirs.ID {
		b.Errorf("both consumers have delivery %s, key %v", mine.ID, mine.Key)
	}
	b.settle(settlement(mine, bus.VerdictDead, "impossible"))
	b.want(event, other, State{Status: "processing"})
	b.settle(settlement(theirs, bus.VerdictDone, ""))
	b.want(event, other, State{Status: "done", Attempts: 1})
	b.want(event, b.consumer, State{Status: "dead", Attempts: 1, LastError: "impossible"})
}

// What a handler says may be anything that a receiver has answered it.
func anyTextIsAccepted(b bench) {
	texts := []string{"a\x00b", "\xff\xfe", strings.Repeat("é", 1<<20), "", "\u2028\U0001F600"}
	for _, verdict := range []bus.Verdict{bus.VerdictRetry, bus.VerdictSkip, bus.VerdictDead} {
		consumer := b.register(bus.Ladder([]time.Duration{step}))
		events := b.log.Emit(b.typ, len(texts))
		claimed := b.claim(consumer, len(texts))
		settlements := make([]bus.Settlement, len(claimed))
		for i := range claimed {
			claimed[i].Detail = &bus.AttemptDetail{StartedAt: time.Now(), Response: texts[i]}
			settlements[i] = settlement(&claimed[i], verdict, texts[i])
		}
		b.settle(settlements...)
		want := map[bus.Verdict]string{bus.VerdictRetry: "pending", bus.VerdictSkip: "skipped", bus.VerdictDead: "dead"}[verdict]
		for _, event := range events {
			if got := b.log.State(event, consumer).Status; got != want {
				b.Errorf("status %q after %s, want %q", got, verdict, want)
			}
		}
	}
}
