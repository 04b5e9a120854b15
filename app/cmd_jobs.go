package app

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/crons"
	"github.com/deskcomm/deskcomm/db"
)

type enqueueCmd struct {
	Command string `arg:"" help:"The command, as in custom.export_requested."`
	orgFlag
	EntityKind   string        `default:"custom" help:"Kind of the thing it is about."`
	EntityID     uuid.NullUUID `placeholder:"UUID" help:"Id of the thing it is about."`
	Payload      string        `default:"{}" placeholder:"JSON" help:"A JSON object; @file reads a file, - standard input."`
	NotBefore    string        `placeholder:"WHEN" help:"When it may run: a wait as in 7d, 36h or 15m, or a time as in 2026-12-24T09:00:00-03:00; at once if left out."`
	SingletonKey string        `placeholder:"KEY" help:"Only one job of the command and the key is unfinished at a time."`
	Policy       string        `placeholder:"POLICY" help:"What to do while one is: keep it (the default), replace it, or refuse."`
	jsonFlag
}

// Run enqueues one job.
func (e enqueueCmd) Run(ctx context.Context, con console, c *Common) error {
	if err := bus.CheckType("command", bus.Type(e.Command)); err != nil {
		return err
	}
	payload, err := con.jsonArgument(e.Payload)
	if err != nil {
		return err
	}
	notBefore, wait, err := readInstant("not_before", e.NotBefore)
	if err != nil {
		return err
	}
	var job db.Job
	err = c.forOrg(ctx, con, e.Organization, func(t *db.OrgTx) (err error) {
		job, err = t.Enqueue(ctx, db.NewJob{
			Command: bus.Type(e.Command), EntityKind: e.EntityKind, EntityID: e.EntityID, Payload: payload,
			NotBefore: notBefore, Wait: wait, SingletonKey: e.SingletonKey, Policy: db.JobPolicy(e.Policy),
		})
		return err
	})
	if err != nil {
		return err
	}
	return con.print(e.JSON, map[string]any{
		"id": job.ID, "created_at": job.CreatedAt.UTC(), "not_before": job.NotBefore.UTC(), "kept": job.Kept,
	}, nil, [][]string{{job.ID.String()}})
}

// readInstant reads a time, or how long from now it is; nothing is zero.
func readInstant(field, text string) (at time.Time, wait time.Duration, err error) {
	if text == "" {
		return at, 0, nil
	}
	if at, err = time.Parse(time.RFC3339, text); err == nil {
		return at, 0, nil
	}
	if wait, err = bus.ParseSpan(field, text); err != nil {
		err = bus.Invalid(field, "must be a wait as in 7d, 36h or 15m, or a time as in 2026-12-24T09:00:00-03:00")
	}
	return time.Time{}, wait, err
}

// jsonArgument is readArgument for what has to be JSON.
func (con console) jsonArgument(arg string) ([]byte, error) {
	text, err := con.readArgument(arg)
	if err == nil && !json.Valid(text) {
		err = bus.Invalid("payload", "must be a JSON object")
	}
	return text, err
}

type jobsCmd struct {
	Cancel jobsCancelCmd `cmd:"" help:"Give up a job that waits."`
}

type jobsCancelCmd struct {
	ID uuid.UUID `arg:"" help:"Id of the job."`
	orgFlag
	Reason string `required:"" help:"Why, for the audit log."`
}

// Run cancels a job.
func (j jobsCancelCmd) Run(ctx context.Context, con console, c *Common) error {
	err := c.forOrg(ctx, con, j.Organization, func(t *db.OrgTx) error { return t.CancelJob(ctx, j.ID, j.Reason) })
	if err != nil {
		return inWords(err, "no such job in the organization")
	}
	_, err = fmt.Fprintln(con.out, j.ID, "is discarded")
	return err
}

type schedulesCmd struct {
	Create schedulesCreateCmd `cmd:"" help:"Enqueue a command by the clock."`
	List   schedulesListCmd   `cmd:"" help:"List the schedules."`
	Change schedulesChangeCmd `cmd:"" help:"Give a schedule another expression and zone."`
	Pause  schedulesPauseCmd  `cmd:"" help:"Stop a schedule."`
	Resume schedulesResumeCmd `cmd:"" help:"Let a schedule fire again, from its next time on."`
	Delete schedulesDeleteCmd `cmd:"" help:"End a schedule for good."`
}

// clockFlags say when a schedule is due.
type clockFlags struct {
	Expression string `required:"" placeholder:"CRON" help:"Five fields as in '0 9 * * 1-5', @daily and the like, or '@every 90m'."`
	Zone       string `default:"America/Sao_Paulo" help:"Whose clocks count."`
}

type schedulesCreateCmd struct {
	Name    string `arg:"" help:"Name of the schedule."`
	Command string `arg:"" help:"The command, as in custom.report_requested."`
	orgFlag
	clockFlags
	EntityKind string `default:"custom" help:"Kind of the thing it is about."`
	Payload    string `default:"{}" placeholder:"JSON" help:"A JSON object; @file reads a file, - standard input."`
	Missed     string `placeholder:"POLICY" help:"What to do with times at which nobody could fire: skip them, fire once for all (the default), or fire all."`
	MissedMax  int    `placeholder:"N" help:"How many of all at most, the latest; 100 if left out."`
	jsonFlag
}

