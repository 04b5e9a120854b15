package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/handlers/outhttp"
)

// Concurrency is how many deliveries one process sends at a time. They wait for
// receivers, not for this machine, and what is claimed and written for more of them
// at once costs less for each.
const Concurrency = 256

// InFlight bounds what is sent at a time with the slots that a consumer has beside
// its concurrency, a quarter twice; as many connections are kept for reuse.
const InFlight = Concurrency + Concurrency/2

// gathered bounds what one statement of a dispatcher asks or writes for.
const gathered = 500

// Dispatcher sends deliveries to the URLs of subscriptions. What each has to ask
// and write before it is sent, those that begin together ask and write together.
type Dispatcher struct {
	client   *outhttp.Client
	contacts *gatherer[db.ContactRef, *db.Contact]
	bodies   *gatherer[db.Sending, db.Sendable]
}

var _ bus.Handler = (*Dispatcher)(nil)

// New returns the handler of webhook subscriptions.
func New(store *db.DB, client *outhttp.Client) *Dispatcher {
	contacts := func(ctx context.Context, refs []db.ContactRef) ([]*db.Contact, error) {
		found, err := store.ContactsForWebhooks(ctx, refs)
		out := make([]*db.Contact, len(refs))
		for i, ref := range refs {
			if c, ok := found[ref]; ok {
				out[i] = &c
			}
		}
		return out, err
	}
	return &Dispatcher{client: client, contacts: newGatherer(gathered, contacts), bodies: newGatherer(gathered, store.FreezeBodies)}
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
	send, err := w.prepare(ctx, d)
	if err != nil {
		return err
	}
	started := time.Now()
	header, err := Headers(Stamp{
		EventType: string(d.Event.Type), EventID: d.Event.ID, DeliveryID: d.ID, Attempt: d.Attempt, SentAt: started,
	}, send.Body, secrets(send.Target)...)
	if err != nil {
		return bus.Permanent(err)
	}
	res, err := w.client.Do(ctx, outhttp.Request{Method: http.MethodPost, URL: send.Target.URL, Header: header, Body: send.Body})
	d.Detail = &bus.AttemptDetail{StartedAt: started, Duration: res.Duration, StatusCode: res.Status, Response: res.Text()}
	return verdict(Decide(res, err, d.Budgeted, time.Now()))
}

// prepare returns where the delivery goes and its frozen body, which is made at
// the first attempt and kept before anything is sent.
func (w *Dispatcher) prepare(ctx context.Context, d *bus.Delivery) (db.Sendable, error) {
	if d.Attempt > 1 {
		if send, err := w.sendable(ctx, d, nil); err != nil || send.Body != nil {
			return send, err
		}
	}
	contact, err := w.contact(ctx, d.Event)
	if err != nil {
		return db.Sendable{}, err
	}
	body, err := Body{
		EventType: string(d.Event.Type), OccurredAt: time.Now(), HappenedAt: d.Event.CreatedAt, DeliveryID: d.ID,
		Payload: d.Event.Payload, Contact: contact,
	}.Encode()
	if err != nil {
		return db.Sendable{}, bus.Permanent(err)
	}
	return w.sendable(ctx, d, body)
}

// sendable freezes body, when it is given, and returns what is to be sent.
func (w *Dispatcher) sendable(ctx context.Context, d *bus.Delivery, body []byte) (db.Sendable, error) {
	send, err := w.bodies.do(ctx, db.Sending{OrgID: d.OrgID, DeliveryID: d.ID, Destination: d.Destination, Body: body})
	switch {
	case err != nil:
		return send, err
	case send.Deleted:
		return send, bus.Skip("the subscription was deleted")
	case send.Err == nil && body != nil && send.Body == nil:
		return send, errThawed
	default:
		return send, send.Err
	}
}

// errThawed is met by a handler that has lost its lease: another one has frozen a
// body and settled.
var errThawed = errors.New("the body was settled by another attempt")

// contact returns the contact that the event names, nil when it names none that
// exists.
func (w *Dispatcher) contact(ctx context.Context, ev bus.Event) (*Contact, error) {
	if !mayName(ev.Payload, "contact_id") {
		return nil, nil //nolint:nilnil // as most events of integrators
	}
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
	c, err := w.contacts.do(ctx, db.ContactRef{OrgID: ev.OrgID, ID: id})
	if c == nil || err != nil {
		return nil, err // the event outlives the contact
	}
	return &Contact{
		ID: c.ID, Name: c.Name, DisplayName: c.Name, Email: c.Email, PhoneNumber: c.PhoneNumber, Tags: c.Tags, CreatedAt: c.CreatedAt,
	}, nil
}

// mayName reports whether key may be in an object, in any case, as package json
// reads it. It spares most payloads a decoder.
func mayName(object []byte, key string) bool {
	if bytes.IndexByte(object, '\\') >= 0 {
		return true // the key may be written in escapes
	}
	head := strings.IndexByte(key, '_')
	for at, rest := 0, object; ; {
		n := bytes.IndexByte(rest, '_')
		if n < 0 {
			return false
		}
		at += n
		if start := at - head; start >= 0 && start+len(key) <= len(object) && strings.EqualFold(string(object[start:start+len(key)]), key) {
			return true
		}
		at++
		rest = object[at:]
	}
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
