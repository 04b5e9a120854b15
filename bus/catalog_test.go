package bus_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/deskcomm/deskcomm/bus"
)

func TestATypeIsEntityDotAction(t *testing.T) {
	t.Parallel()
	long := bus.Type("custom." + strings.Repeat("a", 93))
	cases := map[bus.Type]bool{
		"message.received":   true,
		"ai_agent.run_2":     true,
		"a.b":                true,
		long:                 true,
		long + "a":           false, // 101 bytes
		"":                   false,
		"message":            false,
		"message.":           false,
		".received":          false,
		"message.received.x": false,
		"Message.received":   false,
		"message.receivedÉ":  false,
		"message-x.received": false,
		"2fa.enabled":        false,
		"message._received":  false,
		"message. received":  false,
		"message.received\n": false,
		"custom.*":           false,
	}
	for typ, want := range cases {
		if got := typ.Valid(); got != want {
			t.Errorf("Type(%q).Valid() = %t, want %t", typ, got, want)
		}
	}
}

func TestTheCatalogueHoldsEachValidTypeOnce(t *testing.T) {
	t.Parallel()
	seen := make(map[bus.Type]bool)
	for _, typ := range bus.Catalogue() {
		if !typ.Valid() || seen[typ] || bus.IsCustom(typ) {
			t.Errorf("%q: valid %t, seen before %t, custom %t", typ, typ.Valid(), seen[typ], bus.IsCustom(typ))
		}
		seen[typ] = true
	}
	for _, typ := range []bus.Type{
		bus.MessageReceived, bus.MessageSent, bus.MessageDelivered, bus.MessageRead, bus.MessageFailed, bus.ContactCreated,
		bus.ContactMerged, bus.ConversationOpened, bus.ConversationReopened, bus.SystemSessionChanged, bus.WhatsAppChatIDNotRecognized,
	} {
		if !seen[typ] {
			t.Errorf("%q has a constant and no place in the catalogue", typ)
		}
	}
}

func TestKnownIsTheCatalogueAndCustom(t *testing.T) {
	t.Parallel()
	cases := map[bus.Type]bool{
		"message.received":  true,
		"incident.resolved": true,
		"custom.paid":       true,
		"custom.":           false,
		"custom.Paid":       false,
		"customer.paid":     false,
		"message.imagined":  false,
		"message.*":         false,
		"*":                 false,
		"":                  false,
	}
	for typ, want := range cases {
		if got := bus.Known(typ); got != want {
			t.Errorf("Known(%q) = %t, want %t", typ, got, want)
		}
	}
}

func TestASubscriptionsPatternIsATypeAnEntityOrAll(t *testing.T) {
	t.Parallel()
	cases := map[string]bool{
		"*":                true,
		"message.received": true,
		"message.*":        true,
		"custom.paid":      true,
		"custom.*":         true,
		"":                 false,
		".*":               false,
		"**":               false,
		"message":          false,
		"mess.*":           false,
		"message.rec*":     false,
		"message.imagined": false,
		"imagined.*":       false,
		"*.received":       false,
		"lead.created.*":   false,
		"Message.*":        false,
	}
	for pattern, accepted := range cases {
		err := bus.CheckPattern("event_types.3", pattern)
		if accepted != (err == nil) {
			t.Errorf("CheckPattern(%q) = %v, want accepted %t", pattern, err, accepted)
		}
		if field, ok := errors.AsType[*bus.FieldError](err); err != nil && (!ok || field.Field != "event_types.3") {
			t.Errorf("CheckPattern(%q) = %v, want an error of the field", pattern, err)
		}
	}
}
