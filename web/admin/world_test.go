package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alexedwards/argon2id"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
	"github.com/deskcomm/deskcomm/web"
)

func TestMain(m *testing.M) {
	code := dbtest.Main(m)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// world is one test's organization, and the whole server over it.
type world struct {
	testing.TB
	db       *db.DB
	url      string
	org      uuid.UUID
	handler  http.Handler
	log      *logBuffer
	consumer string // a reader that nobody else's test has
}

// logBuffer may be read while others write.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func setup(tb testing.TB) *world {
	tb.Helper()
	return setupOn(tb, dbtest.URL(tb), web.Options{})
}

// setupOn makes a world on a database of its own or with other options.
func setupOn(tb testing.TB, address string, o web.Options) *world {
	tb.Helper()
	w := &world{TB: tb, db: dbtest.Open(tb, address, db.Options{}), url: address, log: new(logBuffer)}
	w.org = dbtest.Org(tb, w.db)
	w.consumer = "t" + strings.ReplaceAll(uuid.NewString(), "-", "")[:20] + "-worker"
	var consumers []bus.Consumer
	for _, name := range []string{w.consumer, bus.WebhookDispatch} {
		consumers = append(consumers, bus.Consumer{
			Name: name, Types: []bus.Type{"custom.console"}, Effect: bus.EffectAtLeastOnce, Retry: bus.Ladder([]time.Duration{time.Hour}),
		})
	}
	if err := w.db.RegisterConsumers(tb.Context(), consumers); err != nil {
		tb.Fatal(err)
	}
	o.DB, o.Logger = w.db, slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	w.handler = web.New(o)
	return w
}

const password = "correct horse battery"

// cheapHash is of password, made with little work: a test logs many people in.
var cheapHash = sync.OnceValues(func() (string, error) {
	return argon2id.CreateHash(password, &argon2id.Params{Memory: 64, Iterations: 1, Parallelism: 1, SaltLength: 16, KeyLength: 32})
})

// person makes somebody with a role in the organization; "" leaves them without.
func (w *world) person(role db.Role) (email string) {
	w.Helper()
	return w.personOf(w.org, role)
}

func (w *world) personOf(org uuid.UUID, role db.Role) (email string) {
	w.Helper()
	email = string(role) + "-" + uuid.NewString() + "@example.com"
	hash, err := cheapHash()
	if err != nil {
		w.Fatal(err)
	}
	if role == "" {
		w.exec("insert into users (email, password_hash) values ($1, $2)", email, hash)
		return email
	}
	if _, _, err := w.db.AddMember(w.Context(), dbtest.Actor(), db.NewMember{OrgID: org, Email: email, Role: role, PasswordHash: hash}); err != nil {
		w.Fatal(err)
	}
	return email
}

// platform makes somebody who administers the platform and is a member of nothing.
func (w *world) platform(scope db.PlatformScope) (email string) {
	w.Helper()
	email = w.person("")
	w.exec("insert into platform_admins (user_id, scope) select id, $2 from users where email = $1", email, scope)
	return email
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	if _, err := dbtest.Exec(w.TB, w.url, sql, args...); err != nil {
		w.Fatal(err)
	}
}

func (w *world) count(sql string, args ...any) int {
	w.Helper()
	var n int
	if err := dbtest.Row(w.TB, w.url, "select count(*) "+sql, args, &n); err != nil {
		w.Fatal(err)
	}
	return n
}

// dead is a delivery that died, as a test wants it.
type dead struct {
	org      uuid.UUID
	event    uuid.UUID
	kind     string
	typ      string
	consumer string
	payload  string
	err      string
	ago      time.Duration
}

// bury makes n dead deliveries of the organization, the latest death first.
func (w *world) bury(n int, change ...func(i int, d *dead)) []uuid.UUID {
	w.Helper()
	conn := dbtest.Conn(w.TB, w.url)
	ids := make([]uuid.UUID, n)
	for i := range ids {
		d := dead{
			org: w.org, event: uuid.Must(uuid.NewV7()), kind: "thing", typ: "custom.console", consumer: w.consumer,
			payload: `{"n":1,"from":"5511900000101@c.us"}`, err: "http_503: the receiver answered 503", ago: time.Duration(i+1) * time.Minute,
		}
		for _, fn := range change {
			fn(i, &d)
		}
		ids[i] = bus.DeliveryID(d.event, d.consumer, uuid.Nil)
		_, err := conn.Exec(w.Context(), `
			insert into dead_delivery (delivery_id, organization_id, consumer_id, destination, lane, seq, event_id, event_type, entity_kind,
			       payload, metadata, event_created_at, attempts, earlier_attempts, last_error, died_at)
			select $1, $2, id, '00000000-0000-0000-0000-000000000000', 0, (random() * 1e15)::bigint, $4, $5, $6,
			       $7, '{}', clock_timestamp() - $9::interval, 2, 0, $8, clock_timestamp() - $9::interval
			  from consumers where name = $3`, ids[i], d.org, d.consumer, d.event, d.typ, d.kind, json.RawMessage(d.payload), d.err, d.ago)
		if err != nil {
			w.Fatal(err)
		}
	}
	return ids
}

