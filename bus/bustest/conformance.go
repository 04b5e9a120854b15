package bustest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// Subject is a bus.Log under test, with what the suite needs beside it. Its
// methods fail the test that made it when they cannot do their work.
type Subject interface {
	bus.Log
	// Register makes consumers known; they read what is emitted from then on.
	Register(consumers ...bus.Consumer)
	// Emit appends n events of a type and makes their deliveries due.
	Emit(typ bus.Type, n int) []uuid.UUID
	// NewOrg returns an organization that nobody else uses.
	NewOrg() uuid.UUID
	// EmitTo is Emit for an organization, with a destination or the zero one.
	EmitTo(org, destination uuid.UUID, typ bus.Type, n int) []uuid.UUID
	// MakeInteractive makes the deliveries of events interactive.
	MakeInteractive(events ...uuid.UUID)
	// Suspend makes an organization's deliveries wait.
	Suspend(org uuid.UUID)
	// Disable makes the deliveries for a destination of an organization wait.
	Disable(org, destination uuid.UUID)
	// Elapse makes the deliveries of what was emitted as old as if d had passed.
	Elapse(d time.Duration)
	// State tells what has become of an event for a consumer.
	State(event uuid.UUID, consumer string) State
}

var _ Subject = (*Log)(nil)

// Conformance is what every bus.Log must do. newLog is called once for each
// test of the suite, which uses consumers and an event type of its own. A lease
// must be long against the time a busy machine takes for a test; the suite never
// waits for one.
func Conformance(t *testing.T, newLog func(t *testing.T) Subject) {
	t.Helper()
	suite := map[string]func(bench){
		"claims respect limit and due time":                            claimsRespectLimitAndDueTime,
		"one claim serves several consumers, each within its limit":    oneClaimServesSeveralConsumers,
		"nothing is done for nothing":                                  nothingIsDoneForNothing,
		"a lease excludes until it ends":                               leaseExcludesUntilItEnds,
		"a delivery is the same at every attempt":                      deliveryIsTheSameAtEveryAttempt,
		"the crash of a process with many in hand counts nothing":      crashOfManyCountsNothing,
		"the crash of a suspect counts, ever later, until it is dead":  loneCrashCounts,
		"an effect begins under the lease only":                        effectBeginsUnderTheLeaseOnly,
		"a crash after the beginning of an effect is unknown":          crashAfterTheBeginningIsUnknown,
		"a verdict clears the effect that was begun":                   verdictClearsTheEffect,
		"an effect that is known as not done leaves a suspect":         effectNotDoneStaysASuspect,
		"lone crashes after the beginning end uncertain":               loneCrashesAfterTheBeginningEndUncertain,
		"uncertain ends a delivery":                                    uncertainEndsADelivery,
		"a verdict clears a suspect":                                   verdictClearsASuspect,
		"a claim takes one suspect of all, within the limits":          oneSuspectAtATime,
		"a poison ends dead and takes no innocent with it":             poisonEndsAlone,
		"four kills with a hundred in hand bury nobody":                fourKillsBuryNobody,
		"only the current token settles":                               onlyTheCurrentTokenSettles,
		"a lease that ran out is good until another claims":            expiredLeaseIsGoodUntilAnotherClaims,
		"an extension renews, and tells what is lost":                  extensionRenewsAndTellsWhatIsLost,
		"what is settled cannot be extended":                           settledCannotBeExtended,
		"done ends a delivery":                                         doneEndsADelivery,
		"skip ends a delivery with its reason":                         skipEndsADelivery,
		"permanent is dead at once":                                    permanentIsDeadAtOnce,
		"retry waits for the step of its attempt":                      retryWaitsForTheStep,
		"jitter adds up to its share and never shortens":               jitterNeverShortens,
		"a retry is not earlier than it was told":                      retryIsNotEarlierThanTold,
		"a postponed try spends nothing":                               postponedSpendsNothing,
		"the last attempt of the budget ends dead":                     lastAttemptEndsDead,
		"a batch of mixed verdicts settles each":                       mixedBatchSettlesEach,
		"any text is accepted as an error":                             anyTextIsAccepted,
		"twenty claimers handle each of a thousand once":               twentyClaimers,
		"settling and extending the same leases at once hinder no one": settleWhileExtending,
		"the deliveries of an event to two consumers know of no other": consumersAreApart,
		"who is alone gets all slots":                                  aloneGetsAll,
		"one event is claimed first beside a thousand of another":      oneBesideAThousand,
		"each of two has a share while both have due work":             twoHaveTheirShares,
		"what is in hand counts":                                       inHandCounts,
		"the overflow is for who is below their share":                 overflowIsForOthers,
		"a destination has half while another has due work":            destinationsHaveHalf,
		"a destination has half of a share while others are due":       destinationHasHalfOfTheShare,
		"a destination has half of a share in the overflow":            destinationHasHalfInTheOverflow,
		"a destination is not kept waiting by one that hangs":          destinationBesideAGreedyOne,
		"a hundred organizations take turns":                           organizationsTakeTurns,
		"what waits for a pause hides nothing":                         pausedHidesNothing,
		"interactive comes first, whoever it is for":                   interactiveComesFirst,
		"interactive comes first beside a backlog of the same":         interactiveBesideABacklog,
		"bulk leaves the express slots free":                           bulkLeavesExpressSlots,
		"interactive alone gets the express slots too":                 interactiveAloneGetsAll,
		"bulk is not kept waiting by interactive for ever":             bulkIsNotStarved,
		"shares hold across the classes":                               sharesHoldAcrossClasses,
		"in each class organizations take turns":                       classesTakeTurnsApart,
	}
	for name, test := range suite {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newBench(t, newLog(t)))
		})
	}
}

