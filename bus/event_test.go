package bus_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// The vectors were computed apart from this program: receivers know the ids.
func TestDeliveryIDNeverChanges(t *testing.T) {
	t.Parallel()
	event, other := uuid.MustParse("0192f0c1-2b7a-7c3d-8e4f-5a6b7c8d9e0f"), uuid.MustParse("0192f0c1-2b7a-7c3d-8e4f-5a6b7c8d9e10")
	a, b := uuid.MustParse("0192f0c1-0000-7000-8000-00000000000a"), uuid.MustParse("0192f0c1-0000-7000-8000-00000000000b")
	cases := map[string]struct {
		event       uuid.UUID
		consumer    string
		destination uuid.UUID
	}{
		"fe13b43f-7a83-591b-9544-94964ca0baa8": {event, "webhook-dispatch-worker", a},
		"133ac466-7a41-5b08-90e7-da7ba99a9305": {event, "webhook-dispatch-worker", b},
		"213a7b4a-ec37-5c56-a37a-d8d2963a5d40": {event, "webhook-dispatch-worker", uuid.Nil},
		"f254a603-2257-551d-8da1-21988179d54a": {event, "ai-respond-worker", uuid.Nil},
		"c9939aa2-d611-5b61-8148-bb8b92124417": {other, "webhook-dispatch-worker", a},
	}
	for want, tt := range cases {
		for range 2 {
			if got := bus.DeliveryID(tt.event, tt.consumer, tt.destination).String(); got != want {
				t.Errorf("DeliveryID(%s, %s, %s) = %s, want %s", tt.event, tt.consumer, tt.destination, got, want)
			}
		}
	}
}

func TestSteeringErrorsKeepWhatTheyWrap(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"permanent":   bus.Permanent(fmt.Errorf("send: %w", errRefused)),
		"retry after": bus.RetryAfter(1, fmt.Errorf("send: %w", errRefused)),
	} {
		if !errors.Is(err, errRefused) || err.Error() != "send: refused" {
			t.Errorf("%s: %q, is the cause: %t", name, err, errors.Is(err, errRefused))
		}
	}
	if got, want := bus.Skip("read already").Error(), "skipped: read already"; got != want {
		t.Errorf("Skip() = %q, want %q", got, want)
	}
	if got, want := bus.Invalid("payload.cents", "must be positive").Error(), "payload.cents: must be positive"; got != want {
		t.Errorf("Invalid() = %q, want %q", got, want)
	}
}
