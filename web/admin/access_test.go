package admin_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// Who may see what, and who may do what: each row has a world of its own, so that
// an act of one does not change what another finds.
func TestPagesOpenForThoseWhoMay(t *testing.T) {
	t.Parallel()
	const (
		ok, seeOther, forbidden, notFound = http.StatusOK, http.StatusSeeOther, http.StatusForbidden, http.StatusNotFound
	)
	who := []string{"nobody", "viewer", "agent", "manager", "admin", "platform", "support", "stranger"}
	for name, tt := range map[string]struct {
		method, path string
		want         [8]int // in the order of who
	}{
		"the overview":                {http.MethodGet, "/admin/?organization=ORG", [8]int{seeOther, ok, ok, ok, ok, ok, ok, notFound}},
		"the overview of everything":  {http.MethodGet, "/admin/?organization=all", [8]int{seeOther, notFound, notFound, notFound, notFound, ok, ok, notFound}},
		"an event":                    {http.MethodGet, "/admin/events/EVENT?organization=ORG", [8]int{seeOther, ok, ok, ok, ok, ok, ok, notFound}},
		"an event without hiding":     {http.MethodGet, "/admin/events/EVENT?organization=ORG&reveal=1", [8]int{seeOther, forbidden, forbidden, ok, ok, ok, forbidden, notFound}},
		"the list":                    {http.MethodGet, "/admin/dlq?organization=ORG", [8]int{seeOther, ok, ok, ok, ok, ok, ok, notFound}},
		"the list of everything":      {http.MethodGet, "/admin/dlq?organization=all", [8]int{seeOther, notFound, notFound, notFound, notFound, ok, ok, notFound}},
		"the news":                    {http.MethodGet, "/admin/dlq/news?organization=ORG", [8]int{seeOther, ok, ok, ok, ok, ok, ok, notFound}},
		"a delivery":                  {http.MethodGet, "/admin/dlq/DEAD?organization=ORG", [8]int{seeOther, ok, ok, ok, ok, ok, ok, notFound}},
		"a delivery without hiding":   {http.MethodGet, "/admin/dlq/DEAD?organization=ORG&reveal=1", [8]int{seeOther, forbidden, forbidden, ok, ok, ok, forbidden, notFound}},
		"a delivery of everything":    {http.MethodGet, "/admin/dlq/DEAD?organization=all", [8]int{seeOther, notFound, notFound, notFound, notFound, seeOther, seeOther, notFound}},
		"the question before replay":  {http.MethodGet, "/admin/dlq/replay?organization=ORG&id=DEAD", [8]int{seeOther, forbidden, forbidden, forbidden, ok, ok, forbidden, notFound}},
		"the question before discard": {http.MethodGet, "/admin/dlq/discard?organization=ORG&id=DEAD", [8]int{seeOther, forbidden, forbidden, forbidden, ok, ok, forbidden, notFound}},
		"replay":                      {http.MethodPost, "/admin/dlq/replay?organization=ORG", [8]int{seeOther, forbidden, forbidden, forbidden, seeOther, seeOther, forbidden, notFound}},
		"discard":                     {http.MethodPost, "/admin/dlq/discard?organization=ORG", [8]int{seeOther, forbidden, forbidden, forbidden, seeOther, seeOther, forbidden, notFound}},
		"replay of everything":        {http.MethodPost, "/admin/dlq/replay?organization=all", [8]int{seeOther, notFound, notFound, notFound, notFound, seeOther, forbidden, notFound}},
		"a page that is not":          {http.MethodGet, "/admin/nowhere", [8]int{seeOther, notFound, notFound, notFound, notFound, notFound, notFound, notFound}},
		"an id that is none":          {http.MethodGet, "/admin/dlq/one?organization=ORG", [8]int{seeOther, notFound, notFound, notFound, notFound, notFound, notFound, notFound}},
		"another method":              {http.MethodPut, "/admin/dlq?organization=ORG", [8]int{notFound, notFound, notFound, notFound, notFound, notFound, notFound, notFound}},
		"the login":                   {http.MethodGet, "/admin/login", [8]int{ok, seeOther, seeOther, seeOther, seeOther, seeOther, seeOther, seeOther}},
		"a setup link that is none":   {http.MethodGet, "/admin/setup?token=x", [8]int{notFound, notFound, notFound, notFound, notFound, notFound, notFound, notFound}},
		"the way out":                 {http.MethodPost, "/admin/logout", [8]int{seeOther, seeOther, seeOther, seeOther, seeOther, seeOther, seeOther, seeOther}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t)
			other := dbtest.Org(t, w.db)
			for i, who := range who {
				b := w.browser()
				switch who {
				case "nobody":
				case "platform":
					b = w.as(w.platform(db.PlatformFull))
				case "support":
					b = w.as(w.platform(db.PlatformReadOnly))
				case "stranger":
					b = w.as(w.personOf(other, db.RoleAdmin))
				default:
					b = w.as(w.person(db.Role(who)))
				}
				delivery := w.bury(1)[0]
				fill := strings.NewReplacer("ORG", w.org.String(), "DEAD", delivery.String(), "EVENT", w.emit(`{"n":1}`).String())
				path := fill.Replace(tt.path)
				var got int
				if tt.method == http.MethodPost {
					got = b.post(path, url.Values{"id": {delivery.String()}, "reason": {"a test"}}).Code
				} else {
					got = b.send(tt.method, path, "").Code
				}
				if got != tt.want[i] {
					t.Errorf("%s %s as %s = %d, want %d", tt.method, tt.path, who, got, tt.want[i])
				}
				if acts := tt.method == http.MethodPost && strings.HasPrefix(path, "/admin/dlq/"); !acts || who == "nobody" || got != seeOther {
					if state := w.state(delivery); state != "dead, 0 pending" {
						t.Errorf("%s %s as %s left the delivery %s", tt.method, tt.path, who, state)
					}
				} else if w.state(delivery) == "dead, 0 pending" {
					t.Errorf("%s %s as %s changed nothing", tt.method, tt.path, who)
				}
			}
			if strings.Contains(w.log.String(), "level=ERROR") {
				t.Errorf("an error was logged: %s", w.log)
			}
		})
	}
}

