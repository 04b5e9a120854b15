package inbound_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus/waha"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
	"github.com/deskcomm/deskcomm/web/inbound"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { os.Exit(dbtest.Main(m)) }

const secret = "a secret of the test channel"

// gateway is a channel of one organization and the receiver it posts to.
type gateway struct {
	*testing.T
	db   *db.DB
	url  string
	org  uuid.UUID
	path string
}

func setup(t *testing.T, webhookSecret string) gateway {
	t.Helper()
	return setupOn(t, dbtest.DB(t), dbtest.URL(t), webhookSecret)
}

func setupOn(t *testing.T, d *db.DB, url, webhookSecret string) gateway {
	t.Helper()
	g := gateway{T: t, db: d, url: url, org: dbtest.Org(t, d)}
	err := d.InOrg(t.Context(), g.org, dbtest.Actor(), func(tx *db.OrgTx) error {
		_, tokens, err := tx.CreateChannel(t.Context(), db.NewChannel{Name: "loja", WebhookSecret: webhookSecret})
		g.path = "/v1/webhooks/waha/" + tokens.WebhookPath
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// post sends a body with a signature and returns the answer.
func (g gateway) post(body []byte, signature string) (int, map[string]any) {
	g.Helper()
	req := httptest.NewRequestWithContext(g.Context(), http.MethodPost, g.path, bytes.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	if signature != "" {
		req.Header.Set("X-Webhook-Hmac", signature)
	}
	rec := httptest.NewRecorder()
	inbound.New(g.db, slog.New(slog.DiscardHandler)).ServeHTTP(rec, req)
	var answer map[string]any
	if err := json.NewDecoder(rec.Body).Decode(&answer); err != nil {
		g.Fatal(err)
	}
	return rec.Code, answer
}

func (g gateway) signed(body []byte) (int, map[string]any) {
	g.Helper()
	return g.post(body, waha.Sign(secret, body))
}

func (g gateway) count(sql string, args ...any) int {
	g.Helper()
	var n int
	if err := dbtest.Row(g.T, g.url, sql, append([]any{g.org}, args...), &n); err != nil {
		g.Fatal(err)
	}
	return n
}

// sample is one body as a gateway posts it.
type sample struct {
	file string
	id   string // of the envelope; sorts by time
	body []byte
}

func samples(t *testing.T) []sample {
	t.Helper()
	files, err := filepath.Glob("../../bus/waha/testdata/samples/*.json")
	if err != nil || len(files) != 90 {
		t.Fatalf("found %d samples, %v, want 90", len(files), err)
	}
	list := make([]sample, len(files))
	for i, f := range files {
		body, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		env, err := waha.ParseEnvelope(body)
		if err != nil {
			t.Fatal(f, err)
		}
		list[i] = sample{file: filepath.Base(f), id: env.ID, body: body}
	}
	slices.SortFunc(list, func(a, b sample) int { return cmp.Compare(a.id, b.id) })
	return list
}

// The table says for each sample what became of it: the outcome, its reason, and
// the events that it led to.
func TestEachSampleIsStoredOnceAndBecomesWhatTheTableSays(t *testing.T) {
	t.Parallel()
	g := setup(t, secret)
	var table strings.Builder
	for _, s := range samples(t) {
		changed := bytes.Clone(s.body)
		changed[len(changed)/2] ^= 1
		if code, _ := g.post(changed, waha.Sign(secret, s.body)); code != http.StatusUnauthorized {
			t.Errorf("%s with one byte changed = %d, want 401", s.file, code)
		}
		before := g.count("select count(*) from event_log where organization_id = $1")
		code, answer := g.signed(s.body)
		if code != http.StatusOK {
			t.Errorf("%s = %d %v, want 200", s.file, code, answer)
		}
		var emitted string
		err := dbtest.Conn(t, g.url).QueryRow(t.Context(), `
			select coalesce(string_agg(event_type, ' ' order by id), '') from (
			    select id, event_type from event_log where organization_id = $1 order by id offset $2) e`, g.org, before).Scan(&emitted)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&table, "%-50s %-10v %-22v %s\n", s.file, answer["status"], answer["reason"], emitted)
		if code, answer := g.signed(s.body); code != http.StatusOK || answer["status"] != "duplicate" {
			t.Errorf("%s posted again = %d %v, want a duplicate", s.file, code, answer)
		}
	}
	golden(t, "testdata/samples.golden", table.String())
	if n := g.count("select count(*) from inbound_webhooks where organization_id = $1"); n != 90 {
		t.Errorf("archive holds %d posts, want one for each of the 90 envelopes", n)
	}
	if n := g.count(`select count(*) from (select waha_message_id from messages where organization_id = $1 group by 1 having count(*) > 1) d`); n != 0 {
		t.Errorf("%d messages are stored more than once", n)
	}
	received := g.count("select count(*) from event_log where organization_id = $1 and event_type = 'message.received'")
	inbound := g.count("select count(*) from messages where organization_id = $1 and direction = 'inbound'")
	if received != inbound {
		t.Errorf("%d message.received for %d inbound messages, want one each", received, inbound)
	}
}

// WhatsApp promises no order, so the order in which posts come may not matter.
func TestSamplesInReverseOrderLeadToTheSameMessages(t *testing.T) {
	t.Parallel()
	forward, backward := setup(t, secret), setup(t, secret)
	list := samples(t)
	for _, s := range list {
		forward.signed(s.body)
	}
	slices.Reverse(list)
	for _, s := range list {
		backward.signed(s.body)
	}
	if diff := gocmp.Diff(forward.messages(), backward.messages()); diff != "" {
		t.Errorf("messages differ by the order of the posts (-forward +backward):\n%s", diff)
	}
	if diff := gocmp.Diff(forward.contacts(), backward.contacts()); diff != "" {
		t.Errorf("contacts differ by the order of the posts (-forward +backward):\n%s", diff)
	}
}

func (g gateway) messages() []string {
	g.Helper()
	return g.lines(`
		select format('%s %s %s %s edited=%s revoked=%s of %s', m.waha_message_id, m.type, m.status, m.body, m.edited_at is not null,
		              m.revoked_at is not null, coalesce(c.phone_number, c.wa_lid))
		  from messages m join contacts c on c.id = m.contact_id
		 where m.organization_id = $1 order by 1`)
}

func (g gateway) contacts() []string {
	g.Helper()
	return g.lines(`
		select format('%s %s %s', phone_number, wa_lid, name) from contacts
		 where organization_id = $1 and is_merged_into is null order by 1`)
}

func (g gateway) lines(sql string) []string {
	g.Helper()
	rows, err := dbtest.Conn(g.T, g.url).Query(g.Context(), sql, g.org)
	if err != nil {
		g.Fatal(err)
	}
	defer rows.Close()
	var lines []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			g.Fatal(err)
		}
		lines = append(lines, line)
	}
	if err := rows.Err(); err != nil {
		g.Fatal(err)
	}
	return lines
}

func TestMessageAndMessageAnyAtOnceAreOneMessage(t *testing.T) {
	t.Parallel()
	g := setup(t, secret)
	pair := [][]byte{
		read(t, "message.gows.text-dm-phone.json"), read(t, "message-any.gows.incoming-duplicate-of-message.json"),
	}
	done := make(chan struct{})
	for i := range 10 {
		go func() {
			g.signed(pair[i%2])
			done <- struct{}{}
		}()
	}
	for range 10 {
		<-done
	}
	for what, sql := range map[string]string{
		"messages":           "select count(*) from messages where organization_id = $1",
		"contacts":           "select count(*) from contacts where organization_id = $1",
		"conversations":      "select count(*) from conversations where organization_id = $1",
		"events of the kind": "select count(*) from event_log where organization_id = $1 and event_type = 'message.received'",
	} {
		if n := g.count(sql); n != 1 {
			t.Errorf("%d %s, want one", n, what)
		}
	}
	if n := g.count("select count(*) from inbound_webhooks where organization_id = $1"); n != 2 {
		t.Errorf("archive holds %d posts, want one for each of the 2 envelopes", n)
	}
}

func TestRefusedPostsChangeNothing(t *testing.T) {
	t.Parallel()
	body := read(t, "message.gows.text-dm-phone.json")
	cases := map[string]struct {
		path      string
		body      []byte
		signature string
		status    int
		code      string
	}{
		"an unknown token":           {"/v1/webhooks/waha/unknown-token", body, waha.Sign(secret, body), 404, "not_found"},
		"a wrong signature":          {"", body, waha.Sign("another secret", body), 401, "invalid_signature"},
		"no signature":               {"", body, "", 401, "invalid_signature"},
		"a body that is no JSON":     {"", []byte("{"), waha.Sign(secret, []byte("{")), 400, "invalid_json"},
		"a body that is a list":      {"", []byte("[]"), waha.Sign(secret, []byte("[]")), 400, "validation_failed"},
		"a body without event":       {"", []byte(`{"id":"x"}`), waha.Sign(secret, []byte(`{"id":"x"}`)), 400, "validation_failed"},
		"a body over the limit":      {"", make([]byte, inbound.MaxBody+1), "00", 413, "body_too_large"},
		"another address":            {"/v1/webhooks/other/x", body, "", 404, "not_found"},
		"a truncated hex signature":  {"", body, waha.Sign(secret, body)[:100], 401, "invalid_signature"},
		"a signature that is no hex": {"", body, "zz", 401, "invalid_signature"},
	}
	for name, tt := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := setup(t, secret)
			g.path = cmp.Or(tt.path, g.path)
			status, answer := g.post(tt.body, tt.signature)
			if status != tt.status || answer["code"] != tt.code {
				t.Errorf("got %d %v, want %d %s", status, answer, tt.status, tt.code)
			}
			if n := g.count("select (select count(*) from inbound_webhooks where organization_id = $1) + (select count(*) from event_log where organization_id = $1)"); n != 0 {
				t.Errorf("%d rows were written", n)
			}
		})
	}
}