// Run creates a schedule.
func (s schedulesCreateCmd) Run(ctx context.Context, con console, c *Common) error {
	if err := bus.CheckType("command", bus.Type(s.Command)); err != nil {
		return err
	}
	payload, err := con.jsonArgument(s.Payload)
	if err != nil {
		return err
	}
	return c.alterSchedule(ctx, con, s.Organization, s.JSON, func(t *db.OrgTx) (db.Schedule, error) {
		return t.CreateSchedule(ctx, db.NewSchedule{
			Name: s.Name, Command: bus.Type(s.Command), EntityKind: s.EntityKind, Payload: payload,
			Expression: s.Expression, Zone: s.Zone, Missed: db.Missed(s.Missed), MissedMax: s.MissedMax,
		}, crons.Next)
	})
}

// scheduleLine is a schedule as the command line shows it.
type scheduleLine struct {
	ID          uuid.UUID       `json:"id"`
	Name        string          `json:"name"`
	Command     bus.Type        `json:"command"`
	EntityKind  string          `json:"entity_kind"`
	Payload     json.RawMessage `json:"payload"`
	Expression  string          `json:"expression"`
	Zone        string          `json:"zone"`
	Missed      db.Missed       `json:"missed"`
	MissedMax   int             `json:"missed_max"`
	Enabled     bool            `json:"enabled"`
	Revision    int             `json:"revision"`
	NextAt      *time.Time      `json:"next_at"`
	LastFiredAt *time.Time      `json:"last_fired_at"`
	LastError   *string         `json:"last_error"`
}

func scheduleLineOf(s db.Schedule) scheduleLine {
	line := scheduleLine{
		ID: s.ID, Name: s.Name, Command: s.Command, EntityKind: s.EntityKind, Payload: s.Payload, Expression: s.Expression, Zone: s.Zone,
		Missed: s.Missed, MissedMax: s.MissedMax, Enabled: s.Enabled, Revision: s.Revision, LastFiredAt: s.LastFiredAt, LastError: s.LastError,
	}
	if s.Enabled {
		line.NextAt = new(s.NextAt.UTC())
	}
	return line
}

func (l scheduleLine) row() []string {
	next, last, trouble := "paused", "never", ""
	if l.NextAt != nil {
		next = l.NextAt.Format(time.RFC3339)
	}
	if l.LastFiredAt != nil {
		last = l.LastFiredAt.UTC().Format(time.RFC3339)
	}
	if l.LastError != nil {
		trouble = *l.LastError
	}
	return []string{l.Name, string(l.Command), l.Expression, l.Zone, next, last, strconv.Itoa(l.Revision), trouble}
}

var scheduleHeader = []string{"NAME", "COMMAND", "EXPRESSION", "ZONE", "NEXT", "LAST", "REVISION", "ERROR"} //nolint:gochecknoglobals // a table's head

// alterSchedule runs fn for an organization and prints the schedule it returns.
func (c Common) alterSchedule(ctx context.Context, con console, org uuid.UUID, asJSON bool, fn func(t *db.OrgTx) (db.Schedule, error)) error {
	var line scheduleLine
	err := c.forOrg(ctx, con, org, func(t *db.OrgTx) error {
		s, err := fn(t)
		line = scheduleLineOf(s)
		return err
	})
	if err != nil {
		return inWords(err, "no such schedule in the organization")
	}
	return con.print(asJSON, line, scheduleHeader, [][]string{line.row()})
}

type schedulesListCmd struct {
	orgFlag
	jsonFlag
}

// Run lists the schedules.
func (s schedulesListCmd) Run(ctx context.Context, con console, c *Common) error {
	list, rows := []scheduleLine{}, [][]string{}
	err := c.forOrg(ctx, con, s.Organization, func(t *db.OrgTx) error {
		all, err := t.Schedules(ctx)
		for _, one := range all {
			line := scheduleLineOf(one)
			list, rows = append(list, line), append(rows, line.row())
		}
		return err
	})
	if err != nil {
		return err
	}
	return con.print(s.JSON, map[string]any{"items": list}, scheduleHeader, rows)
}

// namedSchedule are the flags of what is done to one schedule.
type namedSchedule struct {
	Name string `arg:"" help:"Name of the schedule."`
	orgFlag
	jsonFlag
}

type schedulesChangeCmd struct {
	namedSchedule
	clockFlags
}

// Run changes a schedule.
func (s schedulesChangeCmd) Run(ctx context.Context, con console, c *Common) error {
	return c.alterSchedule(ctx, con, s.Organization, s.JSON, func(t *db.OrgTx) (db.Schedule, error) {
		return t.ChangeSchedule(ctx, s.Name, s.Expression, s.Zone, crons.Next)
	})
}

type schedulesPauseCmd struct{ namedSchedule }

// Run pauses a schedule.
func (s schedulesPauseCmd) Run(ctx context.Context, con console, c *Common) error {
	return c.alterSchedule(ctx, con, s.Organization, s.JSON, func(t *db.OrgTx) (db.Schedule, error) { return t.PauseSchedule(ctx, s.Name) })
}

type schedulesResumeCmd struct{ namedSchedule }

// Run resumes a schedule.
func (s schedulesResumeCmd) Run(ctx context.Context, con console, c *Common) error {
	return c.alterSchedule(ctx, con, s.Organization, s.JSON, func(t *db.OrgTx) (db.Schedule, error) {
		return t.ResumeSchedule(ctx, s.Name, crons.Next)
	})
}

type schedulesDeleteCmd struct {
	Name string `arg:"" help:"Name of the schedule."`
	orgFlag
}

// Run deletes a schedule.
func (s schedulesDeleteCmd) Run(ctx context.Context, con console, c *Common) error {
	err := c.forOrg(ctx, con, s.Organization, func(t *db.OrgTx) error { return t.DeleteSchedule(ctx, s.Name) })
	if err != nil {
		return inWords(err, "no such schedule in the organization")
	}
	_, err = fmt.Fprintln(con.out, s.Name, "is deleted")
	return err
}
