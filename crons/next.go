package crons

import (
	"time"

	"github.com/deskcomm/deskcomm/bus"
)

var errExpression = bus.Invalid("expression",
	"must be a cron expression of five fields, @hourly, @daily, @weekly, @monthly, @yearly or @every with 1m to 8784h")

// rule is an expression that was read.
type rule struct {
	after   func(time.Time) time.Time // the first match after a wall clock that is labelled as UTC; zero if there is none
	hourly  bool                      // it names every hour
	elapsed bool                      // it counts the time between instants, whatever the clocks show
}

// Next returns the first instant after another at which an expression is due by
// the clocks of a zone. It is a *bus.FieldError when the expression or the zone
// cannot be read, or the expression never comes true.
//
// What is due in the gap of clocks that go forward is due when they have done so;
// what is due in an hour that clocks repeat is due the first time. An expression
// that names every hour goes on in a repeated hour and is due once for each hour
// that passes.
func Next(expression, zone string, after time.Time) (time.Time, error) {
	r, err := readExpression(expression)
	if err != nil {
		return time.Time{}, err
	}
	loc, err := time.LoadLocation(zone)
	if err != nil || zone == "" || zone == "Local" {
		return time.Time{}, bus.Invalid("zone", "must be a name of the IANA time zone database, as in America/Sao_Paulo")
	}
	next := r.next(after.In(loc))
	if next.IsZero() {
		return next, bus.Invalid("expression", "must come true within five years")
	}
	return next.UTC(), nil
}

// maxChanges is how many changes of clocks are looked across: twenty years or more.
const maxChanges = 100

// next goes from one change of the clocks to the next: between two, wall clocks
// are as far from instants as at their start.
func (r rule) next(at time.Time) time.Time {
	if r.elapsed {
		return r.after(at)
	}
	wall := wallOf(at)
	for range maxChanges {
		start, end := at.ZoneBounds()
		if shown := wallBefore(start); !r.hourly && wall.Before(shown) {
			wall = shown.Add(-time.Second) // these hours were had before
		}
		due := r.after(wall)
		if due.IsZero() {
			return due
		}
		instant := at.Add(due.Sub(wallOf(at)))
		if end.IsZero() || instant.Before(end) {
			return instant
		}
		if !r.hourly && due.Before(wallOf(end)) {
			return end
		}
		at, wall = end, wallOf(end).Add(-time.Second)
	}
	return time.Time{}
}

// wallOf is what clocks show, labelled as UTC.
func wallOf(at time.Time) time.Time {
	_, offset := at.Zone()
	return at.UTC().Add(time.Duration(offset) * time.Second)
}

// wallBefore is what clocks were about to show when they were changed.
func wallBefore(change time.Time) time.Time {
	if change.IsZero() {
		return change
	}
	return wallOf(change.Add(-time.Second)).Add(time.Second)
}
