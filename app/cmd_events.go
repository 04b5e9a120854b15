package app

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

type emitCmd struct {
	Type string `arg:"" help:"Type of the event, as in custom.order_shipped."`
	orgFlag
	EntityKind string        `default:"custom" help:"Kind of the thing it is about."`
	EntityID   uuid.NullUUID `placeholder:"UUID" help:"Id of the thing it is about."`
	Payload    string        `default:"{}" placeholder:"JSON" help:"A JSON object; @file reads a file, - standard input."`
	jsonFlag
}

// Run emits one event.
func (e emitCmd) Run(ctx context.Context, con console, c *Common) error {
	if err := bus.CheckType("event_type", bus.Type(e.Type)); err != nil {
		return err
	}
	payload, err := con.readArgument(e.Payload)
	if err != nil {
		return err
	}
	if !json.Valid(payload) {
		return bus.Invalid("payload", "must be a JSON object")
	}
	var emitted db.Emitted
	err = c.forOrg(ctx, con, e.Organization, func(t *db.OrgTx) (err error) {
		emitted, err = t.Emit(ctx, db.NewEvent{
			Type: bus.Type(e.Type), EntityKind: e.EntityKind, EntityID: e.EntityID, Payload: payload,
		})
		return err
	})
	if err != nil {
		return err
	}
	return con.print(e.JSON, map[string]any{"id": emitted.ID}, nil, [][]string{{emitted.ID.String()}})
}

type eventsCmd struct {
	List eventsListCmd `cmd:"" help:"List events, newest first."`
	Show eventsShowCmd `cmd:"" help:"Show one event and its deliveries."`
}

type eventsListCmd struct {
	orgFlag
	Type   string `help:"Only this type."`
	Status string `enum:",pending,held,dead,done" default:"" help:"Only this status: pending, held, dead or done."`
	Limit  int    `default:"50" help:"At most this many."`
	jsonFlag
}

// eventLine is an event as the command line shows it.
type eventLine struct {
	ID         uuid.UUID       `json:"id"`
	Seq        *int64          `json:"seq"`
	Type       bus.Type        `json:"event_type"`
	EntityKind string          `json:"entity_kind"`
	EntityID   *uuid.UUID      `json:"entity_id"`
	Status     string          `json:"status"`
	Payload    json.RawMessage `json:"payload"`
	Metadata   json.RawMessage `json:"metadata"`
	CreatedAt  time.Time       `json:"created_at"`
}

func lineOf(e db.EventRow) eventLine {
	line := eventLine{
		ID: e.ID, Seq: e.Seq, Type: e.Type, EntityKind: e.EntityKind, Status: e.Status,
		Payload: e.Payload, Metadata: e.Metadata, CreatedAt: e.CreatedAt,
	}
	if e.EntityID.Valid {
		line.EntityID = &e.EntityID.UUID
	}
	return line
}

// Run lists events.
func (e eventsListCmd) Run(ctx context.Context, con console, c *Common) error {
	list := []eventLine{}
	err := c.forOrg(ctx, con, e.Organization, func(t *db.OrgTx) error {
		rows, err := t.Events(ctx, db.EventFilter{Type: e.Type, Status: e.Status, Limit: e.Limit})
		for _, row := range rows {
			list = append(list, lineOf(row))
		}
		return err
	})
	if err != nil {
		return err
	}
	rows := make([][]string, len(list))
	for i, l := range list {
		rows[i] = []string{l.ID.String(), string(l.Type), l.EntityKind, l.Status, l.CreatedAt.Format(time.RFC3339)}
	}
	return con.print(e.JSON, map[string]any{"items": list}, []string{"ID", "TYPE", "ENTITY", "STATUS", "CREATED"}, rows)
}

type eventsShowCmd struct {
	ID uuid.UUID `arg:"" help:"Id of the event."`
	orgFlag
	jsonFlag
}

// deliveryLine is a delivery as the command line shows it.
type deliveryLine struct {
	ID            uuid.UUID  `json:"id"`
	Consumer      string     `json:"consumer"`
	Destination   *uuid.UUID `json:"destination"`
	Status        string     `json:"status"`
	Attempts      int        `json:"attempts"`
	MaxAttempts   int        `json:"max_attempts"`
	LastError     *string    `json:"last_error"`
	NextAttemptAt *time.Time `json:"next_attempt_at"`
	UpdatedAt     time.Time  `json:"updated_at"`
}

// Run shows one event.
func (e eventsShowCmd) Run(ctx context.Context, con console, c *Common) error {
	var event eventLine
	deliveries := []deliveryLine{}
	err := c.forOrg(ctx, con, e.Organization, func(t *db.OrgTx) error {
		row, err := t.Event(ctx, e.ID)
		if err != nil {
			return inWords(err, "no such event in the organization")
		}
		event = lineOf(row)
		list, err := t.EventDeliveries(ctx, e.ID)
		for _, d := range list {
			deliveries = append(deliveries, deliveryLine{
				d.ID, d.Consumer, optionalID(d.Destination), d.Status, d.Attempts, d.MaxAttempts, d.LastError, d.NextAttemptAt, d.UpdatedAt,
			})
		}
		return err
	})
	if err != nil {
		return err
	}
	rows := [][]string{
		{"id", event.ID.String()},
		{"type", string(event.Type)},
		{"status", event.Status},
		{"created", event.CreatedAt.Format(time.RFC3339)},
		{"payload", string(event.Payload)},
		{"metadata", string(event.Metadata)},
	}
	for _, d := range deliveries {
		text := d.Consumer + " " + d.Status + " " + strconv.Itoa(d.Attempts) + "/" + strconv.Itoa(d.MaxAttempts)
		if d.LastError != nil {
			text += " " + *d.LastError
		}
		rows = append(rows, []string{"delivery", d.ID.String() + " " + text})
	}
	return con.print(e.JSON, struct {
		eventLine
		Deliveries []deliveryLine `json:"deliveries"`
	}{event, deliveries}, nil, rows)
}

