package app

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

type consumersCmd struct {
	List     consumersListCmd     `cmd:"" help:"List the consumers and how they are doing."`
	Pause    consumersPauseCmd    `cmd:"" help:"Let nothing more be claimed for a consumer; its events are kept."`
	Resume   consumersResumeCmd   `cmd:"" help:"Handle a paused consumer's events again."`
	Backfill consumersBackfillCmd `cmd:"" help:"Give events of the past to a consumer, or to a webhook subscription, that began after them."`
}

type consumersListCmd struct{ jsonFlag }

// consumerLine is a consumer as the command line shows it.
type consumerLine struct {
	Name         string       `json:"name"`
	Effect       bus.Effect   `json:"effect"`
	Ordering     bus.Ordering `json:"ordering"`
	EventTypes   []string     `json:"event_types"`
	External     bool         `json:"external"`
	PausedAt     *time.Time   `json:"paused_at"`
	PausedBy     *string      `json:"paused_by"`
	PausedReason *string      `json:"paused_reason"`
	Waiting      int          `json:"waiting"`
	WaitingMore  bool         `json:"waiting_more"`
	OldestDueAt  *time.Time   `json:"oldest_due_at"`
	Dead         int          `json:"dead"`
	DeadMore     bool         `json:"dead_more"`
}

// Run lists consumers.
func (l consumersListCmd) Run(ctx context.Context, con console, c *Common) error {
	list := []consumerLine{}
	err := c.withDB(ctx, con, func(store *db.DB) error {
		consumers, err := store.Consumers(ctx)
		for _, x := range consumers {
			line := consumerLine{
				Name: x.Name, Effect: x.Effect, Ordering: x.Ordering, EventTypes: x.EventTypes, External: x.External,
				PausedAt: x.PausedAt, PausedBy: x.PausedBy, PausedReason: x.PausedReason, OldestDueAt: x.OldestDueAt,
			}
			line.Waiting, line.WaitingMore = min(x.Waiting, db.ConsumerCountCap), x.Waiting > db.ConsumerCountCap
			line.Dead, line.DeadMore = min(x.Dead, db.ConsumerCountCap), x.Dead > db.ConsumerCountCap
			list = append(list, line)
		}
		return err
	})
	if err != nil {
		return err
	}
	rows := make([][]string, len(list))
	for i, l := range list {
		rows[i] = l.columns()
	}
	header := []string{"CONSUMER", "STATUS", "WAITING", "DUE SINCE", "DEAD", "EFFECT", "ORDERING", "EXTERNAL", "EVENT TYPES"}
	return con.print(l.JSON, map[string]any{"items": list}, header, rows)
}

func (l consumerLine) columns() []string {
	status, due, types := "running", "-", strings.Join(l.EventTypes, ",")
	if l.PausedAt != nil {
		status = "PAUSED since " + l.PausedAt.UTC().Format(time.RFC3339)
		if l.PausedBy != nil {
			status += " by " + *l.PausedBy
		}
		if l.PausedReason != nil {
			status += ": " + *l.PausedReason
		}
	}
	if l.OldestDueAt != nil {
		due = l.OldestDueAt.UTC().Format(time.RFC3339)
	}
	if types == "" {
		types = "(by subscriptions)"
	}
	return []string{
		l.Name, status, atLeast(l.Waiting, l.WaitingMore), due, atLeast(l.Dead, l.DeadMore), string(l.Effect), string(l.Ordering),
		strconv.FormatBool(l.External), types,
	}
}

func atLeast(n int, more bool) string {
	if more {
		return strconv.Itoa(n) + "+"
	}
	return strconv.Itoa(n)
}

const noConsumer = "no such consumer; see deskcomm consumers list"

type consumersPauseCmd struct {
	Name   string `arg:"" help:"Name of the consumer, as in webhook-dispatch-worker."`
	Reason string `required:"" help:"Why, for whoever finds it paused."`
}

// Run pauses a consumer.
func (p consumersPauseCmd) Run(ctx context.Context, con console, c *Common) error {
	err := c.withDB(ctx, con, func(store *db.DB) error { return store.PauseConsumer(ctx, cliActor(), p.Name, p.Reason) })
	if err != nil {
		return inWords(err, noConsumer)
	}
	_, err = fmt.Fprintln(con.out, p.Name, "is paused")
	return err
}

type consumersResumeCmd struct {
	Name   string `arg:"" help:"Name of the consumer."`
	Reason string `help:"Why, for the audit log."`
}

