package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/deskcomm/deskcomm/app/bench"
	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

type benchRunCmd struct {
	Scenario      []string      `sep:"," placeholder:"NAME" help:"What to measure: insert, relay, drain, latency, fanout, webhook, fairness, backlog; all when empty."`
	Events        int           `default:"100000" help:"Events of the backlog that is drained."`
	FanOut        int           `name:"fan-out" default:"20000" help:"Events that go to three consumers each, or to the receiver of a webhook."`
	Organizations int           `default:"100" help:"Organizations that the events belong to."`
	Backlog       int           `default:"1000000" help:"Deliveries that wait while claims and relays are measured; ten million take some minutes to make and 5 GB."`
	Payload       int           `default:"500" help:"Bytes of JSON of an event."`
	For           time.Duration `default:"10s" help:"Length of what is measured by time."`
	Rate          int           `default:"200" help:"Events a second when latency is measured."`
	JSON          bool          `name:"json" help:"Print each number as a line of JSON."`
}

func (b benchRunCmd) check() error {
	for _, rule := range []struct {
		name       string
		value, max int
	}{
		{"--events", b.Events, 20_000_000},
		{"--fan-out", b.FanOut, 5_000_000},
		{"--organizations", b.Organizations, 10_000},
		{"--backlog", b.Backlog, 50_000_000},
		{"--payload", b.Payload, 100_000},
		{"--rate", b.Rate, 10_000},
		{"--for", int(b.For / time.Second), 3600},
	} {
		if rule.value < 1 || rule.value > rule.max {
			return bus.Invalid(rule.name, fmt.Sprintf("must be between 1 and %d", rule.max))
		}
	}
	return bench.Check(b.Scenario)
}

// Run measures and prints each number, as soon as there is one when it prints JSON.
func (b benchRunCmd) Run(ctx context.Context, con console, c *Common) (err error) {
	if err := b.check(); err != nil {
		return err
	}
	tuneCollector()
	logger := c.quiet().logger(con.err)
	where, err := c.locate(ctx, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, where.close()) }()
	var rows [][]string
	emit := func(r bench.Result) error {
		if b.JSON {
			return json.NewEncoder(con.out).Encode(r)
		}
		rows = append(rows, []string{r.Scenario, r.Params, r.Metric, strconv.FormatFloat(r.Value, 'f', 2, 64)})
		return nil
	}
	err = db.InScratch(ctx, where.direct, func(ctx context.Context, url string) error {
		return bench.Run(ctx, bench.Options{
			URL: url, Events: b.Events, FanOut: b.FanOut, Organizations: b.Organizations, Backlog: b.Backlog, Payload: b.Payload, Span: b.For, Rate: b.Rate, Logger: logger,
		}, b.Scenario, emit)
	})
	if len(rows) > 0 {
		err = errors.Join(err, con.print(false, nil, []string{"SCENARIO", "OF", "METRIC", "VALUE"}, rows))
	}
	return err
}
