// Package bus is the core of deskcomm: what an event is, who reads it, and how
// one delivery of it is brought to an end. It knows no database and no network;
// package db provides the [Log] that it drains.
//
// # The life of an event
//
//	domain change ─┐
//	               ├─ one transaction ─▶ event_log + outbox
//	event ─────────┘                          │ relay: gives it its place (seq)
//	                                          ▼ and one delivery per consumer
//	                                      delivery
//	             claim (lease token)          │
//	      pending ───────────────▶ processing ┤
//	         ▲                                ├─ nil ───────────▶ done (receipt)
//	         ├── due again ◀── error ─────────┤
//	         ├── no attempt spent ◀ Postpone ─┤
//	         ├── suspect ◀── crash ───────────┤
//	         │                                ├─ Skip ──────────▶ skipped (receipt)
//	         ├── replay, by a person ── dead ◀┼─ Permanent, or the last attempt
//	         └── the same ──────── uncertain ◀┴─ Uncertain, or cut off after BeginEffect
//	                                     └──── confirm or discard, by a person ─▶ done, discarded
//
// # What is promised
//
// An event and the change it tells of commit or roll back together. Every event
// reaches each of its consumers at least once; each of them has its own
// delivery, with its own attempts, delays and end. A claim is a lease: only the
// holder of its token can settle, and a holder that lost it is cancelled and
// refused. When the process dies, leases run out and the deliveries are claimed
// again, one by one, under the same delivery id, so that a receiver can tell a
// repetition. What dies with its process again, alone, spends its attempts so.
//
// The effect of a consumer with [EffectLocal] happens exactly once. That of one
// with [EffectOnce] is never repeated without the word of its handler, of what it
// is reconciled with, or of a person.
//
// What somebody waits for is interactive, by its type, and is claimed before the
// rest, which is bulk; it has a few slots of its own. Shares of slots come before
// classes, and an eighth of the slots goes to bulk while both are due.
//
// # What is not
//
// The bus does not make an outside effect happen exactly once; it gives
// every attempt of a delivery the same identity and leaves the rest to the
// receiver.
//
// # Order
//
// Every event carries its place (seq). A consumer is given events in that order
// where it asks for it, see [Ordering]: with [OrderingKey] those that share an
// order_key, and with [OrderingStrict] all of an organization and destination, are
// in a lane, in which one delivery is handled at a time. The first of a lane that
// waits for another try keeps those behind it waiting, and no other lane; when it
// ends, in whatever way, the next one follows at once. What a person replays comes
// back as the next of its lane, after later ones that have been handled
// meanwhile. What is in no lane is handled in any order.
package bus
