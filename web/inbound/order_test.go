package inbound_test

import (
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

// Read by key, what is told of a conversation stays in its order, and waits for
// no other conversation.
func TestWhatHappensInAConversationHasItsOrderKey(t *testing.T) {
	t.Parallel()
	g := setup(t, secret)
	g.accept(says("3EB0A", phone, ""))
	g.accept(says("3EB0B", phone, ""))
	g.accept(says("3EB0C", "5511912345678@c.us", ""))
	g.accept(read(t, "session-status.gows.working.json"))
	want := []string{
		"conversation.opened true", "message.received true", "message.received true", "conversation.opened true", "message.received true",
		"system.session_changed none",
	}
	got := g.lines(`
		select event_type || ' ' || coalesce((metadata ->> 'order_key' = 'conversation:' || (payload ->> 'conversation_id'))::text, 'none')
		  from event_log
		 where organization_id = $1 and event_type <> 'contact.created'
		 order by created_at, id`)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("events and whether they have the key of their conversation (-want +got):\n%s", diff)
	}
	if n := g.count("select count(distinct metadata ->> 'order_key') from event_log where organization_id = $1"); n != 2 {
		t.Errorf("%d keys, want one for each conversation", n)
	}
}
