package waha

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"
)

// maxKey bounds what may become an index key: event names, dedupe keys, ids.
const maxKey = 128

// Engine is the WhatsApp client inside WAHA. It decides the shape of payloads.
type Engine string

// The engines known. Another name is read by the fields that all share.
const (
	EngineWEBJS Engine = "WEBJS"
	EngineWPP   Engine = "WPP"
	EngineNOWEB Engine = "NOWEB"
	EngineGOWS  Engine = "GOWS"
)

// browser reports whether `from` is the sender and not the conversation.
func (e Engine) browser() bool { return e == EngineWEBJS || e == EngineWPP }

// Account is the WhatsApp account that a WAHA session is paired with. It is
// never the customer. All fields are empty until the session is paired.
type Account struct {
	Phone    string // E.164
	LID      string // digits
	PushName string
}

// Envelope is a webhook after stage one: which event it is, not yet what it says.
type Envelope struct {
	ID        string    // "evt_…", the same over retries; empty in old versions
	Event     string    // as sent; the name may be unknown to us
	Session   string    // WAHA's session name; never the source of the tenant
	Engine    Engine    // empty when the server does not say
	Timestamp time.Time // when WAHA built the event; zero in old versions
	Me        Account
	Payload   json.RawMessage // fit for jsonb; nil when absent

	// ReceivedAt is when we got the body. ParseEnvelope leaves it zero; a caller
	// that sets it gives Normalise the last resort for absurd times.
	ReceivedAt time.Time
}

// ParseEnvelope is stage one. It returns ErrNotJSON, or a *ContractError when
// the body is not an object or has no usable event name; everything else passes.
// The caller keeps the raw body.
func ParseEnvelope(body []byte) (Envelope, error) {
	if !json.Valid(body) {
		return Envelope{}, ErrNotJSON
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(storable(body), &fields); err != nil || fields == nil {
		return Envelope{}, violation("", RuleObject)
	}
	head := object{}
	for _, key := range []string{"id", "timestamp", "event", "session", "me", "engine", "environment"} {
		head[key] = decodeValue(fields[key])
	}
	event, isText := head["event"].(string)
	switch {
	case head["event"] == nil || isText && event == "":
		return Envelope{}, violation("/event", RuleRequired)
	case !isText:
		return Envelope{}, violation("/event", RuleString)
	case len(event) > maxKey:
		return Envelope{}, violation("/event", RuleMaxLength)
	}
	engine := head.text("engine")
	if engine == "" {
		engine = head.object("environment").text("engine")
	}
	env := Envelope{
		ID:      head.text("id"),
		Event:   event,
		Session: head.text("session"),
		Engine:  Engine(strings.ToUpper(engine)),
		Me:      accountOf(head.object("me")),
		Payload: fields["payload"],
	}
	env.Timestamp = asTime(head["timestamp"])
	return env, nil
}

// DedupeKey identifies the delivery for an index: the event id, else the
// X-Webhook-Request-Id, else "" (nothing to go by: treat it as new, the bare
// message id still protects). It is at most 128 bytes of UTF-8.
func (e Envelope) DedupeKey(requestID string) string {
	key := e.ID
	if key == "" {
		key = requestID
	}
	if len(key) > maxKey || !utf8.ValidString(key) || strings.ContainsRune(key, 0) {
		digest := sha256.Sum256([]byte(key))
		return "sha256:" + hex.EncodeToString(digest[:])
	}
	return key
}

// decodeValue reads one small field; what cannot be read counts as absent.
func decodeValue(raw json.RawMessage) any {
	if len(raw) == 0 {
		return nil
	}
	wrapped, _ := decodeObject(append(append([]byte(`{"v":`), raw...), '}'))
	return wrapped["v"]
}

// accountOf reads `me`. Its id may itself be a LID (WAHA #1570), so each
// address says by its suffix what it is.
func accountOf(me object) Account {
	account := Account{PushName: pushName(me.text("pushName"))}
	for _, key := range []string{"id", "jid", "lid"} {
		a, ok := ParseAddress(me.text(key))
		switch {
		case ok && a.Kind == ChatPhone && account.Phone == "":
			account.Phone = a.Phone()
		case ok && a.Kind == ChatLID && account.LID == "":
			account.LID = a.User
		}
	}
	return account
}
