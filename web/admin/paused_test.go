package admin_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
	"github.com/deskcomm/deskcomm/web"
)

func TestTheOverviewSaysThatAConsumerIsPausedAndWhyToThePlatformAlone(t *testing.T) {
	t.Parallel()
	w := setupOn(t, dbtest.Fresh(t), web.Options{})
	member, operator := w.as(w.person(db.RoleAdmin)), w.as(w.platform(db.PlatformFull))
	look := func(b *browser, path string) string {
		t.Helper()
		rec := b.get(path)
		if rec.Code != http.StatusOK {
			t.Fatalf("GET %s = %d", path, rec.Code)
		}
		return rec.Body.String()
	}
	const says, why = bus.WebhookDispatch + " is paused since ", "ana paused it: &lt;the receiver moves&gt;"
	if text := look(member, "/admin/"); strings.Contains(text, "is paused") {
		t.Error("the overview says that something is paused when nothing is")
	}
	if err := w.db.PauseConsumer(t.Context(), db.Actor{Kind: db.ActorCLI, Name: "ana"}, bus.WebhookDispatch, "<the receiver moves>"); err != nil {
		t.Fatal(err)
	}
	if text := look(member, "/admin/"); !strings.Contains(text, says) || strings.Contains(text, "receiver moves") {
		t.Error("a member is not told that the consumer is paused, or also why")
	}
	for _, path := range []string{"/admin/?organization=all", "/admin/?organization=" + w.org.String()} {
		if text := look(operator, path); !strings.Contains(text, says) || !strings.Contains(text, why) {
			t.Errorf("%s does not tell the platform's admin that the consumer is paused, and why", path)
		}
	}
	if err := w.db.ResumeConsumer(t.Context(), db.Actor{Kind: db.ActorCLI, Name: "ana"}, bus.WebhookDispatch, ""); err != nil {
		t.Fatal(err)
	}
	if text := look(member, "/admin/"); strings.Contains(text, "is paused") {
		t.Error("the overview still says that the consumer is paused")
	}
}
