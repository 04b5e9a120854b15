package waha

import "strings"

// maxAddress is the longest address that is looked at.
const maxAddress = 128

// ChatKind tells what an address stands for.
type ChatKind string

// The kinds of address. Only phone and lid are conversations with a customer.
const (
	ChatPhone      ChatKind = "phone"
	ChatLID        ChatKind = "lid"
	ChatGroup      ChatKind = "group"
	ChatNewsletter ChatKind = "newsletter"
	ChatBroadcast  ChatKind = "broadcast"
	ChatStatus     ChatKind = "status"
)

// Address is one WhatsApp address without the device part.
type Address struct {
	Kind ChatKind
	User string // what stands before "@": digits for phone and lid
}

// Identity is one side of a conversation. Phone and LID are two names of the
// same person; either may be unknown, and a phone is never made from a LID.
type Identity struct {
	ID    string // canonical address as the event used it: replies go here
	Kind  ChatKind
	Phone string // E.164 as WhatsApp has it: look it up by PhoneVariants
	LID   string // digits
}

// ParseAddress reads "<user>[:<device>]@<server>". It accepts at most 128
// bytes, one "@", 8 to 15 digits for a phone and up to 20 for a LID.
func ParseAddress(raw string) (Address, bool) {
	if len(raw) > maxAddress {
		return Address{}, false
	}
	user, server, found := strings.Cut(raw, "@")
	user, _, _ = strings.Cut(user, ":")
	if !found || user == "" {
		return Address{}, false
	}
	switch server {
	case "c.us", "s.whatsapp.net":
		return Address{ChatPhone, user}, allDigits(user) && len(user) >= 8 && len(user) <= 15
	case "lid":
		return Address{ChatLID, user}, allDigits(user) && len(user) <= 20
	case "g.us":
		return Address{ChatGroup, user}, true
	case "newsletter":
		return Address{ChatNewsletter, user}, true
	case "broadcast":
		if user == "status" {
			return Address{ChatStatus, user}, true
		}
		return Address{ChatBroadcast, user}, true
	}
	return Address{}, false
}

// String returns the canonical form, the one that WAHA accepts as chatId.
func (a Address) String() string {
	switch a.Kind {
	case ChatPhone:
		return a.User + "@c.us"
	case ChatLID:
		return a.User + "@lid"
	case ChatGroup:
		return a.User + "@g.us"
	case ChatNewsletter:
		return a.User + "@newsletter"
	case ChatBroadcast, ChatStatus:
		return a.User + "@broadcast"
	}
	return ""
}

// Phone returns the E.164 form of a phone address, else "".
func (a Address) Phone() string {
	if a.Kind != ChatPhone {
		return ""
	}
	return "+" + a.User
}

// direct reports whether the address is one person's.
func (a Address) direct() bool { return a.Kind == ChatPhone || a.Kind == ChatLID }

// identity pairs the address with the first of alternates that is its other
// form. One that belongs to the account is the engine's mistake, or its own side
// of the conversation, unless the account is talking to itself.
func (a Address) identity(alternates []string, me Account) Identity {
	id := Identity{ID: a.String(), Kind: a.Kind, Phone: a.Phone()}
	if a.Kind == ChatLID {
		id.LID = a.User
	}
	for _, raw := range alternates {
		alt, ok := ParseAddress(raw)
		if !ok || me.owns(alt) && !me.owns(a) {
			continue
		}
		if id.Phone == "" {
			id.Phone = alt.Phone()
		}
		if id.LID == "" && alt.Kind == ChatLID {
			id.LID = alt.User
		}
	}
	return id
}

// owns reports whether the address is the account's own.
func (m Account) owns(a Address) bool {
	return a.Kind == ChatPhone && samePhone(m.Phone, a.Phone()) || a.Kind == ChatLID && m.LID == a.User
}

// identity returns the account as the author of what it did itself.
func (m Account) identity() Identity {
	for _, a := range []Address{{ChatPhone, strings.TrimPrefix(m.Phone, "+")}, {ChatLID, m.LID}} {
		if a.User != "" {
			return Identity{ID: a.String(), Kind: a.Kind, Phone: m.Phone, LID: m.LID}
		}
	}
	return Identity{}
}

// addressSuffix returns the server part for a trace, or "" when it might be
// anything else: a trace must not carry a person's data.
func addressSuffix(raw string) string {
	suffix := raw[strings.LastIndexByte(raw, '@')+1:]
	if len(suffix) == len(raw) || len(suffix) > 32 {
		return ""
	}
	letters := false
	for i := range len(suffix) {
		c := suffix[i]
		letters = letters || c >= 'a' && c <= 'z'
		if c != '.' && c != '-' && (c < 'a' || c > 'z') {
			return ""
		}
	}
	if !letters {
		return ""
	}
	return suffix
}
