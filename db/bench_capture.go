package db

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// CapturePlan is how much is measured of each arm: Batches of PerBatch after
// Warmups that do not count.
type CapturePlan struct {
	Warmups  int
	Batches  int
	PerBatch int
}

// CaptureArm is one of the two ways to write a change with its event.
type CaptureArm struct {
	Samples []time.Duration // each a round trip with its commit, in the order in which they were measured
	events  []uuid.UUID     // of the warm-ups too
	sql     string
}

// CaptureCost is what the capture of an event was measured to cost the change
// that it tells of.
type CaptureCost struct {
	Postgres          string // version of the server
	Fsync             string // settings that decide what a commit costs
	SynchronousCommit string
	Without           CaptureArm // the change and its event alone
	With              CaptureArm // and the event's row in the outbox
}

// The change is a contact, and both arms make it and its event in one statement,
// which is one transaction and one round trip.
const insertWithEventSQL = `
	with changed as (
	    insert into contacts (organization_id, name) values (@org_id, @name) returning id
	)
	select append_event('contact.created', 'contact', id, @payload::jsonb, '{}', @org_id, null) from changed`

// benchPayload is of a usual size.
const benchPayload = `{"synthetic": true, "name": "Somebody", "phone_number": "+5511900000000", "source": "whatsapp", "tags": ["new", "store"]}`

// MeasureCapture measures, on a database that it makes beside the one at url and
// drops, the same insert with its event with and without the row of the outbox, on
// one connection, in batches that begin with either arm in turn. A *BlockedError
// says that there was no database to measure on; any other error that the
// measurement is worth nothing.
func MeasureCapture(ctx context.Context, url string, plan CapturePlan) (CaptureCost, error) {
	var cost CaptureCost
	err := inScratch(ctx, url, func(ctx context.Context, c *pgx.Conn) error {
		org, err := prepareCapture(ctx, c, &cost)
		if err != nil {
			return err
		}
		args := named{"org_id": org, "name": "Somebody", "payload": benchPayload}
		arms := []*CaptureArm{&cost.Without, &cost.With}
		for batch := -1; batch < plan.Batches; batch++ {
			n := plan.PerBatch
			if batch < 0 {
				n = plan.Warmups
			}
			for _, arm := range arms {
				if err := arm.run(ctx, c, args, n); err != nil {
					return err
				}
			}
			if batch < 0 {
				cost.Without.Samples, cost.With.Samples = nil, nil
			}
			arms[0], arms[1] = arms[1], arms[0]
		}
		return checkCapture(ctx, c, cost)
	})
	return cost, err
}

// run takes n samples.
func (a *CaptureArm) run(ctx context.Context, c *pgx.Conn, args named, n int) error {
	for range n {
		var event uuid.UUID
		began := time.Now()
		err := c.QueryRow(ctx, a.sql, args).Scan(&event)
		took := time.Since(began)
		if err != nil {
			return wrap("insert with event", err)
		}
		a.Samples, a.events = append(a.Samples, took), append(a.events, event)
	}
	return nil
}

const insertBenchOrganizationSQL = `
	insert into organizations (name) values ('Measurement')
	returning id, current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit')`

const appendEventSourceSQL = `select pg_get_functiondef('append_event(text, text, uuid, jsonb, jsonb, uuid, timestamptz)'::regprocedure)`

// prepareCapture makes both arms ready to be measured.
func prepareCapture(ctx context.Context, c *pgx.Conn, cost *CaptureCost) (org uuid.UUID, err error) {
	if _, err := c.Exec(ctx, "set statement_timeout = '5s'"); err != nil {
		return org, wrap("bound the statements", err)
	}
	if err := scan(ctx, c, insertBenchOrganizationSQL, named{}, &org, &cost.Postgres, &cost.Fsync, &cost.SynchronousCommit); err != nil {
		return org, wrap("make an organization", err)
	}
	var source string
	if err := scan(ctx, c, appendEventSourceSQL, named{}, &source); err != nil {
		return org, wrap("read append_event", err)
	}
	without, err := withoutOutbox(source)
	if err != nil {
		return org, err
	}
	if _, err := c.Exec(ctx, without); err != nil {
		return org, wrap("make append_event without the outbox", err)
	}
	cost.With.sql = insertWithEventSQL
	cost.Without.sql = strings.Replace(insertWithEventSQL, "append_event(", "append_event_without_outbox(", 1)
	return org, nil
}

var outboxPattern = regexp.MustCompile(`(?s)with appended as \(\s*(insert into event_log .*?)\s*\)\s*insert into outbox [^;]*;`)

// withoutOutbox turns the definition of append_event, which is what emit_event does, into that of a function which
// differs from it in nothing but the row of the outbox. It is made of the function
// that is there, so that it cannot become another one than the one measured.
func withoutOutbox(source string) (string, error) {
	const name = "FUNCTION public.append_event("
	if len(outboxPattern.FindAllString(source, -1)) != 1 || strings.Count(source, name) != 1 {
		return "", errors.New("append_event writes the outbox in another way than the measurement knows")
	}
	source = outboxPattern.ReplaceAllString(source, "$1;")
	return strings.Replace(source, name, "FUNCTION public.append_event_without_outbox(", 1), nil
}

const countCaptureSQL = `
	select (select count(*) from contacts) as contacts,
	       (select count(*) from event_log where id = any (@without::uuid[] || @with::uuid[])) as events,
	       (select count(*) from outbox where event_id = any (@without::uuid[])) as stray,
	       (select count(*) from outbox where event_id = any (@with::uuid[])) as captured`

// checkCapture finds out whether the arms have done what they are said to do.
func checkCapture(ctx context.Context, c conn, cost CaptureCost) error {
	without, with := cost.Without.events, cost.With.events
	var contacts, events, stray, captured int
	err := scan(ctx, c, countCaptureSQL, named{"without": without, "with": with}, &contacts, &events, &stray, &captured)
	if err != nil {
		return wrap("count what was measured", err)
	}
	if all := len(without) + len(with); contacts != all || events != all || stray != 0 || captured != len(with) {
		return fmt.Errorf("%d changes left %d contacts, %d events, %d rows of the outbox and %d that should not be there, want %d, %d, %d and 0",
			all, contacts, events, captured, stray, all, all, len(with))
	}
	return nil
}
