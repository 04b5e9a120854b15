package outhttp

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestRetryAfterIsReadStrictlyAndCapped(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		values []string
		want   time.Duration
	}{
		"none":                {nil, 0},
		"empty":               {[]string{""}, 0},
		"seconds":             {[]string{"120"}, 2 * time.Minute},
		"seconds with spaces": {[]string{" 120 "}, 2 * time.Minute},
		"zero":                {[]string{"0"}, 0},
		"negative":            {[]string{"-5"}, 0},
		"exponent":            {[]string{"1e9"}, 0},
		"fraction":            {[]string{"1.5"}, 0},
		"signed":              {[]string{"+5"}, 0},
		"word":                {[]string{"abc"}, 0},
		"two in one header":   {[]string{"120, 300"}, 0},
		"a day":               {[]string{"86400"}, MaxRetryAfter},
		"more than a day":     {[]string{"86401"}, MaxRetryAfter},
		"a thousand million":  {[]string{"1000000000"}, MaxRetryAfter},
		"more than a number":  {[]string{strings.Repeat("9", 1<<10)}, MaxRetryAfter},
		"a long word":         {[]string{strings.Repeat("x", 1<<20)}, 0},
		"future date":         {[]string{"Thu, 01 Jan 2026 12:05:00 GMT"}, 5 * time.Minute},
		"past date":           {[]string{"Thu, 01 Jan 2026 11:55:00 GMT"}, 0},
		"year 9999":           {[]string{"Fri, 31 Dec 9999 23:59:59 GMT"}, MaxRetryAfter},
		"ISO date":            {[]string{"2026-01-01T12:05:00Z"}, 0},
		"two headers":         {[]string{"120", "300"}, 5 * time.Minute},
		"two headers, turned": {[]string{"300", "120"}, 5 * time.Minute},
		"one of two readable": {[]string{"abc", "120"}, 2 * time.Minute},
	} {
		if got := RetryAfter(http.Header{"Retry-After": tt.values}, now); got != tt.want {
			t.Errorf("%s: RetryAfter = %v, want %v", name, got, tt.want)
		}
	}
}

// This host's clock may lie, and the receiver's too: a date is read by the clock
// that made it.
func TestARetryAfterThatIsADateIsReadByTheReceiversClock(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for name, tt := range map[string]struct {
		date string
		want time.Duration
	}{
		"an hour behind": {"Thu, 01 Jan 2026 11:00:00 GMT", 65 * time.Minute},
		"an hour ahead":  {"Thu, 01 Jan 2026 13:00:00 GMT", 0},
		"unreadable":     {"noon", 5 * time.Minute},
	} {
		h := http.Header{"Date": {tt.date}, "Retry-After": {"Thu, 01 Jan 2026 12:05:00 GMT"}}
		if got := RetryAfter(h, now); got != tt.want {
			t.Errorf("%s: RetryAfter = %v, want %v", name, got, tt.want)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, seed := range []string{"120", "-5", "1e9", "Thu, 01 Jan 2026 12:05:00 GMT", "Thursday, 01-Jan-26 12:05:00 GMT", "99999999999999999999"} {
		f.Add(seed, "60", int64(1767268800))
	}
	f.Fuzz(func(t *testing.T, one, two string, now int64) {
		at := time.Unix(now%(1<<40), 0)
		both := RetryAfter(http.Header{"Retry-After": {one, two}}, at)
		if both < 0 || both > MaxRetryAfter {
			t.Fatalf("RetryAfter(%q, %q) = %v, want 0 to %v", one, two, both, MaxRetryAfter)
		}
		for _, value := range []string{one, two} {
			if single := RetryAfter(http.Header{"Retry-After": {value}}, at); single > both {
				t.Fatalf("RetryAfter(%q, %q) = %v, but %v for one of them", one, two, both, single)
			}
		}
	})
}