// bench is one test's Subject, with an event type and a consumer of its own.
type bench struct {
	*testing.T
	log      Subject
	typ      bus.Type
	consumer string // retries twice, after step
}

// step is the wait before each retry of a bench's consumer.
const step = time.Hour

func newBench(t *testing.T, log Subject) bench {
	t.Helper()
	b := bench{T: t, log: log, typ: bus.Type("custom.t" + unique())}
	b.consumer = b.register(bus.Ladder([]time.Duration{step, step}))
	return b
}

func unique() string { return strings.ReplaceAll(uuid.NewString(), "-", "")[:20] }

// register adds a consumer of the bench's events and returns its name.
func (b bench) register(retry bus.RetryPolicy) string {
	b.Helper()
	name := "t" + unique() + "-worker"
	b.log.Register(bus.Consumer{
		Name: name, Types: []bus.Type{b.typ}, Effect: bus.EffectAtLeastOnce, Retry: retry,
		Concurrency: 1, Timeout: time.Minute,
	})
	return name
}

// emit appends one event and returns its id.
func (b bench) emit() uuid.UUID { return b.log.Emit(b.typ, 1)[0] }

// claim claims for one consumer.
func (b bench) claim(consumer string, limit int) []bus.Delivery {
	b.Helper()
	claimed, err := b.log.Claim(b.Context(), bus.Claim{Wants: []bus.Want{{Consumer: consumer, Limit: limit}}, Suspect: true})
	if err != nil {
		b.Fatalf("Claim() = %v", err)
	}
	return claimed
}

// claimOne claims what must be the only due delivery of a consumer.
func (b bench) claimOne(consumer string) *bus.Delivery {
	b.Helper()
	claimed := b.claim(consumer, 10)
	if len(claimed) != 1 {
		b.Fatalf("Claim() = %d deliveries, want the one that is due", len(claimed))
	}
	return &claimed[0]
}

// claimNone fails when anything is due for a consumer.
func (b bench) claimNone(consumer, when string) {
	b.Helper()
	if got := b.claim(consumer, 10); len(got) != 0 {
		b.Errorf("Claim() = %d deliveries %s, want none", len(got), when)
	}
}

// settle writes verdicts and fails when one is refused.
func (b bench) settle(settlements ...bus.Settlement) {
	b.Helper()
	if lost := b.trySettle(settlements...); len(lost) != 0 {
		b.Errorf("Settle() lost %d of %d, want none", len(lost), len(settlements))
	}
}

func (b bench) trySettle(settlements ...bus.Settlement) []bus.Lease {
	b.Helper()
	lost, err := b.log.Settle(b.Context(), settlements)
	if err != nil {
		b.Fatalf("Settle() = %v", err)
	}
	return lost
}

func (b bench) extend(leases ...bus.Lease) []bus.Lease {
	b.Helper()
	lost, err := b.log.Extend(b.Context(), leases)
	if err != nil {
		b.Fatalf("Extend() = %v", err)
	}
	return lost
}

// want compares what has become of an event for a consumer.
func (b bench) want(event uuid.UUID, consumer string, want State) {
	b.Helper()
	if got := b.log.State(event, consumer); got != want {
		b.Errorf("State() = %+v, want %+v", got, want)
	}
}

func settlement(d *bus.Delivery, v bus.Verdict, text string) bus.Settlement {
	return bus.Settlement{Delivery: d, Verdict: v, Error: text}
}

// all gives each of several deliveries the same verdict.
func all(claimed []bus.Delivery, v bus.Verdict) []bus.Settlement {
	settlements := make([]bus.Settlement, len(claimed))
	for i := range claimed {
		settlements[i] = settlement(&claimed[i], v, string(v))
	}
	return settlements
}
