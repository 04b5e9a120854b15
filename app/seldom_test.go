package app

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
	"github.com/deskcomm/deskcomm/db"
)

func TestADatabaseThatIsAwayIsToldOnceAMinuteForEachMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		logger := slog.New(newSeldom(slog.NewTextHandler(&out, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
					return slog.Attr{}
				}
				return a
			},
		})))
		full := fmt.Errorf("relay events: %w", db.ErrDiskFull)
		for i := range 130 { // seconds
			if i > 0 {
				bustest.Advance(time.Second)
			}
			logger.With("loop", 1).ErrorContext(t.Context(), "relay", "error", full)
			if i%50 == 0 {
				logger.WarnContext(t.Context(), "request", "error", full)
				logger.InfoContext(t.Context(), "postponed", "error", bus.ErrUnavailable.Error())
				logger.ErrorContext(t.Context(), "panicked", "error", errors.New("of its own"))
			}
		}
		want := []string{
			"loop=1 relay", "request", "postponed", "panicked",
			"panicked",
			"loop=1 relay left_out=59",
			"request left_out=1", "postponed left_out=1", "panicked",
			"loop=1 relay left_out=59",
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			got = append(got, short(line))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("lines (-want +got):\n%s", diff)
		}
	})
}

// short is a line's message and what this test looks at.
func short(line string) string {
	var parts []string
	for field := range strings.FieldsSeq(line) {
		if text, ok := strings.CutPrefix(field, "msg="); ok {
			parts = append(parts, text)
		}
		if strings.HasPrefix(field, "left_out=") {
			parts = append(parts, field)
		}
	}
	if strings.Contains(line, "loop=1") {
		parts = append([]string{"loop=1"}, parts...)
	}
	return strings.Join(parts, " ")
}
