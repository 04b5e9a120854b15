package api

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/web/problem"
)

// Page is the part of a list that a client asks for.
type Page struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"How many items at most."`
	Cursor string `query:"cursor" doc:"The next_cursor of the page before."`
}

// list is one page.
type list[Item any] struct {
	Items      []Item  `json:"items"`
	NextCursor *string `json:"next_cursor" doc:"Asks for the next page; null on the last."`
}

// listOf shapes rows into a page. The stores are asked for one row more than the
// page has; it shows that there is another page.
func listOf[Row, Item any, Place fmt.Stringer](rows []Row, limit int, shape func(Row) Item, place func(Row) Place) list[Item] {
	l := list[Item]{Items: make([]Item, 0, min(len(rows), limit))}
	if len(rows) > limit {
		rows = rows[:limit]
		l.NextCursor = new(place(rows[limit-1]).String())
	}
	for _, row := range rows {
		l.Items = append(l.Items, shape(row))
	}
	return l
}

// cursor is the place in a list after which a page starts: the last row's id,
// and its time where that comes first in the order.
type cursor struct {
	list string // whose place it is; four letters
	id   uuid.UUID
	at   time.Time
}

const (
	cursorVersion = 1
	cursorSize    = 1 + 4 + 16 + 8
)

// String is the cursor as clients hold it, which is opaque to them.
func (c cursor) String() string {
	b := append([]byte{cursorVersion}, c.list[:4]...)
	b = append(b, c.id[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(c.at.UnixMicro()))
	return base64.RawURLEncoding.EncodeToString(b)
}

// read returns the place that the page starts after, nil for the first page.
func (p Page) read(list string) (*cursor, error) {
	if p.Cursor == "" {
		return nil, nil //nolint:nilnil // the first page has no place
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(p.Cursor)
	if err == nil && len(b) == cursorSize && b[0] == cursorVersion && string(b[1:5]) == list {
		at := time.UnixMicro(int64(binary.BigEndian.Uint64(b[21:]))).UTC()
		if year := at.Year(); year >= 0 && year <= 9999 { // what Postgres knows, and more than we write
			return &cursor{list: list, id: uuid.UUID(b[5:21]), at: at}, nil
		}
	}
	return nil, problem.Invalid(problem.InParameter("cursor", "must be a next_cursor of this list"))
}

// after is the page of a list that is ordered by id.
func (p Page) after(list string) (db.Page, error) {
	c, err := p.read(list)
	if err != nil {
		return db.Page{}, err
	}
	out := db.Page{Limit: p.Limit + 1}
	if c != nil {
		out.After = uuid.NullUUID{UUID: c.id, Valid: true}
	}
	return out, nil
}

// byID places a row by its id alone.
func byID[Row any](list string, id func(Row) uuid.UUID) func(Row) cursor {
	return func(row Row) cursor { return cursor{list: list, id: id(row)} }
}

// optionalTime is nil for a parameter that was not given.
func optionalTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
