package bustest_test

import (
	"testing"
	"time"

	"github.com/deskcomm/deskcomm/bus/bustest"
)

func TestLogConforms(t *testing.T) {
	t.Parallel()
	bustest.Conformance(t, func(*testing.T) bustest.Subject {
		log := bustest.NewLog()
		log.Lease = time.Hour
		return log
	})
}
