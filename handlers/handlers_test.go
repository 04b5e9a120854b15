package handlers_test

import (
	"testing"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/handlers"
)

func TestAllHandlersMayRunTogether(t *testing.T) {
	t.Parallel()
	for name, ladder := range map[string][]time.Duration{
		"with their own ladders": nil,
		"with another ladder":    {time.Second},
	} {
		all := handlers.All(handlers.Deps{Ladder: ladder, Version: "test"})
		if len(all) == 0 {
			t.Errorf("%s: there is no handler", name)
		}
		if err := bus.CheckHandlers(all); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		seen := map[string]bool{}
		for _, h := range all {
			if c := h.Consumer().Name; seen[c] {
				t.Errorf("%s: two consumers are called %s", name, c)
			} else {
				seen[c] = true
			}
		}
	}
}
