package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/handlers/outhttp"
)

// Concurrency is how many deliveries one process sends at a time. They wait for
// receivers, not for this machine.
const Concurrency = 128

// Dispatcher sends deliveries to the URLs of subscriptions.
type Dispatcher struct {
	store  *db.DB
	client *outhttp.Client
}

var _ bus.Handler = (*Dispatcher)(nil)

// New returns the handler of webhook subscriptions.
func New(store *db.DB, client *outhttp.Client) *Dispatcher {
	return &Dispatcher{store: store, client: client}
}

// Consumer says that subscriptions decide which events come here.
func (*Dispatcher) Consumer() bus.Consumer {
	return bus.Consumer{
		Name: bus.WebhookDispatch, Effect: bus.EffectAtLeastOnce, Retry: bus.DefaultRetry(),
		Concurrency: Concurrency,
		Timeout:     20 * time.Second, // beyond the client's own budget of 10 s, for the database
	}
}

// Handle makes one attempt. The address and the secret are read anew for each,
// so that a rotated secret counts at once; the body is that of the first.
func (w *Dispatcher) Handle(ctx context.Context, d *bus.Delivery) error {
	target, err := w.store.WebhookTarget(ctx, d.OrgID, d.Destination)
	if errors.Is(err, bus.ErrNotFound) {
		return errDeleted()
	}
	if err != nil {
		return err
	}
	body, err := w.body(ctx, d)
	if errors.Is(err, bus.ErrNotFound) {
		return errDeleted()
	}
	if err != nil {
		return err
	}
	started := time.Now()
	header, err := Headers(Stamp{
		EventType: string(d.Event.Type), EventID: d.Event.ID, DeliveryID: d.ID, Attempt: d.Attempt, SentAt: started,
	}, body, secrets(target)...)
	if err != nil {
		return bus.Permanent(err)
	}
	res, err := w.client.Do(ctx, outhttp.Request{Method: http.MethodPost, URL: target.URL, Header: header, Body: body})
	d.Detail = &bus.AttemptDetail{StartedAt: started, Duration: res.Duration, StatusCode: res.Status, Response: res.Text()}
	return verdict(Decide(res, err, d.Budgeted, time.Now()))
}

func errDeleted() error { return bus.Skip("the subscription was deleted") }

// body returns the frozen body of the delivery, which it makes at the first
// attempt.
func (w *Dispatcher) body(ctx context.Context, d *bus.Delivery) ([]byte, error) {
	if d.Attempt > 1 {
		frozen, err := w.store.FrozenBody(ctx, d.OrgID, d.ID)
		if !errors.Is(err, bus.ErrNotFound) {
			return frozen, err
		}
	}
	contact, err := w.contact(ctx, d.Event)
	if err != nil {
		return nil, err
	}
	body, err := Body{
		EventType: string(d.Event.Type), OccurredAt: time.Now(), HappenedAt: d.Event.CreatedAt, DeliveryID: d.ID,
		Payload: d.Event.Payload, Contact: contact,
	}.Encode()
	if err != nil {
		return nil, bus.Permanent(err)
	}
	return w.store.FreezeBody(ctx, d.OrgID, d.ID, d.Destination, body)
}

// contact returns the contact that the event names, nil when it names none that
// exists.
func (w *Dispatcher) contact(ctx context.Context, ev bus.Event) (*Contact, error) {
	var named struct {
		ContactID string `json:"contact_id"`
	}
	if err := json.Unmarshal(ev.Payload, &named); err != nil {
		return nil, nil //nolint:nilnil,nilerr // a payload of its own kind names no contact
	}
	id, err := uuid.Parse(named.ContactID)
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // a payload of its own kind names no contact
	}
	c, err := w.store.ContactForWebhook(ctx, ev.OrgID, id)
	if errors.Is(err, bus.ErrNotFound) {
		return nil, nil //nolint:nilnil // the event outlives the contact
	}
	if err != nil {
		return nil, err
	}
	return &Contact{
		ID: c.ID, Name: c.Name, DisplayName: c.Name, Email: c.Email, PhoneNumber: c.PhoneNumber, Tags: c.Tags, CreatedAt: c.CreatedAt,
	}, nil
}

func secrets(t db.Target) []string {
	if t.Secret == "" {
		return nil
	}
	return []string{t.Secret}
}

// verdict turns a decision into what the bus understands.
func verdict(d Decision) error {
	text := d.Code + ": " + d.Message
	if d.Uncertain {
		text += " (the receiver may have got it)"
	}
	err := errors.New(text)
	switch {
	case d.Outcome == OutcomeDone:
		return nil
	case d.Outcome == OutcomeDead:
		return bus.Permanent(err)
	case d.RetryAfter > 0:
		return bus.RetryAfter(d.RetryAfter, err)
	default:
		return err
	}
}