func TestChannelWithoutSecretTakesUnsignedPostsAndMarksThem(t *testing.T) {
	t.Parallel()
	g := setup(t, "")
	body := read(t, "message.gows.text-dm-phone.json")
	if status, answer := g.post(body, waha.Sign("whatever", body)); status != http.StatusUnauthorized {
		t.Errorf("a signature that nobody can check = %d %v, want 401", status, answer)
	}
	if status, answer := g.post(body, ""); status != http.StatusOK {
		t.Errorf("an unsigned post = %d %v, want 200", status, answer)
	}
	if n := g.count("select count(*) from inbound_webhooks where organization_id = $1 and not signature_valid"); n != 1 {
		t.Errorf("%d archived posts are marked as unsigned, want one", n)
	}
}

func TestDeletedChannelReceivesNothing(t *testing.T) {
	t.Parallel()
	g := setup(t, secret)
	err := g.db.InOrg(t.Context(), g.org, dbtest.Actor(), func(tx *db.OrgTx) error {
		channels, err := tx.Channels(t.Context(), db.Page{})
		if err != nil {
			return err
		}
		return tx.DeleteChannel(t.Context(), channels[0].ID)
	})
	if err != nil {
		t.Fatal(err)
	}
	if status, _ := g.signed(read(t, "message.gows.text-dm-phone.json")); status != http.StatusNotFound {
		t.Errorf("post to a deleted channel = %d, want 404", status)
	}
}

