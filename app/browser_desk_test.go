package app_test

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// Who setUp makes admin.
const (
	adminEmail    = "ana@example.com"
	adminPassword = "correct horse battery"
)

// consoleEnv lets webhooks reach this machine and bury what fails twice.
var consoleEnv = []string{"DESKCOMM_ALLOW_PRIVATE_HOSTS=127.0.0.1", "DESKCOMM_RETRY_LADDER=10ms"}

// desk is an installation in use: an organization with an admin, a token, and a
// receiver of its events that refuses them all until it is told otherwise.
type desk struct {
	*process
	org, token string
	hook       *receiver
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	in := onShared(t, consoleEnv...)
	d := &desk{process: in.serve(), hook: newReceiver(t)}
	d.org, d.token = in.setUp()
	d.hook.status.Store(http.StatusUnprocessableEntity) // which is not tried again
	d.subscribe(d.hook.URL)
	return d
}

func (d *desk) subscribe(address string) {
	d.Helper()
	d.must(http.StatusCreated, http.MethodPost, "/v1/webhook-subscriptions", d.token, map[string]any{"url": address, "event_types": []string{"*"}})
}

// emit makes an event.
func (d *desk) emit(eventType string, payload map[string]any) (event string) {
	d.Helper()
	return d.must(http.StatusCreated, http.MethodPost, "/v1/events", d.token, map[string]any{
		"event_type": eventType, "entity_kind": "order", "payload": payload,
	})["id"].(string)
}

// bury emits events that end dead and returns their deliveries.
func (d *desk) bury(eventType string, n int, payload map[string]any) (deliveries []string) {
	d.Helper()
	for range n {
		event := d.emit(eventType, payload)
		dbtest.Eventually(d.T, "the delivery is dead", func() bool {
			for _, v := range d.must(http.StatusOK, http.MethodGet, "/v1/events/"+event, d.token, nil)["deliveries"].([]any) {
				if v := v.(map[string]any); v["status"] == "dead" {
					deliveries = append(deliveries, v["id"].(string))
					return true
				}
			}
			return false
		})
	}
	return deliveries
}

// buryMany emits events and waits until as many more are dead; there may be no
// other subscription.
func (d *desk) buryMany(eventType string, n int) {
	d.Helper()
	before := d.count("select count(*) from dead_delivery where state = 'dead'")
	for range n {
		d.emit(eventType, nil)
	}
	dbtest.Eventually(d.T, "all are dead", func() bool {
		return d.count("select count(*) from dead_delivery where state = 'dead'") == before+n
	})
}

// eventStatus is what has become of an event.
func (d *desk) eventStatus(event string) any {
	d.Helper()
	return d.must(http.StatusOK, http.MethodGet, "/v1/events/"+event, d.token, nil)["status"]
}

// deadIDs are the deliveries that wait for a person.
func (d *desk) deadIDs() map[string]bool {
	d.Helper()
	ids := map[string]bool{}
	for _, v := range d.must(http.StatusOK, http.MethodGet, "/v1/dlq", d.token, nil)["items"].([]any) {
		ids[v.(map[string]any)["id"].(string)] = true
	}
	return ids
}

// databaseURL is the installation's database, when it is not a private one.
func (in install) databaseURL() string {
	in.Helper()
	for _, v := range in.env {
		if address, found := strings.CutPrefix(v, "DATABASE_URL="); found {
			return address
		}
	}
	in.Fatal("the installation has a private database")
	return ""
}

// sql changes the database behind the server's back, as time and other clients do.
func (in install) sql(statement string, args ...any) {
	in.Helper()
	tag, err := dbtest.Conn(in.T, in.databaseURL()).Exec(in.Context(), statement, args...)
	if err != nil || tag.RowsAffected() == 0 {
		in.Fatalf("%s changed %d rows: %v", statement, tag.RowsAffected(), err)
	}
}

// count asks the database for a number.
func (in install) count(query string, args ...any) (n int) {
	in.Helper()
	if err := dbtest.Row(in.T, in.databaseURL(), query, args, &n); err != nil {
		in.Fatal(query, err)
	}
	return n
}

// decisions is how often a person has decided about deliveries.
func (in install) decisions() int {
	in.Helper()
	return in.count("select count(*) from audit_log where action in ('delivery.replayed', 'delivery.discarded')")
}

// addUser makes a person with the admin's password.
func (d *desk) addUser(email, role string) {
	d.Helper()
	d.runJSON(adminPassword+"\n", "user", "create", "--organization", d.org, "--email", email, "--role", role, "--password-file", "-")
}

// setupLink is the page that the server has told of at its start.
func (p *process) setupLink() string {
	p.Helper()
	var link string
	dbtest.Eventually(p.T, "the setup link is printed", func() bool {
		link = regexp.MustCompile(`http://\S+(/admin/setup\?token=\S+)`).FindString(p.log.String())
		return link != ""
	})
	return strings.TrimPrefix(link, p.base)
}

// logIn logs in at the page that is open or, when none is, at the login.
func (p *page) logIn(email, password string) int {
	p.Helper()
	if !strings.HasPrefix(p.path(), "/admin/login") {
		p.open("/admin/login")
	}
	return p.submit("form#login", map[string]string{"email": email, "password": password})
}

// asAdmin opens a tab in which the admin is logged in.
func (d *desk) asAdmin(t *testing.T, l look) *page {
	t.Helper()
	p := newPage(t, d.base, l)
	if status := p.logIn(adminEmail, adminPassword); status != http.StatusOK || p.path() != "/admin/" {
		t.Fatalf("after the login: %d at %s:\n%s", status, p.path(), p.text("body"))
	}
	return p
}

// row is the selector of a delivery in the list.
func row(delivery string) string { return fmt.Sprintf("#dead tr[data-delivery=%q]", delivery) }

// post sends a form from within the page, as a script of it could, and returns
// the status of the answer.
func (p *page) post(path string, fields url.Values) int {
	p.Helper()
	return eval[int](p, `fetch(%s, {method: "POST", redirect: "manual", headers: {"Content-Type": "application/x-www-form-urlencoded"}, body: %s}).then(r => r.status)`,
		path, fields.Encode())
}

// newRefuser is a receiver that takes nothing and says so at length.
func newRefuser(t *testing.T, answer string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusUnprocessableEntity)
		w.Write([]byte(answer)) //nolint:errcheck // the sender left
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// words are what the console's buttons say in a language.
type words struct{ logIn, logOut, replay, discard string }

func wordsOf(lang string) words {
	return map[string]words{
		"pt-BR": {"Entrar", "Sair", "Reprocessar", "Descartar"},
		"en":    {"Log in", "Log out", "Replay", "Discard"},
	}[cmp.Or(lang, "en")]
}
