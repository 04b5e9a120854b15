package admin

import (
	"strings"

	"github.com/google/uuid"
)

// Views hold what pages print: ready texts, addresses and flags. Making them
// touches no store and no request.

type errorView struct {
	frame

	Text      string
	RequestID string
}

type loginView struct {
	frame

	Fresh bool // nobody has set the installation up
	Alert string
	Email string
	Next  string
}

type setupView struct {
	frame

	Token, Alert        string
	Organization, Email string
}

type setupGoneView struct {
	frame

	Text string
	Done bool
}

type setupDoneView struct {
	frame

	Token   string
	Example string
}

// badgeView is a status in its word and its colour.
type badgeView struct{ Status, Text string }

func (v *visit) badge(status string) badgeView {
	return badgeView{Status: status, Text: v.text("Status_" + status)}
}

// option is one choice of a select.
type option struct {
	Value, Text string
	Selected    bool
}

// entity names what an event is about.
func entity(kind string, id uuid.NullUUID) string {
	if !id.Valid {
		return kind
	}
	return kind + " " + id.UUID.String()
}

// where names what a delivery goes to: the address of a webhook, else the
// consumer.
func where(consumer string, url *string) string {
	if url != nil {
		return *url
	}
	return consumer
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// exampleOf is a first request to the API, to paste into a terminal.
func exampleOf(base, token string) string {
	return strings.Join([]string{
		"curl " + base + "/v1/events \\",
		"  -H 'Authorization: Bearer " + token + "' \\",
		"  -H 'Content-Type: application/json' \\",
		`  -d '{"event_type":"custom.hello","entity_kind":"test","payload":{"text":"hello"}}'`,
	}, "\n")
}
