package api

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
)

// instant is a time as the API writes it: RFC 3339 in UTC, always with the
// microseconds that Postgres keeps.
type instant time.Time

// MarshalJSON writes the instant.
func (i instant) MarshalJSON() ([]byte, error) {
	return []byte(time.Time(i).UTC().Format(`"2006-01-02T15:04:05.000000Z"`)), nil
}

// Schema describes an instant.
func (instant) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Format: "date-time"}
}

func optionalInstant(t *time.Time) *instant {
	if t == nil {
		return nil
	}
	return new(instant(*t))
}

// object is a JSON object that goes through as it came: its numbers are never
// read, so none is rounded.
type object json.RawMessage

// UnmarshalJSON keeps the text; null is no object.
func (o *object) UnmarshalJSON(text []byte) error {
	if !bytes.Equal(text, []byte("null")) {
		*o = bytes.Clone(text)
	}
	return nil
}

// MarshalJSON writes the text.
func (o object) MarshalJSON() ([]byte, error) {
	if o == nil {
		return []byte("null"), nil
	}
	return o, nil
}

// Schema describes an object of which the contract knows nothing.
func (object) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeObject, AdditionalProperties: true}
}

// optionalID is nil for what does not exist.
func optionalID(id uuid.NullUUID) *uuid.UUID {
	if !id.Valid {
		return nil
	}
	return &id.UUID
}

// destinationID is nil for a consumer that delivers to nothing outside itself.
func destinationID(id uuid.UUID) *uuid.UUID {
	return optionalID(uuid.NullUUID{UUID: id, Valid: id != uuid.Nil})
}

// Resource is the input of an operation on one resource.
type Resource struct {
	ID uuid.UUID `path:"id" format:"uuid" doc:"The id of the resource."`
}
