package app

import (
	"os"
	"runtime/debug"
)

// collectorPercent lets the heap grow to four times what is live before it is
// collected. What is live is a few megabytes and what passes through is garbage at
// once: a tenth of the speed under load for some tens of megabytes.
const collectorPercent = 300

// tuneCollector sets how much garbage may stand, unless GOGC says it.
func tuneCollector() {
	if _, given := os.LookupEnv("GOGC"); !given {
		debug.SetGCPercent(collectorPercent)
	}
}
