package bustest

import (
	"testing/synctest"
	"time"
)

// Advance moves the false clock of the bubble it is called in by d and returns
// when everything that was due by then has been done.
func Advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
