package waha

import "time"

// Reaction sets or removes the emoji of one person on one message. Each person
// has at most one per message, so (channel, TargetID, Reactor) is its key: in a
// conversation with one customer FromMe tells the two reactors apart, whatever
// address the event used. Weeks-old ones come again after pairing: apply silently.
type Reaction struct {
	ID       string // bare id of the reaction itself, if told
	TargetID string // bare id of the message reacted to
	Chat     Identity
	Reactor  Identity // the account when FromMe, else the customer
	FromMe   bool     // who reacted
	Emoji    string   // empty when Removed
	Removed  bool
	At       time.Time
}

// Kind returns KindReaction.
func (Reaction) Kind() Kind { return KindReaction }
func (Reaction) sealed()    {}

// reaction reads message.reaction: {…, reaction{text, messageId}}.
func (r *reading) reaction() Update {
	o := r.origin()
	if o.ignored != nil {
		return *o.ignored
	}
	told := &reading{pointer: r.pointer + "/reaction", p: r.p.object("reaction")}
	if told.p == nil {
		r.fault("/reaction", r.rule("reaction", RuleObject))
		return nil
	}
	target := told.reference("messageId")
	if target == "" && len(told.faults) == 0 {
		told.fault("/messageId", RuleRequired)
	}
	emoji := told.text("text")
	r.faults = append(r.faults, told.faults...)
	reactor := o.chat
	if o.fromMe {
		reactor = r.env.Me.identity()
	}
	return Reaction{
		ID:       o.id.bare,
		TargetID: target,
		Chat:     o.chat,
		Reactor:  reactor,
		FromMe:   o.fromMe,
		Emoji:    emoji,
		Removed:  emoji == "",
		At:       r.env.at(r.p["timestamp"]),
	}
}