func TestNobodyIsSentToTheLoginAndBack(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := w.browser()
	for path, want := range map[string]string{
		"/admin/": "/admin/login",
		"/admin/dlq?event_type=custom.a&since=2026-07-04T10:20": "/admin/login?next=" + url.QueryEscape("/admin/dlq?event_type=custom.a&since=2026-07-04T10:20"),
		"/admin/nowhere": "/admin/login?next=%2Fadmin%2Fnowhere",
	} {
		if rec := b.get(path); rec.Code != http.StatusSeeOther || rec.Header().Get("Location") != want {
			t.Errorf("%s = %d to %s, want 303 to %s", path, rec.Code, rec.Header().Get("Location"), want)
		}
	}
	for _, path := range []string{"/admin/dlq/replay", "/admin/dlq/discard", "/admin/logout"} {
		if rec := b.post(path, url.Values{"id": {uuid.NewString()}}); rec.Code != http.StatusSeeOther || rec.Header().Get("Location") != "/admin/login" {
			t.Errorf("POST %s = %d to %s, want 303 to the login: an act is not repeated by an address", path, rec.Code, rec.Header().Get("Location"))
		}
	}
	if rec := b.get("/admin/dlq/news", "HX-Request", "true"); rec.Code != http.StatusUnauthorized || rec.Body.Len() > 0 {
		t.Errorf("a script without a session = %d %s, want a bare 401", rec.Code, rec.Body)
	}
	email := w.person(db.RoleViewer)
	rec := b.post("/admin/login", url.Values{"email": {email}, "password": {password}, "next": {"/admin/dlq?event_type=custom.a"}})
	if got, want := rec.Header().Get("Location"), "/admin/dlq?event_type=custom.a"; rec.Code != http.StatusSeeOther || got != want {
		t.Errorf("login = %d to %s, want 303 to %s", rec.Code, got, want)
	}
	if got := b.get("/admin/login?next=//evil.example/admin/").Header().Get("Location"); got != "/admin/" {
		t.Errorf("a login by who is logged in leads to %s", got)
	}
}

