package webhook

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/deskcomm/deskcomm/handlers/outhttp"
)

// Outcome is what becomes of a delivery after one attempt.
type Outcome string

// The outcomes.
const (
	OutcomeDone  Outcome = "done"
	OutcomeRetry Outcome = "retry"
	OutcomeDead  Outcome = "dead"
)

// credentialAttempts is how often a receiver may refuse our credentials. A person
// may be replacing them at this moment.
const credentialAttempts = 3

// Decision is an [Outcome] with its reasons.
type Decision struct {
	Outcome Outcome
	// Code is the machine word: "delivered", "http_503", "redirect_not_followed", or
	// a cause of package outhttp.
	Code string
	// Message is for people. It holds nothing of the request or of the response.
	Message string
	// RetryAfter is the shortest wait before the next attempt; 0 leaves it to the
	// retry policy. It is set for [OutcomeRetry] only.
	RetryAfter time.Duration
	// Uncertain is set when the receiver may have got the event although the
	// attempt failed: it must expect the same delivery again.
	Uncertain bool
}

// Decide judges one attempt, numbered from 1. err is what [outhttp.Client.Do]
// returned beside res; now is the time of the response.
func Decide(res outhttp.Response, err error, attempt int, now time.Time) Decision {
	if err != nil {
		return decideError(err)
	}
	d := decideStatus(res, attempt, now)
	if d.Code == "" {
		d.Code = fmt.Sprintf("http_%d", res.Status)
	}
	return d
}

func decideStatus(res outhttp.Response, attempt int, now time.Time) Decision {
	switch status := res.Status; {
	case status >= 200 && status < 300:
		return Decision{Outcome: OutcomeDone, Code: "delivered", Message: says(status, "the event was delivered")}
	case status >= 300 && status < 400:
		return Decision{
			Outcome: OutcomeRetry, Code: "redirect_not_followed",
			Message: says(status, "redirects are not followed, the subscription needs the final URL"),
		}
	}
	switch res.Status {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return Decision{Outcome: OutcomeDead, Message: says(res.Status, "the receiver does not accept this event")}
	case http.StatusGone:
		return Decision{Outcome: OutcomeDead, Message: says(res.Status, "the receiver is gone for good")}
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return refusedCredentials(res.Status, attempt)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return Decision{
			Outcome: OutcomeRetry, Message: says(res.Status, "the receiver asks for patience"),
			RetryAfter: outhttp.RetryAfter(res.Header, now),
		}
	default:
		return Decision{Outcome: OutcomeRetry, Message: says(res.Status, "the receiver failed")}
	}
}

func refusedCredentials(status, attempt int) Decision {
	d := Decision{Outcome: OutcomeRetry, Message: says(status, "the receiver refuses our credentials")}
	if attempt >= credentialAttempts {
		d.Outcome = OutcomeDead
	}
	return d
}

func says(status int, meaning string) string {
	return fmt.Sprintf("the receiver answered %d: %s", status, meaning)
}

// decideError retries everything but what another attempt cannot change.
func decideError(err error) Decision {
	failure, ok := errors.AsType[*outhttp.Error](err)
	if !ok {
		return Decision{Outcome: OutcomeRetry, Code: "internal_error", Message: "the attempt could not be made", Uncertain: true}
	}
	d := Decision{
		Outcome: OutcomeRetry, Code: string(failure.Cause),
		Message: "no answer: " + failure.Error(), Uncertain: failure.Uncertain,
	}
	if failure.Cause == outhttp.CauseBlockedAddress || failure.Cause == outhttp.CauseInvalidRequest {
		d.Outcome, d.Message = OutcomeDead, "nothing was sent: "+failure.Error()
	}
	return d
}
