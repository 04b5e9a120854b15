package admin

import (
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

// filter is what narrows the list of dead deliveries, as it stands in the URL.
type filter struct {
	EventType, EntityKind, Consumer string
	Since, Until                    string // as the browser's date and time input writes them, in the scope's zone
	Before                          string // where the page starts
}

// filterOf reads a filter from the parameters of a URL.
func filterOf(q url.Values) filter {
	get := func(name string) string { // what Postgres cannot take is nobody's name
		return strings.TrimSpace(strings.ReplaceAll(strings.ToValidUTF8(q.Get(name), "\uFFFD"), "\x00", "\uFFFD"))
	}
	return filter{
		EventType: get("event_type"), EntityKind: get("entity_kind"), Consumer: get("consumer"),
		Since: get("since"), Until: get("until"), Before: get("before"),
	}
}

// narrows reports whether the filter leaves anything out.
func (f filter) narrows() bool {
	f.Before = ""
	return f != filter{}
}

// pairs lists what is set as pairs of name and value.
func (f filter) pairs() []string {
	var list []string
	for _, p := range [][2]string{
		{"event_type", f.EventType},
		{"entity_kind", f.EntityKind},
		{"consumer", f.Consumer},
		{"since", f.Since},
		{"until", f.Until},
		{"before", f.Before},
	} {
		if p[1] != "" {
			list = append(list, p[0], p[1])
		}
	}
	return list
}

// query is the filter as a query string, for a form that leads back to it.
func (f filter) query() string {
	q := url.Values{}
	for pairs := f.pairs(); len(pairs) > 0; pairs = pairs[2:] {
		q.Set(pairs[0], pairs[1])
	}
	return q.Encode()
}

// forStore is the filter in the terms of the store, or the first field at fault.
func (f filter) forStore(zone *time.Location) (db.DeadFilter, error) {
	out := db.DeadFilter{Type: f.EventType, EntityKind: f.EntityKind, Consumer: f.Consumer, Bare: true}
	var err error
	if out.Since, err = instant("since", f.Since, zone); err != nil {
		return out, err
	}
	if out.Until, err = instant("until", f.Until, zone); err != nil {
		return out, err
	}
	if f.Before != "" {
		at, id, ok := readCursor(f.Before)
		if !ok {
			return out, bus.Invalid("before", "must be what a link of this list has")
		}
		out.BeforeAt, out.BeforeID = &at, uuid.NullUUID{UUID: id, Valid: true}
	}
	return out, nil
}

// instant reads what a date and time input sends; nil when it is empty.
func instant(field, text string, zone *time.Location) (*time.Time, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // no bound
	}
	for _, layout := range []string{"2006-01-02T15:04", "2006-01-02T15:04:05", time.DateOnly} {
		at, err := time.ParseInLocation(layout, text, zone)
		if err == nil && at.Year() >= 2000 && at.Year() < 3000 {
			return &at, nil
		}
	}
	return nil, bus.Invalid(field, "must be a date and time such as 2026-12-31T23:59")
}

// cursorOf names the place after a row: microseconds, as Postgres keeps them, and
// the id.
func cursorOf(d db.DeadDelivery) string {
	return strconv.FormatInt(d.DiedAt.UnixMicro(), 36) + "_" + d.ID.String()
}

func readCursor(s string) (at time.Time, id uuid.UUID, ok bool) {
	micros, rest, found := strings.Cut(s, "_")
	n, err := strconv.ParseInt(micros, 36, 64)
	if !found || err != nil || n < 0 || n > 32503680000000000 { // the year 3000
		return at, id, false
	}
	id, err = uuid.Parse(rest)
	return time.UnixMicro(n), id, err == nil
}