func TestOnlyThoseWhoMayActSeeTheButtons(t *testing.T) {
	t.Parallel()
	w := setup(t)
	id := w.bury(1)[0].String()
	for who, may := range map[string]bool{"viewer": false, "agent": false, "manager": false, "admin": true, "full": true, "support_readonly": false} {
		var b *browser
		switch who {
		case "full", "support_readonly":
			b = w.as(w.platform(db.PlatformScope(who)))
		default:
			b = w.as(w.person(db.Role(who)))
		}
		for _, path := range []string{"/admin/dlq?organization=" + w.org.String(), "/admin/dlq/" + id + "?organization=" + w.org.String()} {
			page := b.get(path).Body.String()
			for _, mark := range []string{`data-act="replay"`, `data-act="discard"`, "/admin/dlq/replay?", "/admin/dlq/discard?"} {
				if got := strings.Contains(page, mark); got != may {
					t.Errorf("%s as %s has %s: %v, want %v", path, who, mark, got, may)
				}
			}
			if got := strings.Contains(page, `name="id"`); strings.HasPrefix(path, "/admin/dlq?") && got != may {
				t.Errorf("%s as %s has boxes to pick rows: %v, want %v", path, who, got, may)
			}
		}
		page := b.get("/admin/dlq/" + id + "?organization=" + w.org.String()).Body.String()
		if got, want := strings.Contains(page, `data-act="reveal"`), who == "manager" || may; got != want {
			t.Errorf("%s may ask for personal data: %v, want %v", who, got, want)
		}
	}
}

func TestARefusalIsAuditedAndChangesNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	ids := w.bury(2)
	for _, role := range []db.Role{db.RoleViewer, db.RoleAgent, db.RoleManager} {
		email := w.person(role)
		b := w.as(email)
		for n, path := range []string{"/admin/dlq/replay", "/admin/dlq/discard"} {
			rec := b.post(path, idForm(ids, "reason", "because"))
			if rec.Code != http.StatusForbidden || !strings.Contains(textOf(rec.Body.String()), "Your role does not allow this") {
				t.Errorf("%s as %s = %d %s", path, role, rec.Code, textOf(rec.Body.String()))
			}
			if got := w.audited(w.org, "authz.denied", email); got != n+1 {
				t.Errorf("%s as %s: %d refusals are audited, want %d", path, role, got, n+1)
			}
		}
		if rec := b.get("/admin/dlq/" + ids[0].String() + "?reveal=1"); role != db.RoleManager && rec.Code != http.StatusForbidden {
			t.Errorf("personal data for %s = %d, want 403", role, rec.Code)
		}
		if role != db.RoleManager {
			if got := w.audited(w.org, "authz.denied", email); got != 3 {
				t.Errorf("%s: %d refusals are audited after personal data was asked for, want 3", role, got)
			}
			if got := w.audited(w.org, "payload.revealed", email); got != 0 {
				t.Errorf("%s: the audit log says that personal data was shown", role)
			}
		}
	}
	for _, id := range ids {
		if got := w.state(id); got != "dead, 0 pending" {
			t.Errorf("delivery is %s after refusals", got)
		}
	}
	if n := w.count("from audit_log where organization_id = $1 and action like 'delivery.%'", w.org); n != 0 {
		t.Errorf("%d decisions are audited, want none", n)
	}
}

