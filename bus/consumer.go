package bus

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// WebhookDispatch is the consumer of every webhook subscription; the subscription
// is the destination. The relay knows it by this name too.
const WebhookDispatch = "webhook-dispatch-worker"

// Effect says what a consumer's handling does, and so what an unknown outcome
// means.
type Effect string

// The effects.
const (
	EffectLocal       Effect = "local"         // inside Postgres, in one transaction with the settlement
	EffectAtLeastOnce Effect = "at_least_once" // outside, safe to repeat under the same delivery id
	EffectOnce        Effect = "once"          // outside, not to be repeated unseen
)

// Ordering says in which order a consumer's deliveries are handled.
type Ordering string

// The orderings. What waits for another try, or for a person, keeps what comes
// after it in its lane waiting, and nothing else.
const (
	OrderingNone   Ordering = "none"   // any, and many at a time
	OrderingKey    Ordering = "key"    // one at a time for each order_key, else for each entity, in the order of seq
	OrderingStrict Ordering = "strict" // one at a time for each organization and destination, in the order of seq
)

// Consumer describes a named reader of the log.
type Consumer struct {
	Name        string        // ends in -worker; kept in receipts and dashboards, never renamed
	Types       []Type        // what it reads; none when subscriptions decide
	Effect      Effect        //
	Ordering    Ordering      // OrderingNone when empty; of what is emitted from now on
	Retry       RetryPolicy   //
	Concurrency int           // how many deliveries one process handles at a time
	Timeout     time.Duration // bound of one attempt
}

// Handler reads deliveries for one consumer.
//
// The verdict is the returned error: nil is done, [Permanent] is dead now,
// [RetryAfter] was told when to come again, [Postpone] has not been tried, [Skip]
// is pointless by now, [Uncertain] is for a person, any other error is retried by
// the policy. An error that is [ErrUnavailable] is postponed: the trouble is ours.
//
// After [Delivery.BeginEffect] an error that is none of these says that the effect
// has surely not happened. When nothing is said, or not by the handler (a panic,
// the timeout, a shutdown, a lost lease, [ErrUnavailable]), it is uncertain.
//
// Handle may be called again for the same
// delivery at any time, with the same ID. Its context ends when the lease is
// lost, when the timeout has passed or when the grace of a shutdown is over.
type Handler interface {
	Consumer() Consumer
	Handle(ctx context.Context, d *Delivery) error
}

// LocalHandler is a Handler whose effect is rows of the database, exactly once. Its
// Handle runs the effect in a transaction that settles the delivery too, under its
// lease; package db has it as DB.InDelivery.
type LocalHandler interface {
	Handler
	// SettlesItself is the promise to do so.
	SettlesItself()
}

// Reconciler is a Handler that can find out what has become of an effect.
type Reconciler interface {
	Handler
	// Reconcile is called instead of Handle when a process has died after the
	// effect had begun. An error leaves it unknown and is read like one of Handle,
	// but that no effect is repeated for it.
	Reconcile(ctx context.Context, d *Delivery) (Effected, error)
}

// Effected is what a Reconciler has found.
type Effected int

// What may have become of an effect. Not done must be certain: the effect is
// repeated then.
const (
	EffectUnknown Effected = iota
	EffectDone
	EffectNotDone
)

// wrapper is a handler around another one.
type wrapper interface{ Unwrap() Handler }

// as finds what else h is, or a handler that it wraps.
func as[T Handler](h Handler) (T, bool) {
	for {
		if t, ok := h.(T); ok {
			return t, true
		}
		w, ok := h.(wrapper)
		if !ok {
			var none T
			return none, false
		}
		h = w.Unwrap()
	}
}

// RetryPolicy decides when a failed delivery is due again. It is data: the
// database holds it on the consumer's row and computes the delay there.
type RetryPolicy struct {
	Steps       []time.Duration // wait after the 1st, 2nd, … failure; the last repeats
	Jitter      float64         // share of the step added at random, 0 to 1; never shortens
	MaxAttempts int             // attempts before the delivery is dead
}

// DefaultRetry is the ladder of most consumers: quick at first, then slow enough
// for a receiver to be repaired, nearly two hours in all.
func DefaultRetry() RetryPolicy {
	return RetryPolicy{
		Steps: []time.Duration{
			30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute,
			10 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour,
		},
		Jitter:      0.3,
		MaxAttempts: 8,
	}
}

// Ladder returns the policy of exactly these waits: one retry each, no jitter.
func Ladder(steps []time.Duration) RetryPolicy {
	return RetryPolicy{Steps: steps, MaxAttempts: len(steps) + 1}
}

var consumerPattern = regexp.MustCompile(`^[a-z][a-z0-9]*(-[a-z0-9]+)*-worker$`)

// CheckHandlers refuses a set of handlers that the bus could not run: a name
// that is malformed or used twice, an unknown type, a policy without steps.
func CheckHandlers(handlers []Handler) error {
	seen := make(map[string]bool, len(handlers))
	for _, h := range handlers {
		c := h.Consumer()
		if !consumerPattern.MatchString(c.Name) {
			return fmt.Errorf("consumer %q: the name must be kebab-case and end in -worker", c.Name)
		}
		if seen[c.Name] {
			return fmt.Errorf("consumer %q is registered twice", c.Name)
		}
		seen[c.Name] = true
		for _, t := range c.Types {
			if !Known(t) {
				return fmt.Errorf("consumer %q reads %q, which is not in the catalogue", c.Name, t)
			}
		}
		switch _, local := as[LocalHandler](h); {
		case c.Effect == EffectLocal && !local:
			return fmt.Errorf("consumer %q: a local effect needs a handler that settles itself", c.Name)
		case c.Effect != EffectLocal && local:
			return fmt.Errorf("consumer %q: a handler that settles itself has a local effect", c.Name)
		case c.Effect != EffectLocal && c.Effect != EffectAtLeastOnce && c.Effect != EffectOnce:
			return fmt.Errorf("consumer %q: there is no effect %q", c.Name, c.Effect)
		}
		if !slices.Contains([]Ordering{"", OrderingNone, OrderingKey, OrderingStrict}, c.Ordering) {
			return fmt.Errorf("consumer %q: there is no ordering %q", c.Name, c.Ordering)
		}
		if c.Retry.Jitter < 0 || c.Retry.Jitter > 1 || slices.ContainsFunc(c.Retry.Steps, func(d time.Duration) bool { return d < 0 }) {
			return fmt.Errorf("consumer %q: the retry policy's jitter must be between 0 and 1 and no step negative", c.Name)
		}
		if c.Retry.MaxAttempts < 1 || (c.Retry.MaxAttempts > 1 && len(c.Retry.Steps) == 0) {
			return fmt.Errorf("consumer %q: the retry policy has no steps", c.Name)
		}
		if c.Concurrency < 1 || c.Timeout <= 0 {
			return fmt.Errorf("consumer %q: concurrency and timeout must be positive", c.Name)
		}
	}
	return nil
}
