package waha

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// Type is the kind of content, as the messages table names it.
type Type string

// The types of a message. TypeReaction is complete with the table and never
// comes from Normalise, which makes a Reaction of it.
const (
	TypeText     Type = "text"
	TypeImage    Type = "image"
	TypeVideo    Type = "video"
	TypeAudio    Type = "audio"
	TypeDocument Type = "document"
	TypeSticker  Type = "sticker"
	TypeLocation Type = "location"
	TypeContact  Type = "contact"
	TypeReaction Type = "reaction"
	TypeSystem   Type = "system"
	TypeTemplate Type = "template"
)

// Raw types that are ours, for placeholders whose content never arrives.
const (
	RawViewOnce = "view_once" // can be opened on the phone only
	RawAdClick  = "ad_click"  // the customer came from an advertisement and wrote nothing
)

// Message is something said in a conversation with one customer, in either
// direction. A TypeSystem message with an empty body is a placeholder: it shows
// that something came which cannot be shown, and asks for no answer.
type Message struct {
	ID        string // bare id: with the channel, the identity of the message
	FullID    string // composite form, which reactions, edits and deletions need
	Chat      Identity
	Direction Direction
	Source    Source
	PushName  string // the customer's; empty for outbound messages
	Type      Type
	RawType   string // the engine's word: "imageMessage", "ptt", "view_once"
	Body      string // text or caption

	HasMedia     bool
	MediaMissing bool   // HasMedia, but WAHA gave no file: ask its message endpoint
	Media        *Media // what is known of the file, with or without its URL

	Location   *Location
	VCards     []string
	ReplyTo    string    // bare id of the quoted message
	SelectedID string    // id of the button, list row or flow that was chosen
	SentAt     time.Time // zero when no time in the event can be believed
	Ack        *AckLevel // nil when unknown
}

// Kind returns KindMessage.
func (Message) Kind() Kind { return KindMessage }
func (Message) sealed()    {}

// message reads message and message.any, which tell the same message twice.
// NOWEB also lets edits and revokes through here (WAHA #813): they are read as
// what they are.
func (r *reading) message() Update {
	o := r.origin()
	if o.ignored != nil {
		return *o.ignored
	}
	c := r.content()
	typ, reason := classify(c.name)
	switch {
	case c.key == "protocolMessage":
		return r.protocol(o, c)
	case c.key == "secretEncryptedMessage":
		return r.sealedEdit(o, c)
	case reason != "":
		return Ignored{Reason: reason}
	}
	r.requireID(o)
	m := Message{
		ID:        o.id.bare,
		Chat:      o.chat,
		FullID:    cmp.Or(o.id.full, fmt.Sprintf("%t_%s_%s", o.fromMe, o.chat.ID, o.id.bare)),
		Direction: directionOf(o.fromMe),
		Source:    r.source(),
		Type:      typ,
		RawType:   c.name,
		VCards:    r.vCards(c),
		ReplyTo:   r.replyTo(c),
		SentAt:    r.env.at(r.p["timestamp"]),
	}
	if !o.fromMe {
		m.PushName = r.customerName()
	}
	if level, ok := r.ackLevel(); ok {
		m.Ack = &level
	}
	r.readMedia(&m, c)
	if m.Type == "" || m.Type == TypeLocation {
		m.Location = r.location(c)
	}
	m.Body, m.SelectedID = r.body(c, m), selectedID(c, r.data)
	if m.Type == "" {
		m.Type = typeOfContent(m)
	}
	if m.Type != "" && (m.Type != TypeText || m.Body != "") {
		return m
	}
	return emptyMessage(m, c)
}

// typeOfContent chooses a type by what there is, when no name tells it.
func typeOfContent(m Message) Type {
	switch {
	case m.Location != nil:
		return TypeLocation
	case len(m.VCards) > 0:
		return TypeContact
	case m.Body != "":
		return TypeText
	}
	return ""
}

// emptyMessage makes a placeholder of a message whose content we cannot have,
// and ignores one that has none.
func emptyMessage(m Message, c content) Update {
	switch {
	case c.viewOnce:
		m.RawType = RawViewOnce
	case c.fromAd:
		m.RawType = RawAdClick
	case c.undecrypted:
		return Ignored{Reason: ReasonWaiting}
	case c.name == "" || isPlainText(c.name):
		return Ignored{Reason: ReasonEmpty}
	}
	m.Type = TypeSystem
	return m
}

// isPlainText reports whether a message of this name has nothing but its text.
func isPlainText(name string) bool {
	return name == "conversation" || name == "extendedTextMessage" || name == "chat" || name == "text"
}

// customerName is the sender's push name, wherever the engine keeps it.
func (r *reading) customerName() string {
	return pushName(cmp.Or(
		r.data.object("Info").text("PushName"),
		r.data.text("pushName", "notifyName"),
	))
}

// pushName cleans a name that a stranger chose: one line, at most 100 characters.
func pushName(name string) string {
	var clean []rune
	for _, c := range strings.TrimSpace(name) {
		if len(clean) == 100 {
			break
		}
		if unicode.IsControl(c) {
			c = ' '
		}
		clean = append(clean, c)
	}
	return strings.TrimSpace(string(clean))
}

// replyTo finds the quoted message; native-flow answers carry it only in the
// engine's own data.
func (r *reading) replyTo(c content) string {
	reply := r.p["replyTo"]
	if fields := r.p.object("replyTo"); fields != nil {
		reply = fields["id"]
	}
	return cmp.Or(
		bareIDOf(reply),
		bareIDOf(c.body.object("contextInfo").text("stanzaID", "stanzaId")),
		bareIDOf(r.data["quotedStanzaID"]),
	)
}
