package app

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/deskcomm/deskcomm/bus"
)

// seldomPause is how often a message about a database that is away is written.
const seldomPause = time.Minute

// seldom passes log lines on, but of those that say the same of a database that
// is away only one in a minute, with the number of those left out: each loop and
// each request meets the same trouble.
type seldom struct {
	slog.Handler
	told *told
}

// told is what a seldom and those made of it have written.
type told struct {
	mu    sync.Mutex
	lines map[string]telling // by message; they are constants
}

type telling struct {
	at   time.Time
	left int // out since then
}

func newSeldom(h slog.Handler) slog.Handler {
	return seldom{Handler: h, told: &told{lines: make(map[string]telling)}}
}

// Handle writes r, or counts it.
func (s seldom) Handle(ctx context.Context, r slog.Record) error {
	if !saysAway(r) {
		return s.Handler.Handle(ctx, r)
	}
	left, tell := s.told.tell(r.Message, r.Time)
	if !tell {
		return nil
	}
	if left > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("left_out", left))
	}
	return s.Handler.Handle(ctx, r)
}

// WithAttrs is a seldom that shares what has been written.
func (s seldom) WithAttrs(attrs []slog.Attr) slog.Handler {
	return seldom{Handler: s.Handler.WithAttrs(attrs), told: s.told}
}

// WithGroup is a seldom that shares what has been written.
func (s seldom) WithGroup(name string) slog.Handler {
	return seldom{Handler: s.Handler.WithGroup(name), told: s.told}
}

func (t *told) tell(message string, now time.Time) (left int, tell bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.lines[message]
	if !last.at.IsZero() && now.Sub(last.at) < seldomPause {
		t.lines[message] = telling{at: last.at, left: last.left + 1}
		return 0, false
	}
	t.lines[message] = telling{at: now}
	return last.left, true
}

// saysAway reports whether a line is about a database that cannot be used now.
// What a delivery keeps of it is its text alone.
func saysAway(r slog.Record) bool {
	away := false
	r.Attrs(func(a slog.Attr) bool {
		if a.Key != "error" {
			return true
		}
		switch v := a.Value.Any().(type) {
		case error:
			away = errors.Is(v, bus.ErrUnavailable)
		case string:
			away = v == bus.ErrUnavailable.Error()
		}
		return false
	})
	return away
}
