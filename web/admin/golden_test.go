package admin

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

var update = flag.Bool("update", false, "write the golden pages anew")

// goldenVisit is a visit by an admin at a moment that stays.
func goldenVisit(t *testing.T, accept string) *visit {
	t.Helper()
	org := uuid.MustParse("0190b4a8-0000-7000-8000-0000000000aa")
	m := db.Membership{OrgID: org, Organization: "Padaria Sol", Timezone: "America/Sao_Paulo", Role: db.RoleAdmin}
	return &visit{
		locale: localeOf(t, accept), scope: memberScope(db.Person{}, m, ""), now: time.Date(2026, 7, 4, 13, 20, 30, 0, time.UTC),
		person: &db.Person{ID: org, Email: "ana@example.com", Memberships: []db.Membership{m}},
	}
}

func goldenFrame(v *visit, title string) frame {
	return frame{
		Lang: v.Tag, Title: title, L: v.L, Person: v.person.Email, Scope: v.scope.name,
		CSS: "/admin/static/0/app.css", Script: "/admin/static/0/app.js", HTMX: "/admin/static/0/htmx.min.js", Icon: "/admin/static/0/icon.svg",
		Nav: []link{{Text: v.L.Overview, URL: "/admin/"}, {Text: v.L.DeadLetters, URL: "/admin/dlq", Current: true}},
	}
}

// goldenDead is the nth delivery that died.
func goldenDead(v *visit, n int) db.DeadDelivery {
	id := uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(n)})
	d := db.DeadDelivery{
		ID: id, OrgID: v.scope.org, Organization: v.scope.name, Consumer: bus.WebhookDispatch, Destination: id,
		DestinationURL: new("https://hooks.example.com/orders?shop=1&x=<y>"), EventID: id, Type: bus.MessageReceived, EntityKind: "message",
		EntityID: uuid.NullUUID{UUID: id, Valid: true}, Attempts: 8, MaxAttempts: 8,
		LastError: "http_503: the receiver answered 503: the receiver asks for patience, says ana@cliente.example", State: "dead",
		DiedAt: v.now.Add(-time.Duration(n*n) * time.Minute), EventCreatedAt: v.now.Add(-48 * time.Hour),
	}
	if n%2 == 0 {
		d.Consumer, d.DestinationURL, d.Destination, d.EntityID, d.Attempts = "ai-response-worker", nil, uuid.Nil, uuid.NullUUID{}, 1
	}
	return d
}

func TestTheListOfTheDeadLooksAsItDid(t *testing.T) {
	t.Parallel()
	names := db.DeadNames{Types: []string{"message.received"}, Kinds: []string{"message", "order"}, Consumers: []string{"ai-response-worker", bus.WebhookDispatch}}
	for name, fill := range map[string]func(v *visit) (filter, deadList){
		"empty": func(*visit) (filter, deadList) {
			return filter{}, deadList{names: db.DeadNames{Consumers: names.Consumers}}
		},
		"empty-filtered": func(*visit) (filter, deadList) {
			return filter{EventType: "order.paid", Since: "2026-07-01T00:00", Consumer: "gone-worker"}, deadList{names: names}
		},
		"one": func(v *visit) (filter, deadList) {
			return filter{}, deadList{rows: []db.DeadDelivery{goldenDead(v, 1)}, total: 1, names: names}
		},
		"many": func(v *visit) (filter, deadList) {
			f := filter{EntityKind: "message", Before: cursorOf(goldenDead(v, 0))}
			list := deadList{total: db.CountCap + 1, names: names}
			for n := range pageSize + 1 {
				list.rows = append(list.rows, goldenDead(v, n+1))
			}
			return f, list
		},
		"everywhere": func(v *visit) (filter, deadList) {
			v.person.Memberships, v.person.Platform = nil, db.PlatformReadOnly
			v.scope = scope{param: everywhere, zone: zoneOf(""), platform: true}
			return filter{}, deadList{rows: []db.DeadDelivery{goldenDead(v, 1)}, total: 1, organizations: []db.Membership{{Organization: "Padaria Sol"}}}
		},
	} {
		for _, accept := range []string{"en", "pt-BR"} {
			t.Run(name+"."+accept, func(t *testing.T) {
				t.Parallel()
				v := goldenVisit(t, accept)
				wanted, list := fill(v)
				view := v.deadListView(goldenFrame(v, v.L.DeadLetters), wanted, list)
				if name == "many" {
					if len(view.Rows) != pageSize {
						t.Errorf("%d rows, want %d", len(view.Rows), pageSize)
					}
					view.Rows = view.Rows[:3] // the rest looks the same
				}
				var page bytes.Buffer
				if err := deadListPage(view).Render(t.Context(), &page); err != nil {
					t.Fatal(err)
				}
				compareGolden(t, filepath.Join("testdata", "dlq-"+name+"."+accept+".html"), indent(page.String()))
			})
		}
	}
}

func compareGolden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(filepath.Clean(name))
	if errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("there is no %s; run the test with -update", name)
	}
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s differs (-want +got); if that is meant, run the test with -update: %s", name, diff)
	}
}

var tag = regexp.MustCompile(`<(/?)([a-zA-Z!][a-zA-Z0-9]*)(?:[^>"']|"[^"]*"|'[^']*')*>`)

// indent gives every element and every text of a page a line of its own, so that
// differences read well.
func indent(page string) string {
	var out strings.Builder
	depth, at := 0, 0
	line := func(text string) {
		if text = strings.TrimSpace(text); text != "" {
			out.WriteString(strings.Repeat("  ", depth) + text + "\n")
		}
	}
	for _, m := range tag.FindAllStringSubmatchIndex(page, -1) {
		line(page[at:m[0]])
		at = m[1]
		closing, name := m[2] < m[3], page[m[4]:m[5]]
		if closing {
			depth = max(depth-1, 0)
		}
		line(page[m[0]:m[1]])
		if !closing && !slices.Contains([]string{"!doctype", "meta", "link", "img", "input", "br", "hr"}, name) {
			depth++
		}
	}
	line(page[at:])
	return out.String()
}

func TestAnIndentedPageHoldsAllOfIt(t *testing.T) {
	t.Parallel()
	got := indent(`<!doctype html><ul class="a>b"><li>one <b>two</b></li><li><img src="x"/>three</li></ul> end`)
	want := `<!doctype html>
<ul class="a>b">
  <li>
    one
    <b>
      two
    </b>
  </li>
  <li>
    <img src="x"/>
    three
  </li>
</ul>
end
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
