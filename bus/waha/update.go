package waha

import "time"

// Update is what one webhook says, in one of seven types: Message, Ack, Edit,
// Revoke, Reaction, SessionStatus or Ignored. The set is closed; a caller
// switches on the type.
type Update interface {
	// Kind names the type in logs and metrics.
	Kind() Kind
	sealed()
}

// Kind is the name of an Update's type.
type Kind string

// One Kind for each type of Update.
const (
	KindMessage       Kind = "message"
	KindAck           Kind = "ack"
	KindEdit          Kind = "edit"
	KindRevoke        Kind = "revoke"
	KindReaction      Kind = "reaction"
	KindSessionStatus Kind = "session_status"
	KindIgnored       Kind = "ignored"
)

// Direction says which way a message went. Outbound includes what the operator
// typed on the phone.
type Direction string

// The two directions.
const (
	Inbound  Direction = "inbound"
	Outbound Direction = "outbound"
)

// Source says what sent an outbound message. It is no proof: echoes of our own
// sends are sometimes said to come from the app. Match by bare id first.
type Source string

// The sources; empty when an old version does not say.
const (
	SourceApp Source = "app"
	SourceAPI Source = "api"
)

// Ignored is an event that changes no conversation. It is not a fault: the
// caller stores the body, counts the reason and answers 2xx.
type Ignored struct {
	Reason Reason

	// Suffix is the server part of the address, as in "hosted", and Direction
	// the way, both only for ReasonChatIDNotRecognized and when they are known.
	Suffix    string
	Direction Direction
}

// Reason says in one machine word why an event was ignored.
type Reason string

// The reasons. Conversations that are not with one person come first, then
// content that is no message, then events that are none.
const (
	ReasonGroupMessage        Reason = "group_message"
	ReasonNewsletter          Reason = "newsletter"
	ReasonBroadcast           Reason = "broadcast"
	ReasonStatusBroadcast     Reason = "status_broadcast"
	ReasonChatIDNotRecognized Reason = "chat_id_not_recognized"

	ReasonEmpty             Reason = "empty"               // no text, no media: a receipt's noise
	ReasonWaiting           Reason = "waiting"             // not decrypted yet; a later message reuses the id
	ReasonSealed            Reason = "sealed"              // encrypted for its author only, target unknown
	ReasonProtocol          Reason = "protocol"            // talk between devices
	ReasonReactionInMessage Reason = "reaction_in_message" // told again as message.reaction
	ReasonPoll              Reason = "poll"
	ReasonAlbum             Reason = "album" // only announces how many pictures follow
	ReasonEventResponse     Reason = "event_response"
	ReasonUnmatchedRevoke   Reason = "unmatched_revoke" // names no message, so none is revoked
	ReasonUnknownAck        Reason = "unknown_ack"
	ReasonUnknownStatus     Reason = "unknown_status"

	ReasonPresence     Reason = "presence"
	ReasonCall         Reason = "call"
	ReasonGroupChange  Reason = "group_change"
	ReasonLabel        Reason = "label"
	ReasonChatArchive  Reason = "chat_archive"
	ReasonEngineDebug  Reason = "engine_debug"
	ReasonDeprecated   Reason = "deprecated"
	ReasonUnknownEvent Reason = "unknown_event"
)

// Kind returns KindIgnored.
func (Ignored) Kind() Kind { return KindIgnored }
func (Ignored) sealed()    {}

// earliest is the year WhatsApp began; an older time is a clock's mistake.
const earliest = 2009

// at chooses the time of something that happened: the payload's own, else the
// envelope's, else the caller's, taking the first that is neither before 2009
// nor more than a day ahead. Zero means that nobody knows.
func (e Envelope) at(told any) time.Time {
	own := asTime(told)
	return e.plausible(own)
}

func (e Envelope) plausible(own time.Time) time.Time {
	now := e.ReceivedAt
	if now.IsZero() && e.Timestamp.Year() >= earliest {
		now = e.Timestamp
	}
	for _, t := range []time.Time{own, e.Timestamp} {
		if t.Year() >= earliest && (now.IsZero() || !t.After(now.Add(24*time.Hour))) {
			return t
		}
	}
	return e.ReceivedAt
}
