package bus

import (
	"strconv"
	"strings"
	"time"
)

// ParseSpan reads a span of time as people write it: a whole number and d, h, m
// or s. Empty is 0.
func ParseSpan(field, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	units := map[byte]time.Duration{'d': 24 * time.Hour, 'h': time.Hour, 'm': time.Minute, 's': time.Second}
	unit, ok := units[text[len(text)-1]]
	n, err := strconv.Atoi(strings.TrimSpace(text[:len(text)-1]))
	if !ok || err != nil || n < 0 || n > 1_000_000 {
		return 0, Invalid(field, "must be a whole number and d, h, m or s, as in 90d")
	}
	return time.Duration(n) * unit, nil
}