// Run resumes a consumer.
func (r consumersResumeCmd) Run(ctx context.Context, con console, c *Common) error {
	err := c.withDB(ctx, con, func(store *db.DB) error { return store.ResumeConsumer(ctx, cliActor(), r.Name, r.Reason) })
	if err != nil {
		return inWords(err, noConsumer)
	}
	_, err = fmt.Fprintln(con.out, r.Name, "is running")
	return err
}

type consumersBackfillCmd struct {
	Name         string    `arg:"" optional:"" help:"Name of the consumer; none with --subscription."`
	Subscription uuid.UUID `placeholder:"ID" help:"Id of a webhook subscription, for the events of its organization and its types."`
	Since        string    `required:"" placeholder:"WHEN" help:"Emitted from then on: a date or time (2026-01-31, 2026-01-31T15:00:00-03:00; UTC without a zone), or how long ago (30d, 12h)."`
	Until        string    `placeholder:"WHEN" help:"Emitted before then; now when not given."`
	Organization uuid.UUID `placeholder:"ID" help:"Only events of this organization."`
	Yes          bool      `help:"Do it; without this it is only counted what would be done."`
	jsonFlag
}

// backfillLine is what a backfill does, or would do, as the command line shows it.
type backfillLine struct {
	Done   bool               `json:"done"` // false for a preview
	Total  db.BackfillCount   `json:"total"`
	Counts []db.BackfillCount `json:"items"`
}

// Run counts or makes the deliveries of past events.
func (b consumersBackfillCmd) Run(ctx context.Context, con console, c *Common) error {
	line := backfillLine{Done: b.Yes, Counts: []db.BackfillCount{}}
	err := c.withDB(ctx, con, func(store *db.DB) error {
		wanted, err := b.wanted(ctx, store)
		if err != nil {
			return err
		}
		run := store.PreviewBackfill
		if b.Yes {
			run = func(ctx context.Context, w db.Backfill) ([]db.BackfillCount, error) {
				return store.RunBackfill(ctx, cliActor(), w)
			}
		}
		counts, err := run(ctx, wanted)
		line.Counts = append(line.Counts, counts...)
		return inWords(err, "no such consumer, or no such subscription in the organization; see deskcomm consumers list")
	})
	if err != nil {
		return err
	}
	line.Total.Type = "total"
	for _, n := range line.Counts {
		t := &line.Total
		t.Made, t.Unfinished, t.Dead, t.Done = t.Made+n.Made, t.Unfinished+n.Unfinished, t.Dead+n.Dead, t.Done+n.Done
	}
	made := "TO MAKE"
	if b.Yes {
		made = "MADE"
	}
	rows := make([][]string, 0, len(line.Counts)+2)
	for _, n := range append(line.Counts, line.Total) {
		rows = append(rows, []string{string(n.Type), strconv.Itoa(n.Made), strconv.Itoa(n.Unfinished), strconv.Itoa(n.Dead), strconv.Itoa(n.Done)})
	}
	if !b.Yes {
		rows = append(rows, []string{"Nothing was changed; --yes makes the deliveries."})
	}
	return con.print(b.JSON, line, []string{"EVENT TYPE", made, "WAITING ALREADY", "DEAD ALREADY", "DONE ALREADY"}, rows)
}

// wanted reads the flags. What they say of time is by the database's clock.
func (b consumersBackfillCmd) wanted(ctx context.Context, store *db.DB) (db.Backfill, error) {
	w := db.Backfill{
		Consumer:     b.Name,
		Subscription: uuid.NullUUID{UUID: b.Subscription, Valid: b.Subscription != uuid.Nil},
		OrgID:        uuid.NullUUID{UUID: b.Organization, Valid: b.Organization != uuid.Nil},
	}
	now, err := store.Now(ctx)
	if err != nil {
		return w, err
	}
	if w.Since, err = instantOf("since", b.Since, now); err != nil {
		return w, err
	}
	if b.Until != "" {
		if w.Until, err = instantOf("until", b.Until, now); err != nil {
			return w, err
		}
	}
	if w.OrgID.Valid {
		exists, err := store.HasOrganization(ctx, w.OrgID.UUID)
		if err == nil && !exists {
			err = &refusal{says: "--organization: must be an organization that exists; see deskcomm organization list", err: bus.ErrNotFound}
		}
		return w, err
	}
	return w, nil
}

// instantOf reads a date, a time, or how long before now.
func instantOf(flag, text string, now time.Time) (time.Time, error) {
	for _, layout := range []string{time.DateOnly, time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04"} {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	if days, isDays := strings.CutSuffix(text, "d"); isDays {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			return now.AddDate(0, 0, -int(n)), nil
		}
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	return time.Time{}, bus.Invalid(flag, "must be a date (2026-01-31), a time (2026-01-31T15:00:00Z), or how long ago (30d, 12h)")
}
