package webhook

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Lead is what receivers may know of a lead beyond the event.
type Lead struct {
	ID           uuid.UUID       `json:"id"`
	Title        string          `json:"title"`
	Status       string          `json:"status"`
	PipelineID   uuid.UUID       `json:"pipeline_id"`
	StageID      uuid.UUID       `json:"stage_id"`
	ValueCents   *int64          `json:"value_cents"`
	Currency     *string         `json:"currency"`
	Tags         []string        `json:"tags"`
	CustomFields json.RawMessage `json:"custom_fields"`
	WonReason    *string         `json:"won_reason"`
	Source       *string         `json:"source"`
	CreatedAt    time.Time       `json:"created_at"`
}

// Contact is what receivers may know of a contact beyond the event.
type Contact struct {
	ID          uuid.UUID `json:"id"`
	Name        *string   `json:"name"`
	DisplayName *string   `json:"display_name"`
	Email       *string   `json:"email"`
	PhoneNumber *string   `json:"phone_number"`
	Tags        []string  `json:"tags"`
	CreatedAt   time.Time `json:"created_at"`
}

// MarshalJSON writes the fields in their order, with the time in our form and
// without nulls where a collection belongs.
func (l Lead) MarshalJSON() ([]byte, error) {
	type fields Lead
	if l.Tags == nil {
		l.Tags = []string{}
	}
	if len(l.CustomFields) == 0 {
		l.CustomFields = json.RawMessage("{}")
	}
	return encode(struct {
		fields
		CreatedAt string `json:"created_at"`
	}{fields(l), stamp(l.CreatedAt)})
}

// MarshalJSON writes the fields in their order, with the time in our form.
func (c Contact) MarshalJSON() ([]byte, error) {
	type fields Contact
	if c.Tags == nil {
		c.Tags = []string{}
	}
	return encode(struct {
		fields
		CreatedAt string `json:"created_at"`
	}{fields(c), stamp(c.CreatedAt)})
}
