package waha

import "strings"

// Normalise is stage two: it says in one Update what the event means. Its only
// error is a *ContractError, for a payload that lacks, or has in a wrong type,
// what the event cannot be understood without.
func Normalise(env Envelope) (Update, error) {
	if reason := ignoredEvent(env.Event); reason != "" {
		return Ignored{Reason: reason}, nil
	}
	payload, ok := decodeObject(env.Payload)
	if !ok {
		return nil, violation("/payload", RuleObject)
	}
	r := &reading{env: env, pointer: "/payload", p: payload, data: payload.object("_data")}
	update := r.update()
	if len(r.faults) > 0 {
		return nil, &ContractError{Fields: r.faults}
	}
	return update, nil
}

// ignoredEvent returns why events of this name are never read, or "".
func ignoredEvent(event string) Reason {
	switch event {
	case "message", "message.any", "message.ack", "message.ack.group", "message.edited",
		"message.revoked", "message.reaction", "session.status":
		return ""
	case "message.waiting":
		return ReasonWaiting
	case "presence.update":
		return ReasonPresence
	case "call.received", "call.accepted", "call.rejected":
		return ReasonCall
	case "poll.vote", "poll.vote.failed":
		return ReasonPoll
	case "event.response", "event.response.failed":
		return ReasonEventResponse
	case "chat.archive":
		return ReasonChatArchive
	case "engine.event":
		return ReasonEngineDebug
	case "group.join", "group.leave", "state.change":
		return ReasonDeprecated
	}
	switch {
	case strings.HasPrefix(event, "group.v2."):
		return ReasonGroupChange
	case strings.HasPrefix(event, "label."):
		return ReasonLabel
	}
	return ReasonUnknownEvent
}

// reading is one payload being read. Faults gather, so that all are told at
// once; an update made beside a fault is thrown away.
type reading struct {
	env     Envelope
	pointer string // of p, from the root of the body
	p       object
	data    object // what the engine itself said: p._data
	faults  []FieldError
}

func (r *reading) update() Update {
	switch r.env.Event {
	case "message.ack", "message.ack.group":
		return r.ack()
	case "message.edited":
		return r.edit()
	case "message.revoked":
		return r.revoke()
	case "message.reaction":
		return r.reaction()
	case "session.status":
		return r.sessionStatus()
	}
	return r.message()
}

func (r *reading) fault(field, rule string) {
	r.faults = append(r.faults, FieldError{Pointer: r.pointer + field, Rule: rule})
}

// text reads a field that must be text when it is there.
func (r *reading) text(key string) string {
	text, ok := r.p[key].(string)
	if !ok && r.p.has(key) {
		r.fault("/"+key, RuleString)
	}
	return text
}

// source reads what sent the message.
func (r *reading) source() Source {
	switch source := Source(r.p.text("source")); source {
	case SourceApp, SourceAPI:
		return source
	}
	return ""
}

// actionTime is when an edit or a revoke was made. Browser engines put the
// time of the original message there.
func (r *reading) actionTime() any {
	if r.env.Engine.browser() {
		return nil
	}
	return r.p["timestamp"]
}