func TestAnotherOrganizationsDeliveryDoesNotExist(t *testing.T) {
	t.Parallel()
	w := setup(t)
	own, foreign := w.bury(1)[0], setup(t).bury(1)[0]
	b := w.as(w.person(db.RoleAdmin))
	for _, org := range []string{"", "organization=" + w.org.String() + "&"} {
		for _, path := range []string{"/admin/dlq/" + foreign.String() + "?" + org, "/admin/dlq/replay?" + org + "id=" + foreign.String(), "/admin/dlq/discard?" + org + "id=" + foreign.String()} {
			if rec := b.get(path); rec.Code != http.StatusNotFound {
				t.Errorf("GET %s = %d, want 404", path, rec.Code)
			}
		}
	}
	for _, path := range []string{"/admin/dlq/replay", "/admin/dlq/discard"} {
		if rec := b.post(path, idForm([]uuid.UUID{foreign}, "reason", "mine now")); rec.Code == http.StatusSeeOther && !strings.Contains(b.flash("/admin/dlq"), "left as it is") {
			t.Errorf("POST %s = %d, and nothing says that nothing happened", path, rec.Code)
		}
	}
	rec := b.post("/admin/dlq/replay", idForm([]uuid.UUID{foreign, own}))
	if flash := b.flash("/admin/dlq"); rec.Code != http.StatusSeeOther || !strings.Contains(flash, "1 delivery is being tried again. 1 was left") {
		t.Errorf("own and foreign together = %d %q, want one of two replayed", rec.Code, flash)
	}
	if got := w.state(foreign); got != "dead, 0 pending" {
		t.Errorf("another organization's delivery is %s", got)
	}
	if got := w.state(own); got != "replayed, 1 pending" {
		t.Errorf("the own delivery is %s", got)
	}
	if rec := b.get("/admin/dlq"); strings.Contains(rec.Body.String(), foreign.String()) {
		t.Error("the list shows another organization's delivery")
	}
}

func TestWhatIsTakenFromAPersonEndsAtTheNextRequest(t *testing.T) {
	t.Parallel()
	hash, err := db.HashPassword(t.Context(), "another "+password)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		take func(w *world, email string) error
		want int
	}{
		"the place in the organization": {func(w *world, email string) error {
			_, err := w.db.RevokeMember(w.Context(), dbtest.Actor(), w.org, email)
			return err
		}, http.StatusNotFound},
		"the password": {func(w *world, email string) error {
			_, err := w.db.SetPassword(w.Context(), dbtest.Actor(), email, hash)
			return err
		}, http.StatusSeeOther},
		"the person": {func(w *world, email string) error {
			w.exec("delete from users where email = $1", email)
			return nil
		}, http.StatusSeeOther},
		"the session": {func(w *world, _ string) error {
			w.exec("update sessions set expiry = clock_timestamp() - interval '1 second'")
			return nil
		}, http.StatusSeeOther},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := dbtest.URL(t)
			if name == "the session" {
				address = dbtest.Fresh(t)
			}
			w := setupOn(t, address, defaults())
			w.person(db.RoleAdmin) // one must stay
			email := w.person(db.RoleAdmin)
			id := w.bury(1)[0]
			b := w.as(email)
			if rec := b.get("/admin/dlq"); rec.Code != http.StatusOK {
				t.Fatalf("before = %d", rec.Code)
			}
			if err := tt.take(w, email); err != nil {
				t.Fatal(err)
			}
			for _, path := range []string{"/admin/", "/admin/dlq", "/admin/dlq/" + id.String()} {
				if rec := b.get(path); rec.Code != tt.want {
					t.Errorf("%s = %d, want %d", path, rec.Code, tt.want)
				}
			}
			if rec := b.post("/admin/dlq/discard", idForm([]uuid.UUID{id}, "reason", "late")); rec.Code != tt.want || w.state(id) != "dead, 0 pending" {
				t.Errorf("discard = %d and the delivery is %s", rec.Code, w.state(id))
			}
		})
	}
}

