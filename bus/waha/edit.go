package waha

import (
	"cmp"
	"strings"
	"time"
)

// Edit replaces the text of a message.
type Edit struct {
	ID       string // bare id of the edit itself; WEBJS repeats the target here
	TargetID string // bare id of the message that was edited
	Chat     Identity
	FromMe   bool
	Source   Source
	Body     string // the new text
	Empty    bool   // the text was sealed: mark the message, never blank it
	At       time.Time
}

// Kind returns KindEdit.
func (Edit) Kind() Kind { return KindEdit }
func (Edit) sealed()    {}

// Revoke deletes a message for everyone. The row and its text are kept.
type Revoke struct {
	TargetID string // bare id of the message that was deleted
	Chat     Identity
	FromMe   bool // who deleted it
	At       time.Time
}

// Kind returns KindRevoke.
func (Revoke) Kind() Kind { return KindRevoke }
func (Revoke) sealed()    {}

// edit reads message.edited. payload.id is the id of the edit, not of the
// message, except with WEBJS, which has only one.
func (r *reading) edit() Update {
	o := r.origin()
	if o.ignored != nil {
		return *o.ignored
	}
	c := r.content()
	target := r.reference("editedMessageId")
	if target == "" {
		target = protocolTarget(c)
	}
	if target == "" && r.env.Engine.browser() {
		target = o.id.bare
	}
	if target == "" {
		return Ignored{Reason: ReasonSealed}
	}
	return r.editOf(o, c, target)
}

// editOf makes the edit of target.
func (r *reading) editOf(o origin, c content, target string) Edit {
	if inner := c.body.object("editedMessage"); inner != nil {
		c = protoContent(inner)
	}
	body := cmp.Or(r.text("body"), protoText(c), r.data.text("newBody"))
	return Edit{
		ID:       o.id.bare,
		TargetID: target,
		Chat:     o.chat,
		FromMe:   o.fromMe,
		Source:   r.source(),
		Body:     body,
		Empty:    body == "",
		At:       r.env.at(r.actionTime()),
	}
}

// protocol reads a protocol message that came as a message: an edit or a revoke
// is one, all others are devices talking.
func (r *reading) protocol(o origin, c content) Update {
	target := protocolTarget(c)
	switch kind := strings.ToUpper(c.body.text("type")); {
	case target == "":
	case kind == "14" || kind == "MESSAGE_EDIT":
		return r.editOf(o, c, target)
	case kind == "0" || kind == "REVOKE":
		return Revoke{TargetID: target, Chat: o.chat, FromMe: o.fromMe, At: r.env.at(r.actionTime())}
	}
	return Ignored{Reason: ReasonProtocol}
}

// sealedEdit reads the edits of newer clients, encrypted with a key that WAHA
// does not use (WAHA #2089): all that is known is which message was edited.
func (r *reading) sealedEdit(o origin, c content) Update {
	kind := c.body.text("secretEncType")
	target := keyTarget(c.body.object("targetMessageKey"))
	if target == "" || kind != "MESSAGE_EDIT" && kind != "2" {
		return Ignored{Reason: ReasonSealed}
	}
	return r.editOf(o, content{}, target)
}

// revoke reads message.revoked: {after, before, revokedMessageId, _data}.
func (r *reading) revoke() Update {
	after, before := r.p.object("after"), r.p.object("before")
	target := r.reference("revokedMessageId")
	told := &reading{env: r.env, pointer: r.pointer + "/after", p: after}
	if after == nil && before != nil {
		told.pointer, told.p = r.pointer+"/before", before
	}
	if told.p == nil {
		r.fault("/after", r.rule("after", RuleObject))
		return nil
	}
	told.data = told.p.object("_data")
	o := told.origin()
	if o.ignored != nil {
		return *o.ignored
	}
	r.faults = append(r.faults, told.faults...)
	target = cmp.Or(target,
		protocolTarget(r.content()),
		protocolTarget(told.content()),
		bareIDOf(r.data["protocolMessageKey"]),
		bareIDOf(told.data["protocolMessageKey"]),
	)
	// `before` often repeats the id of `after`, which is the id of the revoke.
	if original := messageIDOf(before).bare; target == "" && original != messageIDOf(after).bare {
		target = original
	}
	if target == "" {
		return Ignored{Reason: ReasonUnmatchedRevoke}
	}
	return Revoke{TargetID: target, Chat: o.chat, FromMe: o.fromMe, At: r.env.at(told.actionTime())}
}

// reference reads a field that names a message by its bare or composite id.
func (r *reading) reference(key string) string {
	target := bareIDOf(r.p[key])
	if target == "" && r.p.has(key) && r.p[key] != "" {
		r.fault("/"+key, RuleMessageID)
	}
	return target
}

// protocolTarget returns the message that a protocol message is about.
func protocolTarget(c content) string {
	if c.key != "protocolMessage" {
		return ""
	}
	return keyTarget(c.body.object("key"))
}

func keyTarget(key object) string { return bareIDOf(key.text("ID", "id")) }
