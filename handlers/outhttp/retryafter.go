package outhttp

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// MaxRetryAfter is the longest wait that a receiver can ask for.
const MaxRetryAfter = 24 * time.Hour

// RetryAfter returns how long the receiver wants to be left alone: the largest of
// its Retry-After headers, in seconds or as a date, at most [MaxRetryAfter]. It is 0
// when there is none, or none that makes sense: past, negative, unreadable. A date
// is read by the receiver's own clock if it tells it, else by now: the two clocks
// need not agree.
func RetryAfter(h http.Header, now time.Time) time.Duration {
	if theirs, err := http.ParseTime(h.Get("Date")); err == nil {
		now = theirs
	}
	var longest time.Duration
	for _, value := range h.Values("Retry-After") {
		longest = max(longest, retryAfter(strings.TrimSpace(value), now))
	}
	return min(longest, MaxRetryAfter)
}

func retryAfter(value string, now time.Time) time.Duration {
	if value != "" && strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil || seconds > int64(MaxRetryAfter/time.Second) {
			return MaxRetryAfter // more digits than a number holds
		}
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	// Sub saturates: the year 9999 is far, not negative.
	return at.Sub(now)
}
