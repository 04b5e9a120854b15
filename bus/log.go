package bus

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Log is what the drain loop needs of the database.
type Log interface {
	// Claim leases due deliveries, up to the number wanted of each consumer, and
	// returns them with their events. One call serves all consumers. Deliveries
	// whose leases have run out it only makes suspects, or counts the crash of
	// those that are; they are for a later call.
	Claim(ctx context.Context, c Claim) ([]Delivery, error)
	// Settle brings claimed deliveries to their verdicts and returns the leases
	// that were no longer valid: nothing was changed for them.
	Settle(ctx context.Context, settlements []Settlement) (lost []Lease, err error)
	// Extend renews leases and returns those that are lost.
	Extend(ctx context.Context, leases []Lease) (lost []Lease, err error)
	// BeginEffect records, under the lease and for as long as it is valid, that an
	// effect may happen from now on. It renews the lease, or returns ErrLeaseLost.
	BeginEffect(ctx context.Context, lease Lease) error
	// LeaseTime is how long a claim or an extension lasts.
	LeaseTime() time.Duration
}

// Claim asks for due deliveries.
type Claim struct {
	Wants   []Want
	Suspect bool // one of them may be a suspect

	// Again is whether nothing is known to have become due since the last claim, so
	// that this one may go by what that has found and left, for a moment.
	Again bool

	// Relay is whether what has been emitted is to be relayed first, in the same
	// transaction: one commit for both.
	Relay bool
}

// Want asks for up to Limit deliveries of a consumer, for up to Express more that
// are interactive, and for up to Overflow more of organizations that have less
// than Share in hand.
//
// While several organizations have due work, none gets more than makes up Share
// with what it has in hand, of both classes; the one that is alone may get all of
// Limit and Express. Of what an organization may have, one destination gets at
// most half while another of them has due work.
//
// Within that, interactive deliveries come before bulk ones, but for as many bulk
// ones as Bulk, which come first. In each class, organizations with the least in
// hand come first, and among those the next after After or AfterInteractive.
type Want struct {
	Consumer         string
	Limit            int
	Express          int
	Overflow         int
	Side             int // part of Overflow for a destination whose organization has its share used up by another destination
	Share            int // 0 is no bound, and Limit all there is
	Bulk             int
	After            uuid.UUID // of bulk
	AfterInteractive uuid.UUID
	InHand           []InHand
}

// InHand is how many deliveries for a destination of an organization are being
// handled, of both classes.
type InHand struct {
	OrgID       uuid.UUID
	Destination uuid.UUID
	Count       int
}

// Lease names a delivery and the token it was claimed under.
type Lease struct {
	Key
	Token int64
}

// Verdict is the end of one attempt. Each but a postponement counts as one of the
// delivery's; until then it does not.
type Verdict string

// The verdicts.
const (
	VerdictDone     Verdict = "done"
	VerdictRetry    Verdict = "retry"     // due again by the policy, or dead when the budget is spent
	VerdictPostpone Verdict = "postponed" // due again when told; no attempt is spent
	VerdictDead     Verdict = "dead"
	VerdictSkip     Verdict = "skipped"

	// The effect may have happened; a person decides.
	VerdictUncertain Verdict = "uncertain"
)

// Settlement is the verdict over one claimed delivery.
type Settlement struct {
	Delivery *Delivery
	Verdict  Verdict
	Error    string        // for all but done: what a person should read; a postponement without one leaves the last
	NotUntil time.Duration // for retry: wait at least this long; for postponed: this long

	// Unknown is whether it is still unknown, at a retry or a postponement, what has
	// become of the effect of an earlier attempt. The last retry is uncertain then.
	Unknown bool
}
