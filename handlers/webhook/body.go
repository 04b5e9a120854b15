package webhook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Body is what a delivery says. It is encoded once, at the first attempt; every
// later attempt sends the same bytes.
type Body struct {
	EventType  string
	OccurredAt time.Time // when this delivery was built
	HappenedAt time.Time // when the event was emitted
	DeliveryID uuid.UUID
	// Payload is the event's own, a JSON object; empty and null count as {}.
	Payload json.RawMessage
	Contact *Contact // added to the payload when it is not nil
}

// Encode returns the body on one line. Numbers and strings of the payload keep
// their spelling; only spaces between them go.
func (b Body) Encode() ([]byte, error) {
	event, err := encode(b.EventType)
	if err != nil {
		return nil, fmt.Errorf("encode webhook body: %w", err)
	}
	out := make([]byte, 0, envelope+len(event)+len(b.Payload))
	out = append(append(out, `{"event":`...), event...)
	out = appendStamp(append(out, `,"occurred_at":"`...), b.OccurredAt)
	out = appendStamp(append(out, `","happened_at":"`...), b.HappenedAt)
	out = append(append(out, `","delivery_id":"`...), b.DeliveryID.String()...)
	if out, err = b.appendData(append(out, `","data":`...)); err != nil {
		return nil, fmt.Errorf("encode webhook body: %w", err)
	}
	return append(out, '}'), nil
}

// envelope is enough room for what a body has beside its payload, a contact included.
const envelope = 512

// appendData adds the contact behind the payload's own keys. A key that the payload
// has already stays as it is: the event is the fact, the projection a courtesy, and
// a receiver must be able to trust that no fact was replaced.
func (b Body) appendData(out []byte) ([]byte, error) {
	payload := bytes.TrimSpace(b.Payload)
	if len(payload) == 0 || string(payload) == "null" {
		payload = []byte("{}")
	}
	if payload[0] != '{' {
		return nil, errNotObject
	}
	buf := bytes.NewBuffer(out)
	if err := json.Compact(buf, payload); err != nil { // refuses all but one value
		return nil, errNotObject
	}
	out = buf.Bytes()
	if b.Contact == nil {
		return out, nil
	}
	keys, err := topLevelKeys(payload)
	const key = "contact"
	if err != nil || keys[key] {
		return out, err
	}
	text, err := encode(*b.Contact)
	if err != nil {
		return nil, err
	}
	out = out[:len(out)-1] // without the closing brace
	if len(keys) > 0 {
		out = append(out, ',')
	}
	out = append(out, `"`+key+`":`...)
	return append(append(out, text...), '}'), nil
}

var errNotObject = errors.New("the payload must be one JSON object")

// topLevelKeys returns the keys of a valid object without reading its values.
func topLevelKeys(object []byte) (map[string]bool, error) {
	d := json.NewDecoder(bytes.NewReader(object))
	if first, err := d.Token(); err != nil || first != json.Delim('{') {
		return nil, errNotObject
	}
	keys := map[string]bool{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, errNotObject
		}
		name, ok := key.(string)
		if !ok {
			return nil, errNotObject
		}
		keys[name] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, errNotObject
		}
	}
	return keys, nil
}

// encode is json.Marshal without the escaping for HTML: receivers compare bytes
// with what they stored, and a body is never part of a page.
func encode(value any) ([]byte, error) {
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// stamp writes an instant as receivers know it: UTC, always three decimals.
func stamp(at time.Time) string { return string(appendStamp(nil, at)) }

func appendStamp(out []byte, at time.Time) []byte {
	return at.UTC().AppendFormat(out, "2006-01-02T15:04:05.000Z")
}
