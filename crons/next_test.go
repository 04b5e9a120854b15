package crons

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the machine may have no zones

	"github.com/google/go-cmp/cmp"

	"github.com/deskcomm/deskcomm/bus"
)

// matches are the expressions of the test below, read a second time by hand.
var matches = map[string]func(w time.Time) bool{
	"0 0 * * *":      func(w time.Time) bool { return w.Hour() == 0 && w.Minute() == 0 },
	"30 0 * * *":     func(w time.Time) bool { return w.Hour() == 0 && w.Minute() == 30 },
	"30 1 * * *":     func(w time.Time) bool { return w.Hour() == 1 && w.Minute() == 30 },
	"15 2 * * *":     func(w time.Time) bool { return w.Hour() == 2 && w.Minute() == 15 },
	"30 2 * * *":     func(w time.Time) bool { return w.Hour() == 2 && w.Minute() == 30 },
	"*/20 1-3 * * *": func(w time.Time) bool { return w.Hour() >= 1 && w.Hour() <= 3 && w.Minute()%20 == 0 },
	"45 23 * * 6":    func(w time.Time) bool { return w.Hour() == 23 && w.Minute() == 45 && w.Weekday() == time.Saturday },
	"0 9 * * 1-5": func(w time.Time) bool {
		return w.Hour() == 9 && w.Minute() == 0 && w.Weekday() != time.Saturday && w.Weekday() != time.Sunday
	},
	"0 2 1 * *":    func(w time.Time) bool { return w.Hour() == 2 && w.Minute() == 0 && w.Day() == 1 },
	"*/30 * * * *": func(w time.Time) bool { return w.Minute()%30 == 0 },
	"10 * * * *":   func(w time.Time) bool { return w.Minute() == 10 },
	"@hourly":      func(w time.Time) bool { return w.Minute() == 0 },
	"@daily":       func(w time.Time) bool { return w.Hour() == 0 && w.Minute() == 0 },
}

// minutes are what a clock shows minute by minute, labelled as UTC.
type minutes struct {
	from  time.Time
	walls []time.Time
}

func minutesOf(from, to time.Time) minutes {
	m := minutes{from: from}
	for t := from; !t.After(to); t = t.Add(time.Minute) {
		year, month, day := t.Date()
		hour, minute, _ := t.Clock()
		m.walls = append(m.walls, time.Date(year, month, day, hour, minute, 0, 0, time.UTC))
	}
	return m
}

// due walks over every minute and looks at the clock.
func (m minutes) due(expression string) (due []time.Time) {
	matches, hourly := matches[expression], strings.HasPrefix(expression, "*/30 *") || strings.HasPrefix(expression, "10 *") || expression == "@hourly"
	latest := m.walls[0] // that was shown so far
	for i, wall := range m.walls[1:] {
		fires := matches(wall) && (hourly || wall.After(latest))
		for gone := m.walls[i].Add(time.Minute); !hourly && gone.Before(wall); gone = gone.Add(time.Minute) {
			fires = fires || matches(gone)
		}
		if wall.After(latest) {
			latest = wall
		}
		if fires {
			due = append(due, m.from.Add(time.Duration(i+1)*time.Minute).UTC())
		}
	}
	return due
}

func TestNextIsWhatTheClockOfTheZoneShowsAllYear(t *testing.T) {
	t.Parallel()
	for zone, year := range map[string]int{
		"America/Sao_Paulo": 2018, "America/New_York": 2026, "Europe/Lisbon": 2026, "Australia/Lord_Howe": 2026,
		"Pacific/Apia": 2011, "Africa/Casablanca": 2026,
	} {
		t.Run(zone, func(t *testing.T) {
			t.Parallel()
			loc, err := time.LoadLocation(zone)
			if err != nil {
				t.Fatal(err)
			}
			from, to := time.Date(year, 1, 1, 12, 0, 0, 0, loc), time.Date(year+1, 1, 2, 12, 0, 0, 0, loc)
			clock := minutesOf(from, to)
			for expression := range matches {
				r, err := readExpression(expression)
				if err != nil {
					t.Fatal(err)
				}
				var got []time.Time
				for at := r.next(from); !at.After(to); at = r.next(at) {
					got = append(got, at.UTC())
				}
				if want := clock.due(expression); !slices.EqualFunc(want, got, time.Time.Equal) {
					t.Errorf("%s in %s (-by minutes +next):\n%s", expression, zone, cmp.Diff(want, got))
				}
			}
		})
	}
}