// emit makes an event that nobody has read yet.
func (w *world) emit(payload string) uuid.UUID {
	w.Helper()
	var ev db.Emitted
	err := w.db.InOrg(w.Context(), w.org, dbtest.Actor(), func(tx *db.OrgTx) (err error) {
		ev, err = tx.Emit(w.Context(), db.NewEvent{Type: "custom.console", EntityKind: "thing", Payload: json.RawMessage(payload)})
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return ev.ID
}

// state is what became of a dead delivery, and how often it waits to be delivered.
func (w *world) state(id uuid.UUID) string {
	w.Helper()
	var state string
	var pending int
	err := dbtest.Row(w.TB, w.url, `
		select x.state, (select count(*) from delivery d where d.event_id = x.event_id) from dead_delivery x where x.delivery_id = $1`,
		[]any{id}, &state, &pending)
	if err != nil {
		w.Fatal(err)
	}
	return fmt.Sprintf("%s, %d pending", state, pending)
}

// audited counts the rows of the audit log about an organization; uuid.Nil is for
// those about none.
func (w *world) audited(org uuid.UUID, action, actor string) int {
	w.Helper()
	return w.count(`from audit_log where organization_id is not distinct from $1 and action = $2 and actor_name = $3`,
		uuid.NullUUID{UUID: org, Valid: org != uuid.Nil}, action, actor)
}

// site is where browsers of tests find the console.
const site = "http://desk.example"

// browser keeps cookies and asks for English.
type browser struct {
	*world
	jar    http.CookieJar
	client string // address that it connects from
}

func (w *world) browser() *browser {
	w.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		w.Fatal(err)
	}
	return &browser{world: w, jar: jar, client: "192.0.2.1:1234"}
}

// as is the browser of somebody who has logged in by the form.
func (w *world) as(email string) *browser {
	w.Helper()
	b := w.browser()
	rec := b.post("/admin/login", url.Values{"email": {email}, "password": {password}})
	if rec.Code != http.StatusSeeOther {
		w.Fatalf("login of %s = %d %s", email, rec.Code, textOf(rec.Body.String()))
	}
	return b
}

func (b *browser) get(path string, headers ...string) *httptest.ResponseRecorder {
	b.Helper()
	return b.send(http.MethodGet, path, "", headers...)
}

// post sends a form as a page of the console does; headers come last and win.
func (b *browser) post(path string, form url.Values, headers ...string) *httptest.ResponseRecorder {
	b.Helper()
	return b.send(http.MethodPost, path, form.Encode(),
		append([]string{"Content-Type", "application/x-www-form-urlencoded", "Sec-Fetch-Site", "same-origin", "Origin", site}, headers...)...)
}

func (b *browser) send(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	b.Helper()
	return b.sendIn(b.Context(), method, path, body, headers...)
}

func (b *browser) sendIn(ctx context.Context, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	b.Helper()
	r := httptest.NewRequestWithContext(ctx, method, site+path, strings.NewReader(body))
	r.RequestURI = path
	r.RemoteAddr = b.client
	r.Header.Set("Accept-Language", "en")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i+1] == "" {
			r.Header.Del(headers[i])
		}
	}
	for _, c := range b.jar.Cookies(r.URL) {
		r.AddCookie(c)
	}
	rec := httptest.NewRecorder()
	b.handler.ServeHTTP(rec, r)
	result := rec.Result()
	defer result.Body.Close() //nolint:errcheck // a recorder's
	b.jar.SetCookies(r.URL, result.Cookies())
	return rec
}

// flash is what the next page says about the last act.
func (b *browser) flash(path string) string {
	b.Helper()
	found := regexp.MustCompile(`<p id="flash"[^>]*>([^<]*)</p>`).FindStringSubmatch(b.get(path).Body.String())
	if found == nil {
		return ""
	}
	return html.UnescapeString(found[1])
}

// textOf is what a page says, without its markup.
func textOf(page string) string {
	_, page, _ = strings.Cut(page, "<body")
	return strings.Join(strings.Fields(html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " "))), " ")
}

func idForm(ids []uuid.UUID, pairs ...string) url.Values {
	form := url.Values{}
	for _, id := range ids {
		form.Add("id", id.String())
	}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	return form
}

func defaults() web.Options { return web.Options{} }
