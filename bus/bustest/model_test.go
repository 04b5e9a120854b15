package bustest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
)

// The log in memory does what the model says, whatever happens in which order;
// so does the database, in a test of its own.
func TestPropertyTheLogFollowsTheModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		p := &play{log: bustest.NewLog(), model: bustest.NewModel(2 * time.Hour), places: []uuid.UUID{uuid.Nil, uuid.New(), uuid.New()}}
		p.log.Lease = 2 * time.Hour
		for _, name := range []string{"first-worker", "second-worker"} {
			p.consumers = append(p.consumers, bus.Consumer{Name: name, Types: []bus.Type{"custom.a"}, Retry: bus.Ladder([]time.Duration{time.Hour, 3 * time.Hour})})
		}
		p.log.Register(p.consumers...)
		rt.Repeat(map[string]func(*rapid.T){
			"":             p.check,
			"emit":         p.emit,
			"claim":        p.claim,
			"settle":       p.settle,
			"extend":       p.extend,
			"begin effect": p.begin,
			"time passes":  p.elapse,
			"pause":        p.pause,
		})
	})
}

// play is a run of a log beside the model.
type play struct {
	log       *bustest.Log
	model     *bustest.Model
	consumers []bus.Consumer
	places    []uuid.UUID // organizations and destinations
	claimed   []bus.Delivery
}

func must(rt *rapid.T, errs ...error) {
	rt.Helper()
	if err := errors.Join(errs...); err != nil {
		rt.Fatal(err)
	}
}

func (p *play) check(rt *rapid.T) {
	for _, r := range p.model.Rows() {
		if got := p.log.State(r.Event, r.Consumer); got != r.State {
			rt.Fatalf("State() = %+v, want %+v", got, r.State)
		}
	}
}

func (p *play) emit(rt *rapid.T) {
	org := rapid.SampledFrom(p.places[1:]).Draw(rt, "organization")
	destination := rapid.SampledFrom(p.places).Draw(rt, "destination")
	for _, id := range p.log.EmitTo(org, destination, "custom.a", 1) {
		for _, c := range p.consumers {
			p.model.Add(bustest.Name{Event: id, Consumer: c.Name, Destination: destination}, org, c)
		}
	}
}

func (p *play) claim(rt *rapid.T) {
	c := bus.Claim{Suspect: rapid.Bool().Draw(rt, "suspect")}
	for _, consumer := range p.consumers {
		if n := rapid.IntRange(0, 3).Draw(rt, "limit"); n > 0 {
			c.Wants = append(c.Wants, bus.Want{Consumer: consumer.Name, Limit: n})
		}
	}
	got, err := p.log.Claim(rt.Context(), c)
	must(rt, err, p.model.Claimed(c, got))
	p.claimed = append(p.claimed, got...)
}

// held draws a delivery that was claimed once, and may be anybody's by now.
func (p *play) held(rt *rapid.T) *bus.Delivery {
	return &p.claimed[len(p.claimed)-1-rapid.IntRange(0, len(p.claimed)-1).Draw(rt, "claim from the last")]
}

func (p *play) settle(rt *rapid.T) {
	if len(p.claimed) == 0 {
		return
	}
	s := bustest.DrawnSettlement(p.held(rt), func(n int) int { return rapid.IntRange(0, n-1).Draw(rt, "choice") })
	lost, err := p.log.Settle(rt.Context(), []bus.Settlement{s})
	must(rt, err, p.model.Settled([]bus.Settlement{s}, lost))
}

func (p *play) extend(rt *rapid.T) {
	if len(p.claimed) == 0 {
		return
	}
	d := p.held(rt)
	lost, err := p.log.Extend(rt.Context(), []bus.Lease{d.Lease()})
	must(rt, err, p.model.Extended([]bus.Delivery{*d}, lost))
}

func (p *play) begin(rt *rapid.T) {
	if len(p.claimed) == 0 {
		return
	}
	d := p.held(rt)
	must(rt, p.model.BegunEffect(*d, p.log.BeginEffect(rt.Context(), d.Lease())))
}

func (p *play) elapse(rt *rapid.T) {
	d := time.Duration(rapid.IntRange(1, 5).Draw(rt, "half hours")) * 30 * time.Minute
	p.log.Elapse(d)
	p.model.Elapse(d)
}

func (p *play) pause(rt *rapid.T) {
	if rapid.IntRange(0, 9).Draw(rt, "seldom") > 0 {
		return
	}
	id := rapid.SampledFrom(p.places[1:]).Draw(rt, "place")
	p.log.Suspend(id)
	p.model.Pause(id)
}
