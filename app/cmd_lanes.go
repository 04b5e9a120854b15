package app

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

type lanesCmd struct {
	List   lanesListCmd   `cmd:"" help:"List the lanes that have work or are paused."`
	Pause  lanesPauseCmd  `cmd:"" help:"Hold the deliveries of a lane."`
	Resume lanesResumeCmd `cmd:"" help:"Let a paused lane go on."`
	Retry  lanesRetryCmd  `cmd:"" help:"Make the head of a lane due at once."`
	Skip   lanesSkipCmd   `cmd:"" help:"End the head of a lane as skipped."`
	Park   lanesParkCmd   `cmd:"" help:"Put the head of a lane with the dead letters."`
}

type lanesListCmd struct {
	orgFlag
	Consumer string `help:"Only this consumer."`
	Paused   bool   `help:"Only paused lanes."`
	Limit    int    `default:"50" help:"At most this many."`
	jsonFlag
}

// laneLine is a lane as the command line shows it.
type laneLine struct {
	ID          string        `json:"id"`
	Consumer    string        `json:"consumer"`
	Destination *uuid.UUID    `json:"destination"`
	Order       bus.Ordering  `json:"order"`
	OrderKey    *string       `json:"order_key"`
	Waiting     int           `json:"waiting"`
	WaitingMore bool          `json:"waiting_more"`
	Head        *laneHeadLine `json:"head"`
	PausedAt    *time.Time    `json:"paused_at"`
	PausedBy    *string       `json:"paused_by"`
	PauseReason *string       `json:"pause_reason"`
}

// laneHeadLine is what a lane waits for.
type laneHeadLine struct {
	DeliveryID    uuid.UUID  `json:"delivery_id"`
	EventID       uuid.UUID  `json:"event_id"`
	Type          string     `json:"event_type"`
	Status        string     `json:"status"`
	Attempts      int        `json:"attempts"`
	MaxAttempts   int        `json:"max_attempts"`
	LastError     *string    `json:"last_error"`
	NextAttemptAt *time.Time `json:"next_attempt_at"`
}

func lineOfLane(l db.Lane) laneLine {
	line := laneLine{
		ID: l.String(), Consumer: l.Consumer, Destination: optionalID(l.Destination), Order: l.Ordering, OrderKey: l.OrderKey,
		Waiting: min(l.Waiting, db.LaneCap), WaitingMore: l.Waiting > db.LaneCap,
		PausedAt: l.PausedAt, PausedBy: l.PausedBy, PauseReason: l.PauseReason,
	}
	if id := l.HeadID(); id.Valid {
		line.Head = &laneHeadLine{id.UUID, l.EventID.UUID, *l.EventType, *l.Status, l.Attempts, l.MaxAttempts, l.LastError, l.NextAttemptAt}
	}
	return line
}

// columns are what people see of a lane.
func (l laneLine) columns() []string {
	waiting, state, attempts, says := strconv.Itoa(l.Waiting), "empty", "", ""
	if l.WaitingMore {
		waiting += "+"
	}
	if h := l.Head; h != nil {
		state, attempts = h.Status, strconv.Itoa(h.Attempts)+"/"+strconv.Itoa(h.MaxAttempts)
		if h.LastError != nil {
			says = *h.LastError
		}
	}
	if l.PauseReason != nil {
		state, says = "paused", *l.PauseReason
	}
	key := string(l.Order)
	if l.OrderKey != nil {
		key = *l.OrderKey
	}
	return []string{l.ID, l.Consumer, key, waiting, state, attempts, says}
}

// Run lists lanes.
func (l lanesListCmd) Run(ctx context.Context, con console, c *Common) error {
	filter := db.LaneFilter{Consumer: l.Consumer, Limit: l.Limit}
	if l.Paused {
		filter.Paused = new(true)
	}
	list := []laneLine{}
	err := c.forOrg(ctx, con, l.Organization, func(t *db.OrgTx) error {
		lanes, err := t.Lanes(ctx, filter)
		for _, lane := range lanes {
			list = append(list, lineOfLane(lane))
		}
		return err
	})
	if err != nil {
		return err
	}
	rows := make([][]string, len(list))
	for i, line := range list {
		rows[i] = line.columns()
	}
	return con.print(l.JSON, map[string]any{"items": list}, []string{"LANE", "CONSUMER", "ORDER", "WAITING", "HEAD", "ATTEMPTS", "SAYS"}, rows)
}

// laneArg names a lane.
type laneArg struct {
	Lane string `arg:"" help:"Id of the lane; see deskcomm lanes list."`
	orgFlag
}

// on runs fn on the lane and tells what has become of it.
func (l laneArg) on(ctx context.Context, con console, c *Common, says string, fn func(t *db.OrgTx, id db.LaneID) error) error {
	const unknown = "no such lane in the organization"
	id, ok := db.ParseLaneID(l.Lane)
	if !ok {
		return &refusal{says: unknown, err: bus.ErrNotFound}
	}
	if err := c.forOrg(ctx, con, l.Organization, func(t *db.OrgTx) error { return inWords(fn(t, id), unknown) }); err != nil {
		return err
	}
	_, err := fmt.Fprintln(con.out, says)
	return err
}

type lanesPauseCmd struct {
	laneArg
	Reason string `required:"" help:"Why, for others to see."`
}

// Run pauses a lane.
func (l lanesPauseCmd) Run(ctx context.Context, con console, c *Common) error {
	return l.on(ctx, con, c, "the lane is paused", func(t *db.OrgTx, id db.LaneID) error { return t.PauseLane(ctx, id, l.Reason) })
}

type lanesResumeCmd struct {
	laneArg
	Reason string `help:"Why, for the audit log."`
}

// Run resumes a lane.
func (l lanesResumeCmd) Run(ctx context.Context, con console, c *Common) error {
	return l.on(ctx, con, c, "the lane goes on", func(t *db.OrgTx, id db.LaneID) error { return t.ResumeLane(ctx, id, l.Reason) })
}

// headArg names the head of a lane.
type headArg struct {
	laneArg
	Delivery uuid.NullUUID `placeholder:"ID" help:"Refuse when the head is not this delivery by now."`
}

func (h headArg) act(id db.LaneID, reason string) db.HeadAct {
	return db.HeadAct{Lane: id, Delivery: h.Delivery, Reason: reason}
}

type lanesRetryCmd struct {
	headArg
	Reason string `help:"Why, for the audit log."`
}

// Run makes the head of a lane due.
func (l lanesRetryCmd) Run(ctx context.Context, con console, c *Common) error {
	return l.on(ctx, con, c, "the head is due", func(t *db.OrgTx, id db.LaneID) error {
		_, err := t.RetryHead(ctx, l.act(id, l.Reason))
		return err
	})
}

type lanesSkipCmd struct {
	headArg
	Reason string `required:"" help:"Why, for the audit log."`
}

// Run skips the head of a lane.
func (l lanesSkipCmd) Run(ctx context.Context, con console, c *Common) error {
	return l.on(ctx, con, c, "the head is skipped", func(t *db.OrgTx, id db.LaneID) error {
		_, err := t.SkipHead(ctx, l.act(id, l.Reason))
		return err
	})
}

type lanesParkCmd struct {
	headArg
	Reason string `required:"" help:"Why, for the audit log."`
}

// Run parks the head of a lane.
func (l lanesParkCmd) Run(ctx context.Context, con console, c *Common) error {
	return l.on(ctx, con, c, "the head is with the dead letters; see deskcomm dlq list", func(t *db.OrgTx, id db.LaneID) error {
		_, err := t.ParkHead(ctx, l.act(id, l.Reason))
		return err
	})
}