func TestMalformedPostIsArchivedAndAnswersTheFieldAndTheRule(t *testing.T) {
	t.Parallel()
	g := setup(t, secret)
	body := []byte(`{"id":"evt_1","event":"message","session":"loja","payload":"s3cr3t"}`)
	status, answer := g.signed(body)
	if status != http.StatusOK || answer["status"] != "malformed" {
		t.Fatalf("got %d %v, want 200 and malformed", status, answer)
	}
	text := fmt.Sprint(answer["errors"])
	if !strings.Contains(text, "/payload") || strings.Contains(text, "s3cr3t") {
		t.Errorf("errors = %s, want the pointer of the field and not its value", text)
	}
	if n := g.count("select count(*) from inbound_webhooks where organization_id = $1 and status = 'malformed'"); n != 1 {
		t.Errorf("%d malformed posts in the archive, want one", n)
	}
}

func TestFailedApplicationKeepsThePostAndIsTriedAgain(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	g := gateway{T: t, db: d, url: url, org: dbtest.Org(t, d)}
	err := d.InOrg(t.Context(), g.org, dbtest.Actor(), func(tx *db.OrgTx) error {
		_, tokens, err := tx.CreateChannel(t.Context(), db.NewChannel{Name: "loja", WebhookSecret: secret})
		g.path = "/v1/webhooks/waha/" + tokens.WebhookPath
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	conn := dbtest.Conn(t, url)
	// The fault: no contact can be stored.
	if _, err := conn.Exec(t.Context(), "alter table contacts add constraint fault check (false) not valid"); err != nil {
		t.Fatal(err)
	}
	status, answer := g.signed(read(t, "message.gows.text-dm-phone.json"))
	if status != http.StatusOK || answer["status"] != "error" || answer["reason"] != nil {
		t.Fatalf("got %d %v, want 200, error and no word of why", status, answer)
	}
	if n := g.count("select count(*) from event_log where organization_id = $1"); n != 0 {
		t.Errorf("%d events of a message that was not stored", n)
	}
	if _, err := conn.Exec(t.Context(), "update inbound_webhooks set processed_at = processed_at - interval '1 minute', attempts = 0"); err != nil {
		t.Fatal(err)
	}
	if err := d.RetryInbound(t.Context()); err == nil || !strings.Contains(err.Error(), "failed again") {
		t.Errorf("a retry that fails again = %v, want an error that says so", err)
	}
	if _, err := conn.Exec(t.Context(), "alter table contacts drop constraint fault"); err != nil {
		t.Fatal(err)
	}
	if err := d.RetryInbound(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := g.count("select count(*) from messages where organization_id = $1"); n != 0 {
		t.Errorf("%d messages right after the failure, want the post to rest first", n)
	}
	if _, err := conn.Exec(t.Context(), "update inbound_webhooks set processed_at = processed_at - interval '1 minute'"); err != nil {
		t.Fatal(err)
	}
	if err := d.RetryInbound(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := g.count("select count(*) from messages where organization_id = $1"); n != 1 {
		t.Errorf("%d messages after the retry, want one", n)
	}
	if n := g.count("select count(*) from inbound_webhooks where organization_id = $1 and status = 'processed' and attempts = 2"); n != 1 {
		t.Errorf("%d processed posts with 2 attempts, want one", n)
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("../../bus/waha/testdata/samples", file))
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file) //nolint:gosec // a file of this package
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s is not what became of the samples (-want +got); run with -update and read the change:\n%s", file, diff)
	}
}
