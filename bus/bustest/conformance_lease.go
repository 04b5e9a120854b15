package bustest

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

func claimsRespectLimitAndDueTime(b bench) {
	events := b.log.Emit(b.typ, 5)
	got := b.claim(b.consumer, 2)
	if len(got) != 2 {
		b.Fatalf("Claim(limit 2) = %d of 5 due deliveries", len(got))
	}
	b.settle(settlement(&got[0], bus.VerdictRetry, "later"), settlement(&got[1], bus.VerdictRetry, "later"))
	rest := b.claim(b.consumer, 10)
	if len(rest) != 3 {
		b.Fatalf("Claim(limit 10) = %d deliveries, want the 3 that are due", len(rest))
	}
	var claimed []uuid.UUID
	for _, d := range slices.Concat(got, rest) {
		claimed = append(claimed, d.Event.ID)
	}
	slices.SortFunc(claimed, compareIDs)
	slices.SortFunc(events, compareIDs)
	if !slices.Equal(claimed, events) {
		b.Errorf("claimed events %v, want those that were emitted: %v", claimed, events)
	}
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }

func oneClaimServesSeveralConsumers(b bench) {
	other, idle := b.register(bus.Ladder(nil)), b.register(bus.Ladder(nil))
	b.log.Emit(b.typ, 5)
	claimed, err := b.log.Claim(b.Context(), bus.Claim{Wants: []bus.Want{{Consumer: b.consumer, Limit: 2}, {Consumer: other, Limit: 4}}})
	if err != nil {
		b.Fatal(err)
	}
	got := make(map[string]int)
	for _, d := range claimed {
		got[d.Consumer]++
	}
	if want := map[string]int{b.consumer: 2, other: 4}; !maps.Equal(got, want) {
		b.Errorf("Claim() = %v, want %v", got, want)
	}
	if n := len(b.claim(idle, 10)); n != 5 {
		b.Errorf("Claim() = %d deliveries of who was not asked for, want all 5", n)
	}
}

func nothingIsDoneForNothing(b bench) {
	b.emit()
	claimed, err := b.log.Claim(b.Context(), bus.Claim{Suspect: true})
	if err != nil || len(claimed) != 0 {
		b.Errorf("Claim(nothing) = %d deliveries, %v", len(claimed), err)
	}
	b.claimNone("t"+unique()+"-worker", "for a consumer that nobody registered")
	b.settle()
	if lost := b.extend(); len(lost) != 0 {
		b.Errorf("Extend(nothing) lost %d", len(lost))
	}
}

func leaseExcludesUntilItEnds(b bench) {
	event := b.emit()
	first := b.claimOne(b.consumer)
	b.want(event, b.consumer, State{Status: "processing"})
	b.claimNone(b.consumer, "just after the claim")
	b.log.Elapse(b.log.LeaseTime() * 9 / 10)
	b.claimNone(b.consumer, "before the lease ends")
	b.log.Elapse(b.log.LeaseTime() * 2 / 10)
	b.claimNone(b.consumer, "that meets the lease which has run out")
	second := b.claimOne(b.consumer)
	if second.Token <= first.Token {
		b.Errorf("token %d after %d, want a larger one", second.Token, first.Token)
	}
	b.claimNone(b.consumer, "just after the second claim")
}

func deliveryIsTheSameAtEveryAttempt(b bench) {
	event := b.emit()
	first := *b.claimOne(b.consumer)
	if first.Event.ID != event || first.Event.Type != b.typ || first.Consumer != b.consumer || first.OrgID != first.Event.OrgID {
		b.Errorf("claimed %+v, want event %s of %s for %s", first, event, b.typ, b.consumer)
	}
	if first.ID != bus.DeliveryID(event, b.consumer, uuid.Nil) {
		b.Errorf("delivery id %s, want the one computed of event and consumer", first.ID)
	}
	if first.Attempt != 1 || first.Budgeted != 1 || first.MaxAttempts != 3 {
		b.Errorf("attempt %d (%d of %d), want the first of 3", first.Attempt, first.Budgeted, first.MaxAttempts)
	}
	b.settle(settlement(&first, bus.VerdictRetry, "later"))
	b.log.Elapse(2 * step)
	second := *b.claimOne(b.consumer)
	b.die(b.consumer)
	third := *b.claimOne(b.consumer)
	for _, later := range []bus.Delivery{second, third} {
		later.Token, later.Attempt, later.Budgeted, later.Suspect = first.Token, first.Attempt, first.Budgeted, first.Suspect
		if !reflect.DeepEqual(later, first) {
			b.Errorf("a later attempt has %+v, want %+v", later, first)
		}
	}
}

func onlyTheCurrentTokenSettles(b bench) {
	event := b.emit()
	first := b.claimOne(b.consumer)
	b.die(b.consumer)
	second := b.claimOne(b.consumer)
	for _, v := range []bus.Verdict{bus.VerdictDone, bus.VerdictRetry, bus.VerdictPostpone, bus.VerdictDead, bus.VerdictSkip} {
		if got, want := b.trySettle(settlement(first, v, "late")), []bus.Lease{first.Lease()}; !slices.Equal(got, want) {
			b.Errorf("Settle(%s) under a stale token lost %v, want %v", v, got, want)
		}
		b.want(event, b.consumer, State{Status: "processing"})
	}
	b.claimNone(b.consumer, "after a late verdict")
	b.settle(settlement(second, bus.VerdictDone, ""))
	b.want(event, b.consumer, State{Status: "done", Attempts: 1})
}

