package bus

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Key identifies a delivery among the unfinished ones: one event (by its place
// Seq) for one consumer and one destination. Destination is the zero UUID for a
// consumer that delivers to nothing outside itself.
type Key struct {
	ConsumerID  int16
	Destination uuid.UUID
	OrgID       uuid.UUID
	Lane        int64
	Seq         int64
}

// Delivery is one claimed delivery: an event, who reads it, and the lease under
// which it may be settled.
type Delivery struct {
	Key
	ID       uuid.UUID // the same at every attempt and replay; see DeliveryID
	Token    int64     // the lease; later leases have larger tokens
	Consumer string
	Event    Event

	// Interactive is whether somebody waits for what is told, by the event's type.
	// All else is bulk. It decides what is claimed first, and nothing else.
	Interactive bool

	Attempt     int // number of this try over the whole life of the delivery, from 1
	Budgeted    int // number of this try since the last replay, from 1
	MaxAttempts int // tries that a delivery of this consumer has before it is dead

	// Suspect is whether a process has died with the delivery in hand since it was
	// last settled. A process holds one suspect at a time, so that the next crash
	// tells whose it is.
	Suspect bool

	// Unknown is whether an earlier attempt has begun its effect and then died, so
	// that nobody knows what has become of it.
	Unknown bool

	// Detail is kept with the attempt when the handler fills it.
	Detail *AttemptDetail

	hold *hold // nil unless a Drainer has it in hand
}

// hold is what an attempt in hand has come to.
type hold struct {
	begin   func(ctx context.Context) error
	begun   atomic.Bool // the effect may have happened
	settled atomic.Bool // nothing is left to settle
}

// BeginEffect must be called right before what a consumer with [EffectOnce] must
// not repeat, and succeed. From then on an attempt that ends without a word of
// its handler is uncertain: it is never repeated unseen.
func (d *Delivery) BeginEffect(ctx context.Context) error {
	if d.hold == nil {
		return ErrLeaseLost
	}
	if err := d.hold.begin(ctx); err != nil {
		return err
	}
	d.hold.begun.Store(true)
	return nil
}

// MarkSettled tells that d was settled as done in the transaction of its effect.
// Whatever its handler returns after that changes nothing.
func (d *Delivery) MarkSettled() {
	if d.hold != nil {
		d.hold.settled.Store(true)
	}
}

// Lease returns what d may be settled under.
func (d *Delivery) Lease() Lease { return Lease{Key: d.Key, Token: d.Token} }

// AttemptDetail is what a handler that calls outside leaves of one try.
type AttemptDetail struct {
	StartedAt  time.Time
	Duration   time.Duration
	StatusCode int    // of the answer; 0 when there was none
	Response   string // the first bytes of the answer, as text
}

// deliveryNamespace is the UUIDv5 namespace of delivery ids that receivers of
// outgoing webhooks already know.
var deliveryNamespace = uuid.UUID{ //nolint:gochecknoglobals // a constant that the language has no form for
	0xce, 0x41, 0x0f, 0x0a, 0xca, 0x5e, 0x4a, 0x06, 0x89, 0xa0, 0xbf, 0xe5, 0x72, 0x22, 0xd7, 0x4f,
}

// DeliveryID returns the identity of the delivery of an event to a destination
// of a consumer. It is computed, never drawn, so that no crash, replay or
// repeated relay can give the same delivery a second identity.
func DeliveryID(event uuid.UUID, consumer string, destination uuid.UUID) uuid.UUID {
	name := event.String() + ":" + consumer + ":"
	if destination != uuid.Nil {
		name += destination.String()
	}
	return uuid.NewSHA1(deliveryNamespace, []byte(name))
}
