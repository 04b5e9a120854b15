package inbound_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// says makes the post of an incoming message from an address, which may carry
// the other address of the same person.
func says(id, from, alternate string) []byte {
	return fmt.Appendf(nil, `{"id":"evt_%s","event":"message","session":"loja","engine":"GOWS","payload":{"id":"false_%s_%s","timestamp":1783170100,`+
		`"from":"%s","fromMe":false,"body":"oi","hasMedia":false,"_data":{"Info":{"SenderAlt":"%s","PushName":"Ana"},"Message":{"conversation":"oi"}}}}`,
		id, from, id, from, alternate)
}

func (g gateway) accept(body []byte) {
	g.Helper()
	if code, answer := g.signed(body); code != http.StatusOK || answer["status"] != "processed" {
		g.Fatalf("post = %d %v, want it processed", code, answer)
	}
}

const (
	phone     = "5511987654321@c.us"
	oldPhone  = "551187654321@c.us" // without the ninth digit
	lid       = "200000000000101@lid"
	e164      = "+5511987654321"
	lidDigits = "200000000000101"
)

func TestContactsThatTurnOutToBeOnePersonAreMerged(t *testing.T) {
	t.Parallel()
	g := setup(t, secret)
	g.accept(says("A1", phone, ""))
	g.accept(says("A2", lid, ""))
	if got := g.count("select count(*) from contacts where organization_id = $1"); got != 2 {
		t.Fatalf("%d contacts before anybody knows that they are one, want 2", got)
	}
	g.accept(says("A3", lid, phone))
	if got, want := g.contacts(), []string{e164 + " " + lidDigits + " Ana"}; !gocmp.Equal(got, want) {
		t.Errorf("contacts = %q, want %q", got, want)
	}
	if n := g.count(`select count(*) from messages m join conversations v on v.id = m.conversation_id
		join contacts c on c.id = m.contact_id and c.id = v.contact_id where m.organization_id = $1 and c.is_merged_into is null`); n != 3 {
		t.Errorf("%d of 3 messages are in the one conversation of the one contact", n)
	}
	if n := g.count("select count(*) from conversations where organization_id = $1 and unread_count = 3"); n != 1 {
		t.Errorf("%d conversations with all 3 messages unread, want the one of the one contact", n)
	}
	if n := g.count("select count(*) from event_log where organization_id = $1 and event_type = 'contact.merged'"); n != 1 {
		t.Errorf("%d contact.merged, want one", n)
	}
	g.accept(says("A4", phone, lid))
	if n := g.count("select count(*) from event_log where organization_id = $1 and event_type in ('contact.merged', 'contact.created')"); n != 3 {
		t.Errorf("%d contact events, want the 2 of before and the merge: nothing new is known", n)
	}
}

// Two contacts of one number in its two forms, stored apart, one of which has
// the LID: learning it for the other would break their uniqueness for ever.
func TestMessageOfAContactStoredUnderBothFormsOfItsNumberIsStored(t *testing.T) {
	t.Parallel()
	g := setup(t, secret)
	conn := dbtest.Conn(t, g.url)
	for _, row := range []struct{ phone, lid any }{{e164, nil}, {"+551187654321", lidDigits}} {
		_, err := conn.Exec(t.Context(), "insert into contacts (organization_id, phone_number, wa_lid) values ($1, $2, $3)", g.org, row.phone, row.lid)
		if err != nil {
			t.Fatal(err)
		}
	}
	g.accept(says("B1", phone, lid))
	g.accept(says("B2", oldPhone, lid))
	g.accept(says("B3", lid, phone))
	if n := g.count("select count(*) from messages where organization_id = $1"); n != 3 {
		t.Errorf("%d messages are stored, want 3", n)
	}
}

func TestPhoneWithAndWithoutTheNinthDigitIsOneContact(t *testing.T) {
	t.Parallel()
	g := setup(t, secret)
	g.accept(says("C1", oldPhone, ""))
	g.accept(says("C2", phone, ""))
	if got, want := g.contacts(), []string{e164 + "  Ana"}; !gocmp.Equal(got, want) {
		t.Errorf("contacts = %q, want %q", got, want)
	}
}

func TestMessageReopensAClosedConversation(t *testing.T) {
	t.Parallel()
	g := setup(t, secret)
	g.accept(says("D1", phone, ""))
	if _, err := dbtest.Conn(t, g.url).Exec(t.Context(), "update conversations set status = 'resolved' where organization_id = $1", g.org); err != nil {
		t.Fatal(err)
	}
	g.accept(says("D2", phone, ""))
	if n := g.count("select count(*) from conversations where organization_id = $1 and status = 'open' and unread_count = 2"); n != 1 {
		t.Errorf("%d open conversations with 2 unread messages, want the one that was closed", n)
	}
	if n := g.count("select count(*) from event_log where organization_id = $1 and event_type = 'conversation.reopened'"); n != 1 {
		t.Errorf("%d conversation.reopened, want one", n)
	}
}

func TestMessagesOfOneNewPersonUnderBothAddressesAtOnceAreOneContact(t *testing.T) {
	t.Parallel()
	g := setup(t, secret)
	var posts sync.WaitGroup
	for i := range 12 {
		from, alternate := phone, lid
		if i%2 == 1 {
			from, alternate = lid, phone
		}
		posts.Go(func() {
			if code, answer := g.signed(says(fmt.Sprintf("E%d", i), from, alternate)); code != http.StatusOK || answer["status"] != "processed" {
				t.Errorf("post = %d %v, want it processed", code, answer)
			}
		})
	}
	posts.Wait()
	if got, want := g.contacts(), []string{e164 + " " + lidDigits + " Ana"}; !gocmp.Equal(got, want) {
		t.Errorf("contacts = %q, want %q", got, want)
	}
	if n := g.count("select count(*) from messages where organization_id = $1"); n != 12 {
		t.Errorf("%d messages, want 12", n)
	}
}

// One organization whose posts cannot go on holds no connection that another
// needs: the pool has 20.
func TestOrganizationThatWaitsLeavesConnectionsToTheOthers(t *testing.T) {
	t.Parallel()
	stuck := setup(t, secret)
	other := setup(t, secret)
	other.db = stuck.db // one pool
	conn := dbtest.Conn(t, stuck.url)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "select pg_advisory_xact_lock(hashtextextended('inbound:' || $1::text, 0))", stuck.org); err != nil {
		t.Fatal(err)
	}
	var waiting sync.WaitGroup
	for i := range 30 {
		waiting.Go(func() { stuck.signed(says(fmt.Sprintf("F%d", i), phone, "")) })
	}
	dbtest.Eventually(t, "a post waits for the lock", func() bool {
		return stuck.count("select count(*) from pg_locks where not granted and locktype = 'advisory' and $1::uuid is not null") > 0
	})
	other.accept(says("G1", phone, ""))
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	waiting.Wait()
	if n := stuck.count("select count(*) from messages where organization_id = $1"); n != 30 {
		t.Errorf("%d messages after the wait, want 30", n)
	}
}