func expiredLeaseIsGoodUntilAnotherClaims(b bench) {
	event := b.emit()
	d := b.claimOne(b.consumer)
	b.log.Elapse(2 * b.log.LeaseTime())
	if lost := b.extend(d.Lease()); len(lost) != 0 {
		b.Error("Extend() lost what nobody else has claimed")
	}
	b.claimNone(b.consumer, "after the extension")
	b.log.Elapse(2 * b.log.LeaseTime())
	b.settle(settlement(d, bus.VerdictDone, ""))
	b.want(event, b.consumer, State{Status: "done", Attempts: 1})
}

func extensionRenewsAndTellsWhatIsLost(b bench) {
	b.log.Emit(b.typ, 3)
	claimed := b.claim(b.consumer, 3)
	kept, lapsed := claimed[0], claimed[1:]
	b.log.Elapse(b.log.LeaseTime() * 9 / 10)
	if lost := b.extend(kept.Lease()); len(lost) != 0 {
		b.Errorf("Extend() lost %v", lost)
	}
	b.log.Elapse(b.log.LeaseTime() * 9 / 10)
	b.claimNone(b.consumer, "that meets the leases which were not renewed")
	again := b.claimOne(b.consumer)
	if again.Key == kept.Key {
		b.Fatal("claimed what was renewed")
	}
	want := []bus.Lease{lapsed[0].Lease(), lapsed[1].Lease()}
	if got := b.extend(lapsed[0].Lease(), kept.Lease(), lapsed[1].Lease()); !slices.Equal(got, want) {
		b.Errorf("Extend() lost %v, want %v", got, want)
	}
	if lost := b.extend(kept.Lease(), again.Lease()); len(lost) != 0 {
		b.Errorf("Extend() under the current tokens lost %v", lost)
	}
}

func settledCannotBeExtended(b bench) {
	b.log.Emit(b.typ, 2)
	claimed := b.claim(b.consumer, 2)
	b.settle(settlement(&claimed[0], bus.VerdictDone, ""), settlement(&claimed[1], bus.VerdictRetry, "later"))
	if lost := b.extend(claimed[0].Lease(), claimed[1].Lease()); len(lost) != 2 {
		b.Errorf("Extend() lost %d of 2 settled deliveries, want both", len(lost))
	}
	b.log.Elapse(step * 11 / 10)
	if got := b.claimOne(b.consumer); got.Key != claimed[1].Key {
		b.Error("the delivery to be retried did not come back at its time")
	}
}

// A heartbeat renews the leases whose verdicts are being written at that very
// moment, in any order.
func settleWhileExtending(b bench) {
	const deliveries, rounds = 200, 20
	for range rounds {
		b.log.Emit(b.typ, deliveries)
		claimed := b.claim(b.consumer, deliveries)
		leases := make([]bus.Lease, len(claimed))
		for i := range claimed {
			leases[i] = claimed[i].Lease()
		}
		rand.Shuffle(len(leases), func(i, k int) { leases[i], leases[k] = leases[k], leases[i] })
		rand.Shuffle(len(claimed), func(i, k int) { claimed[i], claimed[k] = claimed[k], claimed[i] })
		var heart sync.WaitGroup
		heart.Go(func() {
			if _, err := b.log.Extend(b.Context(), leases); err != nil {
				b.Errorf("Extend() = %v", err)
			}
		})
		if lost, err := b.log.Settle(b.Context(), all(claimed, bus.VerdictDone)); err != nil || len(lost) != 0 {
			b.Errorf("Settle() lost %d, %v", len(lost), err)
		}
		heart.Wait()
	}
}

// twentyClaimers run until everything is settled; nothing may be handled twice
// and nothing left.
func twentyClaimers(b bench) {
	const events = 1000
	b.log.Emit(b.typ, events)
	var mu sync.Mutex
	handled, left := make(map[uuid.UUID]int), events
	var claimers sync.WaitGroup
	for range 20 {
		claimers.Go(func() {
			for n := events; n > 0; {
				claimed, err := b.log.Claim(b.Context(), bus.Claim{Wants: []bus.Want{{Consumer: b.consumer, Limit: 7}}})
				if err != nil {
					b.Error(err)
					return
				}
				mu.Lock()
				for _, d := range claimed {
					handled[d.Event.ID]++
				}
				left -= len(claimed)
				n = left
				mu.Unlock()
				if lost, err := b.log.Settle(b.Context(), all(claimed, bus.VerdictDone)); err != nil || len(lost) != 0 {
					b.Errorf("Settle() lost %d, %v", len(lost), err)
				}
			}
		})
	}
	claimers.Wait()
	for id, n := range handled {
		if n != 1 {
			b.Errorf("event %s was handled %d times", id, n)
		}
	}
	if len(handled) != events {
		b.Errorf("%d events were handled, want %d", len(handled), events)
	}
}
