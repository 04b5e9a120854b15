package bus_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deskcomm/deskcomm/bus"
)

func TestCheckHandlersRefusesWhatTheBusCannotRun(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*bus.Consumer)
		want   string // part of the error; empty when it is accepted
	}{
		"a good consumer":              {func(*bus.Consumer) {}, ""},
		"one that reads custom types":  {func(c *bus.Consumer) { c.Types = []bus.Type{"custom.paid"} }, ""},
		"one that subscriptions feed":  {func(c *bus.Consumer) { c.Types = nil }, ""},
		"a single attempt, no steps":   {retry(bus.Ladder(nil)), ""},
		"an effect that happens once":  {func(c *bus.Consumer) { c.Effect = bus.EffectOnce }, ""},
		"no effect":                    {func(c *bus.Consumer) { c.Effect = "" }, "effect"},
		"a local effect settled apart": {func(c *bus.Consumer) { c.Effect = bus.EffectLocal }, "settles itself"},
		"no name":                      {func(c *bus.Consumer) { c.Name = "" }, "kebab-case"},
		"a name without -worker":       {func(c *bus.Consumer) { c.Name = "send" }, "kebab-case"},
		"a name that is only -worker":  {func(c *bus.Consumer) { c.Name = "-worker" }, "kebab-case"},
		"a name in snake case":         {func(c *bus.Consumer) { c.Name = "send_it-worker" }, "kebab-case"},
		"a name in capitals":           {func(c *bus.Consumer) { c.Name = "Send-worker" }, "kebab-case"},
		"a name with two dashes":       {func(c *bus.Consumer) { c.Name = "send--it-worker" }, "kebab-case"},
		"a name used twice":            {func(c *bus.Consumer) { c.Name = "other-worker" }, "twice"},
		"an unknown type":              {func(c *bus.Consumer) { c.Types = []bus.Type{bus.MessageSent, "message.imagined"} }, "message.imagined"},
		"no attempts":                  {retry(bus.RetryPolicy{Steps: []time.Duration{time.Second}}), "steps"},
		"attempts without steps":       {retry(bus.RetryPolicy{MaxAttempts: 2}), "steps"},
		"no slots":                     {concurrency(0), "concurrency"},
		"less than no slots":           {concurrency(-1), "concurrency"},
		"no timeout":                   {func(c *bus.Consumer) { c.Timeout = 0 }, "timeout"},
		"a timeout in the past":        {func(c *bus.Consumer) { c.Timeout = -time.Second }, "timeout"},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := reader("any", tt.change)
			err := bus.CheckHandlers([]bus.Handler{handler{reader("other"), succeed}, handler{c, succeed}})
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("CheckHandlers() = %v, want nil", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), c.Name)):
				t.Errorf("CheckHandlers() = %v, want an error with %q and the consumer's name", err, tt.want)
			}
		})
	}
}

func TestALadderRetriesOnceForEachStep(t *testing.T) {
	t.Parallel()
	steps := []time.Duration{time.Second, time.Minute}
	if diff := cmp.Diff(bus.RetryPolicy{Steps: steps, MaxAttempts: 3}, bus.Ladder(steps)); diff != "" {
		t.Errorf("Ladder() (-want +got):\n%s", diff)
	}
}

func TestALocalEffectNeedsAHandlerThatSettlesItselfAndTheReverse(t *testing.T) {
	t.Parallel()
	for effect, accepted := range map[bus.Effect]bool{bus.EffectLocal: true, bus.EffectAtLeastOnce: false, bus.EffectOnce: false} {
		c := reader("any", func(c *bus.Consumer) { c.Effect = effect })
		for _, h := range []bus.Handler{settling{handler{c, succeed}}, wrapped{settling{handler{c, succeed}}}} {
			if err := bus.CheckHandlers([]bus.Handler{h}); accepted != (err == nil) {
				t.Errorf("CheckHandlers(%s) = %v, want accepted %t", effect, err, accepted)
			}
		}
	}
}
