// Package webhook delivers events to the URLs of subscribers.
//
// A delivery is one event for one subscription. Each attempt is a POST of the same
// bytes ([Body.Encode], frozen at the first attempt) with fresh headers ([Headers]),
// and [Decide] says what its result means:
//
//	2xx                           done; the response body does not matter
//	400 413 415 422 410           dead at once
//	401 403 407                   retried, dead after the third attempt
//	3xx                           retried as redirect_not_followed; never followed
//	429 503 with Retry-After      retried, not before it; at most a day
//	every other status            retried
//	no answer                     retried; Uncertain when it may have arrived
//	blocked address, bad request  dead at once; nothing was sent
//
// # What receivers are promised
//
// At least once. A delivery keeps its id (X-Webhook-Delivery, also webhook-id) for
// ever: in every attempt, after a crash and when a person sends it again. Receivers
// drop what they have seen. X-Deskcomm-Idempotency-Key is the id of the event, which
// several subscriptions of one receiver share.
//
// The body is one line: event, occurred_at, happened_at, delivery_id, data, in this
// order. data is the payload of the event as it was emitted, with contact added when
// the payload names one by contact_id and has no such key. It carries the fields of
// [Contact] and no others: not the organization, nor documents, consent or origin.
//
// # What receivers must do
//
// Verify before parsing, over the raw bytes: see [Verify], which may be copied. Require
// X-Webhook-Signature and never fall back to X-Deskcomm-Signature; refuse a signed
// time more than five minutes away; compare in constant time; answer 2xx fast and
// work later. Libraries of Standard Webhooks work too, with [StandardSecret].
package webhook
