package waha

import (
	"cmp"
	"slices"
	"strings"
)

// content is what the engine itself says was sent.
type content struct {
	name        string // the kind of content in the engine's words, "" when it says nothing
	key         string // the key of the protocol message; "" with browser engines
	body        object // what is under key; nil when it is bare text
	text        string // the bare text
	viewOnce    bool   // may be opened once, on the phone
	fromAd      bool   // sent by clicking an advertisement
	undecrypted bool   // arrived, but could not be read yet
}

// maxWraps bounds the envelopes around a content; real ones have one or two.
const maxWraps = 16

// content finds the kind in the order: explicit type of the payload, first
// content key of the protocol message (GOWS, NOWEB), type of the browser's model.
func (r *reading) content() content {
	raw := r.data.object("Message", "message")
	var c content
	if raw.text("type") != "" && r.env.Engine.browser() {
		c.name = strings.ToLower(raw.text("type")) // the model inside an edit
	} else {
		c = protoContent(raw)
	}
	key := r.data.object("key")
	c.viewOnce = c.viewOnce || key.flag("isViewOnce") ||
		r.data.flag("IsViewOnce", "IsViewOnceV2", "IsViewOnceV2Extension", "isViewOnce")
	stub := r.data.text("messageStubType")
	c.undecrypted = raw == nil && (stub == "2" || stub == "CIPHERTEXT")
	c.fromAd = c.body.object("contextInfo").has("externalAdReply") || r.data.has("ctwaContext")
	c.name = cmp.Or(c.name, c.key, strings.ToLower(r.data.text("type")))
	explicit := strings.ToLower(r.p.text("type"))
	if typ, reason := classify(explicit); (typ != "" || reason != "") && reasonOf(c.key) == "" {
		c.name = explicit
	}
	return c
}

// protoContent opens the envelopes of a protocol message and picks its content.
func protoContent(raw object) content {
	var c content
	for range maxWraps {
		inner, viewOnce := unwrap(raw)
		if inner == nil {
			break
		}
		raw, c.viewOnce = inner, c.viewOnce || viewOnce
	}
	c.key = contentKey(raw)
	c.body = raw.object(c.key)
	c.text, _ = raw[c.key].(string)
	return c
}

// unwrap returns the message inside an envelope, or nil.
func unwrap(raw object) (inner object, viewOnce bool) {
	for _, key := range []string{
		"ephemeralMessage", "viewOnceMessage", "viewOnceMessageV2", "viewOnceMessageV2Extension",
		"documentWithCaptionMessage", "associatedChildMessage", "editedMessage", "deviceSentMessage",
		"lottieStickerMessage", "groupMentionedMessage", "botInvokeMessage",
	} {
		if inner = raw.object(key).object("message", "Message"); inner != nil {
			return inner, strings.HasPrefix(key, "viewOnce")
		}
	}
	return nil, false
}

// contentKey picks the key that is the content. Decoding loses their order, so
// a key we know wins, then the alphabet, to be the same each time. Keys that
// accompany any content count only when alone.
func contentKey(raw object) string {
	var known, unknown []string
	for key, v := range raw {
		switch typ, reason := classify(key); {
		case v == nil || v == "" || key == "messageContextInfo":
		case key == "senderKeyDistributionMessage":
		case typ != "" || reason != "":
			known = append(known, key)
		default:
			unknown = append(unknown, key)
		}
	}
	slices.Sort(known)
	slices.Sort(unknown)
	all := slices.Concat(known, unknown)
	switch {
	case len(all) > 0:
		return all[0]
	case raw.has("senderKeyDistributionMessage"):
		return "senderKeyDistributionMessage"
	}
	return ""
}

// classify maps the engine's word for a content to our type, or to the reason
// why it is no message. It knows the keys of the protocol and the types of the
// browser's model; neither of the two results is set for a word it does not know.
func classify(name string) (Type, Reason) {
	switch name {
	case "conversation", "extendedTextMessage", "chat", "text",
		"buttonsResponseMessage", "templateButtonReplyMessage", "listResponseMessage",
		"interactiveResponseMessage", "buttons_response", "template_button_reply", "list_response",
		"interactive_response", "buttonsMessage", "listMessage", "interactiveMessage",
		"interactive", "list", "pollCreationMessage", "pollCreationMessageV2",
		"pollCreationMessageV3", "poll_creation", "eventMessage", "event_creation",
		"productMessage", "orderMessage", "product", "order", "groupInviteMessage":
		return TypeText, ""
	case "imageMessage", "image":
		return TypeImage, ""
	case "videoMessage", "ptvMessage", "video", "ptv", "gif":
		return TypeVideo, ""
	case "audioMessage", "audio", "ptt", "voice":
		return TypeAudio, ""
	case "documentMessage", "document":
		return TypeDocument, ""
	case "stickerMessage", "sticker":
		return TypeSticker, ""
	case "locationMessage", "liveLocationMessage", "location", "live_location":
		return TypeLocation, ""
	case "contactMessage", "contactsArrayMessage", "vcard", "multi_vcard", "contact":
		return TypeContact, ""
	case "templateMessage", "highlyStructuredMessage", "hsm", "template":
		return TypeTemplate, ""
	}
	return "", reasonOf(name)
}

func reasonOf(name string) Reason {
	switch name {
	case "protocolMessage", "senderKeyDistributionMessage", "fastRatchetKeySenderKeyDistributionMessage",
		"keepInChatMessage", "pinInChatMessage", "stickerSyncRmrMessage", "protocol", "e2e_notification",
		"notification", "notification_template", "broadcast_notification", "gp2":
		return ReasonProtocol
	case "reactionMessage", "encReactionMessage", "reaction", "reaction_enc":
		return ReasonReactionInMessage
	case "pollUpdateMessage", "poll_update":
		return ReasonPoll
	case "encEventResponseMessage", "event_response":
		return ReasonEventResponse
	case "albumMessage", "album":
		return ReasonAlbum
	case "secretEncryptedMessage":
		return ReasonSealed
	case "placeholderMessage", "ciphertext":
		return ReasonWaiting
	}
	return ""
}
