// Package waha reads what the WhatsApp gateway (WAHA) posts to us: it checks the
// signature of a webhook, decodes its envelope and turns the payload, which
// differs by engine (WEBJS, WPP, NOWEB, GOWS), into one small set of updates.
//
// The package is pure: no clock, no database, no network. The same bytes always
// give the same update, so an archived body can be read again at any time.
//
//	raw body ── Verify ──► authentic or not            (the caller's policy)
//	    │
//	    └── ParseEnvelope ──► Envelope ── Normalise ──► Update
//	         stage one: who          stage two: what        Message, Ack, Edit, Revoke,
//	         and which event         it says                Reaction, SessionStatus, Ignored
//
// Between the two stages the caller stores the raw body: stage one refuses only
// what is not a JSON object with an event name, so that nothing a gateway can
// say is lost before it is archived.
//
// # What is promised
//
//   - Unknown fields, unknown events, missing fields, numbers written as text
//     and fractional times are accepted. Null, "" and absent mean the same.
//   - Every string that leaves is valid UTF-8 without NUL, and Envelope.Payload
//     is JSON that a jsonb column accepts. The raw body stays the caller's.
//   - Nothing disappears without a word: an update that is not wanted is
//     Ignored with a Reason, a body that breaks the contract is a
//     *ContractError, which names JSON pointers and rules and never a value.
//   - Reading is linear in the size of the body, whatever is in it.
//   - A message is known by its bare id, the only part that survives when the
//     same message is told twice, under a phone and under a LID.
//   - The operator's push name is never taken for the customer's.
//
// # What is left to the caller
//
// Dedupe (Envelope.DedupeKey, then channel and bare id), the upward-only state
// machine of acks, parking updates whose message has not arrived, downloading
// media, and lookup of phones by PhoneVariants. No order may be assumed: an ack
// can come before its message, an edit before both.
package waha
