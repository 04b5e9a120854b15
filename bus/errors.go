package bus

import (
	"errors"
	"fmt"
	"time"
)

// Errors that somebody far away branches on.
var (
	ErrNotFound     = errors.New("not found")
	ErrConflict     = errors.New("not in a state that allows this")
	ErrUnauthorized = errors.New("not authorized")
	ErrUnavailable  = errors.New("the database is not available")
)

// FieldError is bad input: where it stands and the rule that it breaks, never
// the value itself.
type FieldError struct {
	Field string // dotted path: event_type, payload, events.3.entity_id
	Rule  string // what is accepted
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Rule }

// Invalid returns a FieldError.
func Invalid(field, rule string) error { return &FieldError{Field: field, Rule: rule} }

// PermanentError ends a delivery as dead at once.
type PermanentError struct{ Err error }

func (e *PermanentError) Error() string { return e.Err.Error() }
func (e *PermanentError) Unwrap() error { return e.Err }

// Permanent says that no later attempt can do better than err.
func Permanent(err error) error { return &PermanentError{Err: err} }

// RetryAfterError asks for the next attempt not before After has passed.
type RetryAfterError struct {
	After time.Duration
	Err   error
}

func (e *RetryAfterError) Error() string { return e.Err.Error() }
func (e *RetryAfterError) Unwrap() error { return e.Err }

// RetryAfter says that the receiver told when to come again. The attempt counts;
// the wait is never shorter than after, and never shorter than the policy's step.
func RetryAfter(after time.Duration, err error) error {
	return &RetryAfterError{After: after, Err: err}
}

// PostponeError asks for another try when After has passed, at no cost.
type PostponeError struct {
	After time.Duration
	Err   error
}

func (e *PostponeError) Error() string { return e.Err.Error() }
func (e *PostponeError) Unwrap() error { return e.Err }

// Postpone says that the time has not come: nothing was tried, so no attempt is
// spent. The delivery is due when after has passed, a second at least; it may be
// postponed without end.
func Postpone(after time.Duration, err error) error {
	return &PostponeError{After: after, Err: err}
}

// UncertainError ends a delivery whose effect may have happened.
type UncertainError struct{ Err error }

func (e *UncertainError) Error() string { return e.Err.Error() }
func (e *UncertainError) Unwrap() error { return e.Err }

// Uncertain says that the effect may have happened and nobody knows. The delivery
// is not tried again; a person decides what becomes of it.
func Uncertain(err error) error { return &UncertainError{Err: err} }

// SkipError ends a delivery without its effect, for a reason a person can read.
type SkipError struct{ Reason string }

func (e *SkipError) Error() string { return "skipped: " + e.Reason }

// Skip says that the delivery has become pointless.
func Skip(reason string) error { return &SkipError{Reason: reason} }

// ErrLeaseLost is the cause of a handler's context when another process has
// taken its delivery over.
var ErrLeaseLost = errors.New("lease lost")

// errCutOff is the error of an attempt that a shutdown has ended.
var errCutOff = errors.New("the attempt was cut off by a shutdown")

// ErrCrashed is what is kept of an attempt whose process has died.
var ErrCrashed = errors.New("the process died during the attempt")

// errUnknown ends a delivery whose process died after the effect had begun, when
// nobody can tell what has become of it.
var errUnknown = errors.New("the process died after the effect had begun")

// errNotDone is kept of an attempt that is known to have had no effect.
var errNotDone = errors.New("the process died before the effect has happened")

// errGone is the error of an attempt whose handler has ended its goroutine.
var errGone = errors.New("the handler ended its goroutine")

// panicError is a handler's panic, turned into the error of its attempt.
type panicError struct {
	value any
}

func (e *panicError) Error() string { return fmt.Sprintf("handler panicked: %v", e.value) }
