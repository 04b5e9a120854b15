package admin_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// A posted form shows rows of the organization too, when it is not accepted.
func TestARefusedFormAboutAnotherOrganizationIsALookToo(t *testing.T) {
	t.Parallel()
	w := setup(t)
	ids := w.bury(1)
	full := w.platform(db.PlatformFull)
	rec := w.as(full).post("/admin/dlq/discard?organization="+w.org.String(), idForm(ids, "reason", " \r\n"))
	if rec.Code != http.StatusUnprocessableEntity {
		t.Fatalf("a discard without a reason = %d", rec.Code)
	}
	if n := w.audited(w.org, "platform.read", full); n == 0 {
		t.Error("no look is audited")
	}
}

func TestARefusedActAcrossOrganizationsIsAudited(t *testing.T) {
	t.Parallel()
	w := setupOn(t, dbtest.Fresh(t), defaults())
	ids := w.bury(1)
	support := w.platform(db.PlatformReadOnly)
	if rec := w.as(support).post("/admin/dlq/replay?organization=all", idForm(ids)); rec.Code != http.StatusForbidden {
		t.Fatalf("a replay by who may only read = %d", rec.Code)
	}
	if n := w.count(`from audit_log where organization_id is null and action = 'authz.denied' and actor_name = $1`, support); n != 1 {
		t.Errorf("%d refusals are audited, want 1", n)
	}
	w.exec("alter table audit_log add constraint no_denials_check check (action <> 'authz.denied') not valid")
	if rec := w.as(support).post("/admin/dlq/replay?organization=all", idForm(ids)); rec.Code != http.StatusInternalServerError {
		t.Errorf("a refusal that cannot be audited = %d, want 500: somebody has to look", rec.Code)
	}
}

// The names of organizations are a look across them as well.
func TestOwnListNamesNoOtherOrganization(t *testing.T) {
	t.Parallel()
	w := setup(t)
	other := dbtest.Org(t, w.db)
	w.exec("update organizations set name = 'Segredo Ltda' where id = $1", other)
	full := w.platform(db.PlatformFull)
	w.exec(`insert into user_organizations (organization_id, user_id, role, accepted_at)
		select $1, id, 'admin', now() from users where email = $2`, w.org, full)
	if page := w.as(full).get("/admin/dlq").Body.String(); strings.Contains(page, "Segredo Ltda") || !strings.Contains(page, `value="all"`) {
		t.Error("the list of one's own organization names another, or does not lead to all")
	}
}

func TestWhoLostTheirLastPlaceIsToldAndCanLogOut(t *testing.T) {
	t.Parallel()
	w := setup(t)
	b := w.as(w.person(db.RoleAgent))
	w.exec("update user_organizations set revoked_at = now() where organization_id = $1", w.org)
	if rec := b.get("/admin/"); rec.Code != http.StatusNotFound || !strings.Contains(rec.Body.String(), "No organization is open to you") {
		t.Errorf("the console = %d %s", rec.Code, textOf(rec.Body.String()))
	}
	if rec := b.post("/admin/logout", url.Values{}); rec.Code != http.StatusSeeOther {
		t.Errorf("logout = %d, want 303", rec.Code)
	}
	if rec := b.get("/admin/login"); rec.Code != http.StatusOK {
		t.Errorf("login = %d, want 200: somebody else may log in", rec.Code)
	}
}

// A page of the list empties while somebody works on it: that is not the whole list.
func TestAnEmptyPageDoesNotSayThatNothingIsDead(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.bury(51)
	b := w.as(w.person(db.RoleAdmin))
	first := b.get("/admin/dlq").Body.String()
	_, rest, _ := strings.Cut(first, `rel="next" href="`)
	next, _, found := strings.Cut(rest, `"`)
	if !found {
		t.Fatal("there is no second page")
	}
	next = strings.ReplaceAll(next, "&amp;", "&")
	w.exec("update dead_delivery set state = 'replayed', resolved_at = now() where delivery_id = (select delivery_id from dead_delivery where organization_id = $1 order by died_at, delivery_id limit 1)", w.org)
	if page := textOf(b.get(next).Body.String()); strings.Contains(page, "Nothing is dead") || !strings.Contains(page, "This page is empty by now") {
		t.Errorf("the second page says %s", page)
	}
}

func TestALinkOfWhoHasSeveralOrganizationsNamesIts(t *testing.T) {
	t.Parallel()
	w := setup(t)
	other := dbtest.Org(t, w.db)
	email := w.person(db.RoleAdmin)
	w.exec(`insert into user_organizations (organization_id, user_id, role, accepted_at)
		select $1, id, 'viewer', now() from users where email = $2`, other, email)
	w.exec("update organizations set name = 'A' where id = $1", w.org)
	w.exec("update organizations set name = 'B' where id = $1", other)
	id := w.bury(1)[0]
	if page := w.as(email).get("/admin/dlq").Body.String(); !strings.Contains(page, "/admin/dlq/"+id.String()+"?organization="+w.org.String()) {
		t.Error("the link to a delivery does not say whose it is")
	}
}
