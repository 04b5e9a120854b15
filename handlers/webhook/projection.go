package webhook

import (
	"time"

	"github.com/google/uuid"
)

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
