package waha

import (
	"strings"
	"time"
)

// AckLevel is how far a message got, in WAHA's numbers. Levels arrive in any
// order; a stored level only rises, and AckError counts only below AckServer.
type AckLevel int

// The levels. AckPlayed is a voice note that was listened to.
const (
	AckError   AckLevel = -1
	AckPending AckLevel = 0
	AckServer  AckLevel = 1
	AckDevice  AckLevel = 2
	AckRead    AckLevel = 3
	AckPlayed  AckLevel = 4
)

// Status is the level as the messages table names it.
type Status string

// The statuses a level can stand for.
const (
	StatusFailed    Status = "failed"
	StatusSending   Status = "sending"
	StatusSent      Status = "sent"
	StatusDelivered Status = "delivered"
	StatusRead      Status = "read"
)

// Status returns the status of the level; played counts as read.
func (l AckLevel) Status() Status {
	switch {
	case l < AckPending:
		return StatusFailed
	case l == AckPending:
		return StatusSending
	case l == AckServer:
		return StatusSent
	case l == AckDevice:
		return StatusDelivered
	}
	return StatusRead
}

// Ack says how far a message got. When FromMe is false the account itself read
// a customer's message on another device: it clears the unread count and is
// never a receipt of ours.
type Ack struct {
	ID          string // bare id of the message
	Chat        Identity
	Level       AckLevel
	Status      Status
	Participant string // canonical address of who acknowledged, if told
	FromMe      bool   // who wrote the message
	At          time.Time
}

// Kind returns KindAck.
func (Ack) Kind() Kind { return KindAck }
func (Ack) sealed()    {}

// ack reads message.ack and message.ack.group. Group acks come under either
// name, so the address decides.
func (r *reading) ack() Update {
	o := r.origin()
	if o.ignored != nil {
		return *o.ignored
	}
	r.requireID(o)
	level, known := r.ackLevel()
	switch {
	case known:
	case r.p.has("ack") || r.p.text("ackName") != "" && r.p.text("ackName") != "UNKNOWN":
		if _, isNumber := asInt(r.p["ack"]); r.p.has("ack") && !isNumber {
			r.fault("/ack", RuleNumber)
		}
		return Ignored{Reason: ReasonUnknownAck}
	default:
		r.fault("/ack", RuleRequired)
	}
	a := Ack{ID: o.id.bare, Chat: o.chat, FromMe: o.fromMe, Level: level, Status: level.Status()}
	receipt, _ := time.Parse(time.RFC3339, r.data.text("Timestamp")) // GOWS only
	a.At = r.env.plausible(receipt.UTC())
	if p, ok := ParseAddress(r.text("participant")); ok {
		a.Participant = p.String()
	}
	// A GOWS receipt was written by the customer unless it says otherwise, so
	// its SenderAlt is the other name of the customer.
	if chat, ok := ParseAddress(o.chat.ID); ok && r.data.has("SenderAlt") {
		alternate := r.data.text("SenderAlt")
		if r.data.flag("IsFromMe") {
			alternate = r.data.text("RecipientAlt")
		}
		a.Chat = chat.identity([]string{alternate}, r.env.Me)
	}
	return a
}

// ackLevel reads ack, else ackName. Levels we have no name for are unknown.
func (r *reading) ackLevel() (AckLevel, bool) {
	if n, ok := asInt(r.p["ack"]); ok {
		level := AckLevel(n)
		return level, level >= AckError && level <= AckPlayed
	}
	if r.p.has("ack") {
		return 0, false
	}
	switch strings.ToUpper(r.p.text("ackName")) {
	case "ERROR":
		return AckError, true
	case "PENDING":
		return AckPending, true
	case "SERVER":
		return AckServer, true
	case "DEVICE":
		return AckDevice, true
	case "READ":
		return AckRead, true
	case "PLAYED":
		return AckPlayed, true
	}
	return 0, false
}
