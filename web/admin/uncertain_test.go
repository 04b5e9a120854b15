package admin_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/deskcomm/deskcomm/db"
)

// What may have happened already is not offered like what has not: a person looks
// first, and is told what sending again may do.
func TestWhatIsUncertainIsConfirmedOrSentAgainKnowingly(t *testing.T) {
	t.Parallel()
	w := setup(t)
	ids := w.bury(3)
	w.exec("update dead_delivery set state = 'uncertain' where delivery_id = any($1)", ids[:2])
	b := w.as(w.person(db.RoleAdmin))

	list := b.get("/admin/dlq").Body.String()
	if strings.Contains(list, "/admin/dlq/replay?back=&amp;id="+ids[0].String()) || !strings.Contains(list, "Uncertain") {
		t.Error("the list offers to replay what is uncertain as if it were dead, or hides it")
	}
	page := b.get("/admin/dlq/" + ids[0].String()).Body.String()
	for _, want := range []string{`data-act="confirm"`, "Send again", "Nobody knows whether custom.console"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page of an uncertain delivery lacks %q", want)
		}
	}
	if page := b.get("/admin/dlq/" + ids[2].String()).Body.String(); strings.Contains(page, `data-act="confirm"`) {
		t.Error("what is surely dead can be confirmed as done")
	}
	if asked := b.get("/admin/dlq/replay?id=" + ids[1].String()).Body.String(); !strings.Contains(asked, "it may happen twice") {
		t.Error("nobody is told that it may happen twice")
	}

	for i, want := range []string{"1 delivery was confirmed as done.", "1 was left as it is"} {
		if rec := b.post("/admin/dlq/confirm", idForm(ids[:1], "reason", "seen in the other system")); rec.Code != http.StatusSeeOther {
			t.Fatalf("confirmation %d = %d", i, rec.Code)
		}
		if got := b.flash("/admin/dlq"); !strings.HasPrefix(got, want) {
			t.Errorf("confirmation %d says %q, want %q", i, got, want)
		}
	}
	b.post("/admin/dlq/confirm", idForm(ids[2:]))
	b.post("/admin/dlq/replay", idForm(ids[1:2]))
	for i, want := range []string{"confirmed, 0 pending", "replayed, 1 pending", "dead, 0 pending"} {
		if got := w.state(ids[i]); got != want {
			t.Errorf("delivery %d is %s, want %s", i, got, want)
		}
	}
	if rec := w.as(w.person(db.RoleManager)).post("/admin/dlq/confirm", idForm(ids[2:])); rec.Code != http.StatusForbidden {
		t.Errorf("a manager confirms: %d, want 403", rec.Code)
	}
}
