package bus

import (
	"strconv"
	"strings"
	"time"
)

// maxSpan is the longest span that anybody may write: a century, which is far
// from what a time.Duration can hold.
const maxSpan = 36500 * 24 * time.Hour

// ParseSpan reads a span of time as people write it: a whole number and d, h, m
// or s. Empty is 0.
func ParseSpan(field, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	units := map[byte]time.Duration{'d': 24 * time.Hour, 'h': time.Hour, 'm': time.Minute, 's': time.Second}
	unit, ok := units[text[len(text)-1]]
	n, err := strconv.Atoi(strings.TrimSpace(text[:len(text)-1]))
	if !ok || err != nil || n < 1 || n > int(maxSpan/unit) {
		return 0, Invalid(field, "must be a whole number above 0 and d, h, m or s, as in 90d, and at most 36500d")
	}
	return time.Duration(n) * unit, nil
}
