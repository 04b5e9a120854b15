package bus_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/deskcomm/deskcomm/bus"
)

func TestParseSpanReadsWhatPeopleWrite(t *testing.T) {
	t.Parallel()
	cases := map[string]time.Duration{
		"":       0,
		"45s":    45 * time.Second,
		"30m":    30 * time.Minute,
		"12h":    12 * time.Hour,
		"90d":    90 * 24 * time.Hour,
		"36500d": 36500 * 24 * time.Hour,
	}
	for text, want := range cases {
		if got, err := bus.ParseSpan("expires_in", text); err != nil || got != want {
			t.Errorf("ParseSpan(%q) = %s, %v, want %s", text, got, err, want)
		}
	}
}

func TestParseSpanRefusesTheRestByFieldAndRule(t *testing.T) {
	t.Parallel()
	cases := map[string]string{
		"nothing at all":               "0h",
		"no unit":                      "17",
		"only a unit":                  "d",
		"an unknown unit":              "3w",
		"a capital":                    "3D",
		"a fraction":                   "1.5h",
		"several units":                "1h30m",
		"less than nothing":            "-1d",
		"words":                        "três dias",
		"a unit of many bytes":         "3日",
		"more than a century":          "36501d",
		"what overflows to a few days": "213508d",
		"what overflows the number":    "99999999999999999999s",
	}
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := bus.ParseSpan("expires_in", text)
			field, ok := errors.AsType[*bus.FieldError](err)
			if !ok || field.Field != "expires_in" {
				t.Fatalf("ParseSpan(%q) = %s, %v, want an error of the field", text, got, err)
			}
			if strings.Contains(err.Error(), text) && text != "d" {
				t.Errorf("the error repeats the value: %v", err)
			}
		})
	}
}
