package bus

import (
	"encoding/json"
	"regexp"
	"time"

	"github.com/google/uuid"
)

// Type names what happened as entity.action in lower snake case, with exactly
// one dot: message.received.
type Type string

var typePattern = regexp.MustCompile(`^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$`)

// Valid reports whether t has the form of a type. A valid type need not be in
// the catalogue.
func (t Type) Valid() bool { return len(t) <= 100 && typePattern.MatchString(string(t)) }

// Event is an immutable fact or command of one organization.
type Event struct {
	ID         uuid.UUID
	OrgID      uuid.UUID
	Type       Type
	EntityKind string
	EntityID   uuid.NullUUID
	Payload    json.RawMessage // a JSON object
	Metadata   json.RawMessage // a JSON object: request_id, actor_kind, …
	CreatedAt  time.Time
}