// From whatever instant one asks, the answer is the same list.
func TestNextDoesNotDependOnWhenItIsAsked(t *testing.T) {
	t.Parallel()
	const zone = "America/New_York"
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	for _, from := range []time.Time{time.Date(2026, 3, 7, 22, 0, 0, 0, loc), time.Date(2026, 10, 31, 22, 0, 0, 0, loc)} {
		clock := minutesOf(from, from.Add(30*time.Hour))
		for _, expression := range []string{"30 2 * * *", "30 1 * * *", "*/20 1-3 * * *", "*/30 * * * *"} {
			due := clock.due(expression)
			for at := from; at.Before(from.Add(8 * time.Hour)); at = at.Add(7*time.Minute + 13*time.Second) {
				want := due[slices.IndexFunc(due, at.Before)]
				if got, err := Next(expression, zone, at); err != nil || !got.Equal(want) {
					t.Errorf("Next(%s, %s) = %s, %v, want %s", expression, at, got, err, want)
				}
			}
		}
	}
}

func TestTheGapAndTheRepeatedHourAreDueOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ expression, zone, after, want, then string }{
		"gap":               {"30 2 * * *", "America/New_York", "2026-03-08T06:00:00Z", "2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"},
		"repeated":          {"30 1 * * *", "America/New_York", "2026-11-01T04:00:00Z", "2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"},
		"gap at midnight":   {"0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		"half an hour":      {"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00:00Z", "2026-10-03T15:30:00Z", "2026-10-04T15:15:00Z"},
		"half an hour back": {"45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12:00:00Z", "2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"},
		"every":             {"@every 90m", "America/New_York", "2026-03-08T06:00:00Z", "2026-03-08T07:30:00Z", "2026-03-08T09:00:00Z"},
	} {
		after, err := time.Parse(time.RFC3339, tt.after)
		if err != nil {
			t.Fatal(err)
		}
		first, err := Next(tt.expression, tt.zone, after)
		if got := first.Format(time.RFC3339); err != nil || got != tt.want {
			t.Errorf("%s: Next() = %s, %v, want %s", name, got, err, tt.want)
		}
		second, err := Next(tt.expression, tt.zone, first)
		if got := second.Format(time.RFC3339); err != nil || got != tt.then {
			t.Errorf("%s: Next() after it = %s, %v, want %s", name, got, err, tt.then)
		}
	}
}

func TestNextRefusesWhatItCannotRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ expression, zone, field string }{
		{"", "UTC", "expression"},
		{"every day", "UTC", "expression"},
		{"* * * *", "UTC", "expression"},
		{"61 * * * *", "UTC", "expression"},
		{"0 0 * * * *", "UTC", "expression"},
		{"TZ=UTC", "UTC", "expression"},
		{"CRON_TZ=UTC 0 0 * * *", "UTC", "expression"},
		{"@every 1s", "UTC", "expression"},
		{"@every 99999h", "UTC", "expression"},
		{"@every", "UTC", "expression"},
		{"@reboot", "UTC", "expression"},
		{"0 0 30 2 *", "UTC", "expression"},
		{strings.Repeat(" ", 100) + "* * * * *", "UTC", "expression"},
		{"0 0 * * *", "", "zone"},
		{"0 0 * * *", "Local", "zone"},
		{"0 0 * * *", "Brasilia", "zone"},
		{"0 0 * * *", "../etc/passwd", "zone"},
	} {
		_, err := Next(tt.expression, tt.zone, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
		if field, ok := errors.AsType[*bus.FieldError](err); !ok || field.Field != tt.field {
			t.Errorf("Next(%q, %q) = %v, want a fault of %s", tt.expression, tt.zone, err, tt.field)
		}
	}
}

func FuzzNext(f *testing.F) {
	f.Add("*/5 1-3 * * 1", int64(1_700_000_000))
	f.Add("@every 1h", int64(0))
	f.Add("TZ=UTC", int64(1))
	f.Fuzz(func(t *testing.T, expression string, seconds int64) {
		after := time.Unix(seconds%4_000_000_000, 0)
		if next, err := Next(expression, "America/New_York", after); err == nil && !next.After(after) {
			t.Errorf("Next(%q, %s) = %s, want a later instant", expression, after, next)
		}
	})
}
