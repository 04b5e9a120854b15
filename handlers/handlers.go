// Package handlers is the list of consumers. Each lives in the folder of its
// area; areas never import each other.
package handlers

import (
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/urlpolicy"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/handlers/outhttp"
	"github.com/deskcomm/deskcomm/handlers/webhook"
)

// Deps are what the consumers work with.
type Deps struct {
	DB      *db.DB
	Policy  urlpolicy.Policy
	Ladder  []time.Duration // replaces every retry ladder when not empty
	Version string
}

// All returns every consumer of the program.
func All(d Deps) []bus.Handler {
	client := outhttp.New(outhttp.Options{
		Policy: d.Policy, UserAgent: "deskcomm/" + d.Version, MaxIdleConnsPerHost: webhook.InFlight,
	})
	return withLadder(d.Ladder, []bus.Handler{
		webhook.New(d.DB, client),
	})
}

// relaid is a handler whose consumer has another retry policy.
type relaid struct {
	bus.Handler
	consumer bus.Consumer
}

func (r relaid) Consumer() bus.Consumer { return r.consumer }

// Unwrap shows what else the handler can do.
func (r relaid) Unwrap() bus.Handler { return r.Handler }

func withLadder(ladder []time.Duration, handlers []bus.Handler) []bus.Handler {
	if len(ladder) == 0 {
		return handlers
	}
	for i, h := range handlers {
		c := h.Consumer()
		c.Retry = bus.Ladder(ladder)
		handlers[i] = relaid{Handler: h, consumer: c}
	}
	return handlers
}
