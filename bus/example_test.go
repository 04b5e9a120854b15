package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/deskcomm/deskcomm/bus"
)

// Receipts tells a customer of each payment, through send.
type Receipts struct {
	send func(ctx context.Context, key, phone string) error
}

var (
	errNoSuchNumber = errors.New("no such number")
	errTooMany      = errors.New("too many messages")
)

// Consumer has a name that is kept for ever, and what it reads.
func (Receipts) Consumer() bus.Consumer {
	return bus.Consumer{
		Name: "receipt-worker", Types: []bus.Type{"custom.paid"}, Effect: bus.EffectAtLeastOnce,
		Retry: bus.DefaultRetry(), Concurrency: 10, Timeout: 30 * time.Second,
	}
}

// Handle steers by its error. It may be called again for the same delivery; the
// ID is the same then, so the receiver can tell a repetition.
func (r Receipts) Handle(ctx context.Context, d *bus.Delivery) error {
	var paid struct{ Phone string }
	if err := json.Unmarshal(d.Event.Payload, &paid); err != nil {
		return bus.Permanent(err) // it would not fit the next time either
	}
	if paid.Phone == "" {
		return bus.Skip("the customer has no phone")
	}
	err := r.send(ctx, d.ID.String(), paid.Phone)
	switch {
	case errors.Is(err, errNoSuchNumber):
		return bus.Permanent(err)
	case errors.Is(err, errTooMany):
		return bus.RetryAfter(time.Minute, err)
	default:
		return err // nil is done, anything else is retried by the policy
	}
}

func ExampleHandler() {
	receipts := Receipts{send: func(_ context.Context, _, phone string) error {
		switch phone {
		case "+5511900000000":
			return errNoSuchNumber
		case "+5511900000001":
			return errTooMany
		}
		return nil
	}}
	fmt.Println(bus.CheckHandlers([]bus.Handler{receipts}))
	for _, payload := range []string{
		`{"phone": "+5511912345678"}`, `{"phone": "+5511900000000"}`, `{"phone": "+5511900000001"}`, `{}`, `{"phone": 1}`,
	} {
		d := &bus.Delivery{Event: bus.Event{Type: "custom.paid", Payload: []byte(payload)}}
		fmt.Printf("%T\n", receipts.Handle(context.Background(), d))
	}
	// Output:
	// <nil>
	// <nil>
	// *bus.PermanentError
	// *bus.RetryAfterError
	// *bus.SkipError
	// *bus.PermanentError
}

func ExamplePermanent() {
	err := bus.Permanent(fmt.Errorf("send receipt: %w", errNoSuchNumber))
	_, permanent := errors.AsType[*bus.PermanentError](err)
	fmt.Println(err)
	fmt.Println(permanent, errors.Is(err, errNoSuchNumber))
	// Output:
	// send receipt: no such number
	// true true
}
