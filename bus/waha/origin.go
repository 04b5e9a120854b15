package waha

import "cmp"

// origin is what every payload about a message tells: which one, in which
// conversation, which way.
type origin struct {
	id      messageID
	chat    Identity
	fromMe  bool
	ignored *Ignored // set when the conversation is not with one customer
}

// origin reads the frame of the payload. A conversation that we do not keep
// comes before any fault: a broken status post is still only a status post.
func (r *reading) origin() origin {
	from, to := r.text("from"), r.text("to")
	o := origin{id: messageIDOf(r.p)}
	fromMe, known := r.fromMe(o.id)
	o.fromMe = fromMe

	byEngine := r.chatByEngine(from, to, o.id, fromMe)
	named := []string{byEngine, o.id.chat, r.rawChat(), from, to}
	for _, raw := range named {
		if a, ok := ParseAddress(raw); ok && !a.direct() {
			r.faults = nil
			o.ignored = &Ignored{Reason: reasonFor(a.Kind)}
			return o
		}
	}
	if !known {
		r.fault("/fromMe", r.rule("fromMe", RuleBoolean))
	}
	a, ok := r.customer(named[:3], fromMe)
	switch {
	case ok:
		o.chat = a.identity(alternates(r.data, fromMe), r.env.Me)
	case cmp.Or(named...) == "":
		if r.p["from"] == "" || !r.p.has("from") { // else its type is the fault, already told
			r.fault("/from", RuleRequired)
		}
	default:
		o.ignored = &Ignored{
			Reason:    ReasonChatIDNotRecognized,
			Suffix:    addressSuffix(cmp.Or(named...)),
			Direction: directionOf(fromMe),
		}
	}
	return o
}

// requireID adds the fault of a message that cannot be told from others.
func (r *reading) requireID(o origin) {
	if o.id.bare == "" && o.ignored == nil {
		r.fault("/id", r.rule("id", RuleMessageID))
	}
}

// rule is what a needed field breaks: being there, or its own rule.
func (r *reading) rule(key, rule string) string {
	if !r.p.has(key) {
		return RuleRequired
	}
	return rule
}

// fromMe reads the direction; the prefix of the id can be wrong (WAHA #894), so
// it is asked only when the field is missing.
func (r *reading) fromMe(id messageID) (value, known bool) {
	for _, v := range []any{
		r.p["fromMe"], id.direction, r.data.object("key")["fromMe"], r.data.object("Info")["IsFromMe"],
	} {
		if value, known = asBool(v); known {
			return value, true
		}
	}
	return false, false
}

// chatByEngine returns the address of the conversation. GOWS and NOWEB always
// put it in `from`; the browser engines put the sender there, so for the
// account's own messages it is in `to`.
func (r *reading) chatByEngine(from, to string, id messageID, fromMe bool) string {
	switch {
	case !fromMe:
		return from
	case r.env.Engine.browser():
		return to
	case r.env.Engine == EngineGOWS || r.env.Engine == EngineNOWEB:
		return from
	}
	return cmp.Or(id.chat, r.rawChat(), to, from)
}

// rawChat returns the conversation in the engine's own words.
func (r *reading) rawChat() string {
	return cmp.Or(
		r.data.object("Info").text("Chat"),
		r.data.object("key").text("remoteJid"),
		r.data.text("Chat"), // a GOWS receipt
		serialized(r.data.object("id")["remote"]),
	)
}

// customer returns the first direct address that is not the account's. Only
// when all are does the account write to itself.
func (r *reading) customer(named []string, fromMe bool) (Address, bool) {
	var own Address
	for _, raw := range named {
		a, ok := ParseAddress(raw)
		switch {
		case !ok:
		case fromMe && r.env.Me.owns(a):
			own = cmp.Or(own, a)
		default:
			return a, true
		}
	}
	return own, own != Address{}
}

// alternates lists the other addresses of the customer. In the account's own
// messages SenderAlt is the account's and RecipientAlt the customer's.
func alternates(data object, fromMe bool) []string {
	info, key := data.object("Info"), data.object("key")
	if fromMe {
		return []string{info.text("RecipientAlt"), key.text("remoteJidAlt")}
	}
	return []string{info.text("SenderAlt"), key.text("remoteJidAlt"), key.text("participantAlt")}
}

func reasonFor(kind ChatKind) Reason {
	switch kind {
	case ChatGroup:
		return ReasonGroupMessage
	case ChatNewsletter:
		return ReasonNewsletter
	case ChatStatus:
		return ReasonStatusBroadcast
	default:
		return ReasonBroadcast
	}
}

func directionOf(fromMe bool) Direction {
	if fromMe {
		return Outbound
	}
	return Inbound
}