func TestALowerRoleCountsAtTheNextRequest(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.person(db.RoleAdmin)
	email := w.person(db.RoleAdmin)
	id := w.bury(1)[0]
	b := w.as(email)
	if _, err := w.db.SetRole(t.Context(), dbtest.Actor(), w.org, email, db.RoleManager); err != nil {
		t.Fatal(err)
	}
	if rec := b.post("/admin/dlq/replay", idForm([]uuid.UUID{id})); rec.Code != http.StatusForbidden || w.state(id) != "dead, 0 pending" {
		t.Errorf("replay = %d and the delivery is %s", rec.Code, w.state(id))
	}
}

func TestWhatThePlatformLooksAtIsAudited(t *testing.T) {
	t.Parallel()
	w := setup(t)
	ids := w.bury(2)
	event := w.emit(`{"n":1}`)
	org := "organization=" + w.org.String()
	for _, scope := range []db.PlatformScope{db.PlatformFull, db.PlatformReadOnly} {
		email := w.platform(scope)
		b := w.as(email)
		about := func(org uuid.UUID) int {
			return w.count(`from audit_log where organization_id is not distinct from $1 and action = 'platform.read' and actor_name = $2
				and metadata ->> 'platform' = 'true' and actor_kind = 'user' and actor_id is not null and request_id is not null`,
				uuid.NullUUID{UUID: org, Valid: org != uuid.Nil}, email)
		}
		for i, path := range []string{"/admin/?" + org, "/admin/dlq?" + org, "/admin/dlq/" + ids[0].String() + "?" + org, "/admin/events/" + event.String() + "?" + org} {
			if rec := b.get(path); rec.Code != http.StatusOK || about(w.org) != i+1 {
				t.Errorf("%s: %s = %d, %d looks are audited, want %d", scope, path, rec.Code, about(w.org), i+1)
			}
		}
		for i, path := range []string{"/admin/", "/admin/dlq", "/admin/dlq?organization=all", "/admin/dlq/" + ids[0].String() + "?organization=all"} {
			b.get(path)
			if about(uuid.Nil) != i+1 {
				t.Errorf("%s: %s: %d looks across organizations are audited, want %d", scope, path, about(uuid.Nil), i+1)
			}
		}
		// A page of somebody whose looks are audited does not ask again by itself.
		for _, path := range []string{"/admin/?" + org, "/admin/dlq?" + org, "/admin/dlq/" + ids[0].String() + "?" + org, "/admin/events/" + event.String() + "?" + org} {
			if page := b.get(path).Body.String(); strings.Contains(page, "data-hx-get") {
				t.Errorf("%s: %s asks again by itself", scope, path)
			}
		}
	}
	full := w.platform(db.PlatformFull)
	b := w.as(full)
	b.post("/admin/dlq/replay?organization=all", idForm(ids[:1]))
	b.post("/admin/dlq/discard?"+org, idForm(ids[1:], "reason", "a test"))
	for i, action := range []string{"delivery.replayed", "delivery.discarded"} {
		if n := w.count(`from audit_log where organization_id = $1 and action = $2 and resource_id = $3 and actor_name = $4 and metadata ->> 'platform' = 'true'`,
			w.org, action, ids[i], full); n != 1 {
			t.Errorf("%d rows of %s are flagged, want 1", n, action)
		}
	}
	admin := w.person(db.RoleAdmin)
	id := w.bury(1)
	w.as(admin).post("/admin/dlq/replay", idForm(id))
	if n := w.count(`from audit_log where organization_id = $1 and actor_name = $2 and metadata ? 'platform'`, w.org, admin); n != 0 {
		t.Errorf("%d acts of a member are flagged as the platform's", n)
	}
	if n := w.audited(w.org, "platform.read", admin); n != 0 {
		t.Errorf("%d looks of a member are audited", n)
	}
}

