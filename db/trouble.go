package db

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/deskcomm/deskcomm/bus"
)

// What keeps a database that answers from working. Each is a bus.ErrUnavailable
// too: it passes, and then the work goes on.
var (
	ErrDiskFull           = fmt.Errorf("%w: the database's disk is full", bus.ErrUnavailable)
	ErrOutOfMemory        = fmt.Errorf("%w: the database is out of memory", bus.ErrUnavailable)
	ErrTooManyConnections = fmt.Errorf("%w: the database has no connection left", bus.ErrUnavailable)
	ErrReadOnly           = fmt.Errorf("%w: the database takes no writes", bus.ErrUnavailable)
)

// trouble is the error of a SQLSTATE that says what is wrong with the server as a
// whole, or nil.
func trouble(code string) error {
	switch code {
	case sqlDiskFull:
		return ErrDiskFull
	case "53200":
		return ErrOutOfMemory
	case "53300":
		return ErrTooManyConnections
	case sqlReadOnly:
		return ErrReadOnly
	}
	return nil
}

const (
	sqlDiskFull = "53100"
	sqlReadOnly = "25006"
)

// Reason says in a few words, which anybody may read, why a check of the database
// has failed; "" when there are no such words.
func Reason(err error) string {
	for known, words := range map[error]string{
		ErrDiskFull:           "the database's disk is full",
		ErrOutOfMemory:        "the database is out of memory",
		ErrTooManyConnections: "the database has no connection left",
		ErrReadOnly:           "the database takes no writes",
	} {
		if errors.Is(err, known) {
			return words
		}
	}
	pg, answered := errors.AsType[*pgconn.PgError](err)
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	switch away := errors.Is(err, bus.ErrUnavailable); {
	case away && (connecting || !answered || strings.HasPrefix(pg.Code, "57P")): // it ends, starts or has ended
		return "the database does not answer"
	case away:
		return "the database cannot do it now, SQLSTATE " + pg.Code
	case answered:
		return "the database refuses it, SQLSTATE " + pg.Code
	default:
		return ""
	}
}

// watch sees the errors of all statements and remembers what they say of the
// server.
type watch struct {
	mu     sync.Mutex
	full   bool
	probed time.Time // when room was last looked for
	reset  time.Time // when the connections were last given up
}

// probePause is the least time between two looks for room and two resets, however
// often somebody asks.
const probePause = time.Second

// TraceQueryStart has nothing to see yet.
func (*watch) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd remembers a full disk.
func (w *watch) TraceQueryEnd(_ context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	if pg, ok := errors.AsType[*pgconn.PgError](data.Err); ok && pg.Code == sqlDiskFull {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.full = true
	}
}

// tracer is a watch that also gives up every connection of a server that has
// become another one's standby: they stay open, and whoever got one would fail.
type tracer struct {
	*watch
	giveUp func()
}

// TraceQueryEnd acts on what the error of a statement says of its server.
func (t tracer) TraceQueryEnd(ctx context.Context, c *pgx.Conn, data pgx.TraceQueryEndData) {
	t.watch.TraceQueryEnd(ctx, c, data)
	if pg, ok := errors.AsType[*pgconn.PgError](data.Err); ok && pg.Code == sqlReadOnly && t.mayReset() {
		t.giveUp()
	}
}

func (w *watch) mayReset() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.reset) < probePause {
		return false
	}
	w.reset = time.Now()
	return true
}

// mayProbe reports whether the disk was full and whether it is time to look again.
func (w *watch) mayProbe() (full, probe bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.full || time.Since(w.probed) < probePause {
		return w.full, false
	}
	w.probed = time.Now()
	return true, true
}

func (w *watch) hasRoom() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.full = false
}

const readOnlySQL = `select current_setting('transaction_read_only')::bool`

// A table of some pages that is gone with its statement: what needs no new page
// succeeds on a full disk too, and reading always does.
const needRoomSQL = `
	create temporary table deskcomm_room on commit drop as
	select n, repeat('room', 20) as filler from generate_series(1, 1000) n`

// Check is nil when the database answers and takes writes. After a statement has
// found the disk full, it looks for room.
func (d *DB) Check(ctx context.Context) error {
	var readOnly bool
	if err := scan(ctx, d.pool, readOnlySQL, named{}, &readOnly); err != nil {
		return wrap("reach the database", err)
	}
	if readOnly {
		if d.watch.mayReset() {
			d.pool.Reset()
		}
		return ErrReadOnly
	}
	full, probe := d.watch.mayProbe()
	if full && !probe {
		return ErrDiskFull
	}
	if !probe {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, err := d.pool.Exec(ctx, needRoomSQL); errors.Is(translate(err), bus.ErrUnavailable) {
		return wrap("look for room", err)
	}
	d.watch.hasRoom() // or the role may make no temporary table: then work itself has to tell
	return nil
}