func optionalID(id uuid.UUID) *uuid.UUID {
	if id == uuid.Nil {
		return nil
	}
	return &id
}

type dlqCmd struct {
	List    dlqListCmd    `cmd:"" help:"List dead and uncertain deliveries, the latest first."`
	Replay  dlqReplayCmd  `cmd:"" help:"Give a dead or uncertain delivery a fresh budget of attempts."`
	Confirm dlqConfirmCmd `cmd:"" help:"End an uncertain delivery whose effect has happened."`
	Discard dlqDiscardCmd `cmd:"" help:"End a dead or uncertain delivery for good."`
}

type dlqListCmd struct {
	orgFlag
	Type     string `help:"Only this event type."`
	Consumer string `help:"Only this consumer."`
	Status   string `enum:"dead,uncertain," default:"" help:"Only this status: dead or uncertain."`
	Limit    int    `default:"50" help:"At most this many."`
	jsonFlag
}

// deadLine is a dead delivery as the command line shows it.
type deadLine struct {
	ID          uuid.UUID  `json:"id"`
	EventID     uuid.UUID  `json:"event_id"`
	Type        bus.Type   `json:"event_type"`
	Consumer    string     `json:"consumer"`
	Destination *uuid.UUID `json:"destination"`
	Status      string     `json:"status"`
	Attempts    int        `json:"attempts"`
	LastError   string     `json:"last_error"`
	DiedAt      time.Time  `json:"died_at"`
}

// Run lists dead deliveries.
func (d dlqListCmd) Run(ctx context.Context, con console, c *Common) error {
	list := []deadLine{}
	err := c.forOrg(ctx, con, d.Organization, func(t *db.OrgTx) error {
		dead, err := t.DeadDeliveries(ctx, db.DeadFilter{Type: d.Type, Consumer: d.Consumer, State: d.Status, Limit: d.Limit})
		for _, x := range dead {
			list = append(list, deadLine{x.ID, x.EventID, x.Type, x.Consumer, optionalID(x.Destination), x.State, x.Attempts, x.LastError, x.DiedAt})
		}
		return err
	})
	if err != nil {
		return err
	}
	rows := make([][]string, len(list))
	for i, l := range list {
		rows[i] = []string{l.ID.String(), string(l.Type), l.Consumer, l.Status, strconv.Itoa(l.Attempts), l.DiedAt.Format(time.RFC3339), l.LastError}
	}
	return con.print(d.JSON, map[string]any{"items": list}, []string{"DELIVERY", "TYPE", "CONSUMER", "STATUS", "ATTEMPTS", "DIED", "ERROR"}, rows)
}

type dlqReplayCmd struct {
	ID uuid.UUID `arg:"" help:"Id of the delivery."`
	orgFlag
	Reason string `help:"Why, for the audit log."`
}

// Run replays a dead delivery.
func (d dlqReplayCmd) Run(ctx context.Context, con console, c *Common) error {
	err := c.forOrg(ctx, con, d.Organization, func(t *db.OrgTx) error { return t.Replay(ctx, d.ID, d.Reason) })
	if err != nil {
		return inWords(err, "no such dead or uncertain delivery in the organization")
	}
	_, err = fmt.Fprintln(con.out, d.ID, "is due again")
	return err
}

type dlqConfirmCmd struct {
	ID uuid.UUID `arg:"" help:"Id of the delivery."`
	orgFlag
	Reason string `help:"How that is known, for the audit log."`
}

// Run confirms that the effect of an uncertain delivery has happened.
func (d dlqConfirmCmd) Run(ctx context.Context, con console, c *Common) error {
	err := c.forOrg(ctx, con, d.Organization, func(t *db.OrgTx) error { return t.ConfirmDone(ctx, d.ID, d.Reason) })
	if err != nil {
		return inWords(err, "no such uncertain delivery in the organization")
	}
	_, err = fmt.Fprintln(con.out, d.ID, "is done")
	return err
}

type dlqDiscardCmd struct {
	ID uuid.UUID `arg:"" help:"Id of the delivery."`
	orgFlag
	Reason string `required:"" help:"Why, for the audit log."`
}

// Run discards a dead delivery.
func (d dlqDiscardCmd) Run(ctx context.Context, con console, c *Common) error {
	err := c.forOrg(ctx, con, d.Organization, func(t *db.OrgTx) error { return t.Discard(ctx, d.ID, d.Reason) })
	if err != nil {
		return inWords(err, "no such dead or uncertain delivery in the organization")
	}
	_, err = fmt.Fprintln(con.out, d.ID, "is discarded")
	return err
}