func TestPersonalDataIsShownToWhoMaySeeItAndAudited(t *testing.T) {
	t.Parallel()
	w := setup(t)
	id := w.bury(1, func(_ int, d *dead) { d.err = "http_422: no ana@cliente.example here" })[0]
	event := w.emit(`{"from":"5511900000101@c.us","n":1}`)
	email := w.person(db.RoleManager)
	b := w.as(email)
	for i, page := range []string{"/admin/dlq/" + id.String(), "/admin/events/" + event.String()} {
		kind := []string{"delivery", "event"}[i]
		if masked := b.get(page).Body.String(); strings.Contains(masked, "5511900000101") || strings.Contains(masked, "ana@cliente") || !strings.Contains(masked, "•••") {
			t.Errorf("%s shows personal data that nobody asked for", page)
		}
		if n := w.audited(w.org, "payload.revealed", email); n != i {
			t.Errorf("%d reveals are audited, want %d", n, i)
		}
		if shown := b.get(page + "?reveal=1").Body.String(); !strings.Contains(shown, "5511900000101@c.us") {
			t.Errorf("%s hides what was asked for", page)
		}
		if n := w.count("from audit_log where organization_id = $1 and action = 'payload.revealed' and actor_name = $2 and resource_type = $3 and resource_id = $4",
			w.org, email, kind, []uuid.UUID{id, event}[i]); n != 1 {
			t.Errorf("%d reveals of the %s are audited, want 1", n, kind)
		}
	}
	if list := b.get("/admin/dlq").Body.String(); strings.Contains(list, "ana@cliente") {
		t.Error("the list shows personal data of an error")
	}
}

func TestAPersonOfTwoOrganizationsLooksAtEachByItsRole(t *testing.T) {
	t.Parallel()
	w := setup(t)
	other := dbtest.Org(t, w.db)
	email := w.person(db.RoleAdmin)
	if _, _, err := w.db.AddMember(t.Context(), dbtest.Actor(), db.NewMember{OrgID: other, Email: email, Role: db.RoleViewer}); err != nil {
		t.Fatal(err)
	}
	here, there := w.bury(1)[0], w.bury(1, func(_ int, d *dead) { d.org = other })[0]
	b := w.as(email)
	for org, want := range map[uuid.UUID]uuid.UUID{w.org: here, other: there} {
		page := b.get("/admin/dlq?organization=" + org.String()).Body.String()
		if strings.Count(page, "data-delivery=") != 1 || !strings.Contains(page, want.String()) || strings.Count(page, "<option value=\""+org.String()+"\" selected") != 1 {
			t.Errorf("the list of %s shows another's rows or no choice of organization: %s", org, textOf(page))
		}
	}
	if rec := b.post("/admin/dlq/replay", idForm([]uuid.UUID{there}, "organization", other.String())); rec.Code != http.StatusForbidden || w.state(there) != "dead, 0 pending" {
		t.Errorf("replay by a viewer there = %d, the delivery is %s", rec.Code, w.state(there))
	}
	if rec := b.post("/admin/dlq/replay", idForm([]uuid.UUID{here}, "organization", w.org.String())); rec.Code != http.StatusSeeOther || w.state(here) != "replayed, 1 pending" {
		t.Errorf("replay by an admin here = %d, the delivery is %s", rec.Code, w.state(here))
	}
}

func TestAFaultInTheOrganizationIsAPageThatTellsOfNoOther(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := w.as(w.person(db.RoleViewer))
	for value, want := range map[string]int{
		"x": http.StatusBadRequest, "all": http.StatusNotFound, uuid.NewString(): http.StatusNotFound, "%00": http.StatusBadRequest,
		"%ff": http.StatusBadRequest, "../../etc": http.StatusBadRequest, uuid.Nil.String(): http.StatusNotFound,
		"https://evil.example": http.StatusBadRequest,
	} {
		rec := b.get("/admin/dlq?organization=" + value)
		if rec.Code != want || strings.Contains(textOf(rec.Body.String()), "All organizations") || strings.Contains(rec.Body.String(), "evil.example") {
			t.Errorf("organization=%s: %d %s, want %d", value, rec.Code, textOf(rec.Body.String()), want)
		}
	}
}
