package app_test

import (
	"fmt"
	"net/http"
	"os"
	"testing"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// The story of the console: from an empty data directory to a message that was
// lost and got through after all, with nothing but a browser and the two calls
// that an integration makes.
func TestBrowserStoryFromSetupLinkToReplayedDelivery(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		look    look
		install func(t *testing.T, env ...string) install
	}{
		"in Portuguese on an empty machine":   {look{lang: "pt-BR"}, onPrivate},
		"in English":                          {look{lang: "en", dark: true}, onShared},
		"in Portuguese on a phone, no script": {look{lang: "pt-BR", width: 360, noScript: true}, onShared},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hook := newReceiver(t)
			hook.status.Store(http.StatusInternalServerError)
			server := tt.install(t, consoleEnv...).serve()
			p, say := newPage(t, server.base, tt.look), wordsOf(tt.look.lang)

			p.mustBe(http.StatusOK, p.open(server.setupLink()))
			if lang := p.attribute("html", "lang"); lang != tt.look.lang {
				t.Errorf("the page is in %q, want %q", lang, tt.look.lang)
			}
			p.mustBe(http.StatusOK, p.submit("form#setup", map[string]string{
				"organization": "Loja Ipê", "email": adminEmail, "password": adminPassword,
			}))
			token := p.text("#api-token")
			p.mustBe(http.StatusOK, p.click(`main a[href="/admin/"]`))
			p.says("#logout button", say.logOut)
			p.mustBe(http.StatusOK, p.click("#logout button"))
			p.says("form#login button", say.logIn)
			p.mustBe(http.StatusOK, p.logIn(adminEmail, adminPassword))
			p.mustBeAt("/admin/")

			server.must(http.StatusCreated, http.MethodPost, "/v1/webhook-subscriptions", token, map[string]any{
				"url": hook.URL, "event_types": []string{"message.received"}, "secret": hookSecret,
			})
			channel := server.must(http.StatusCreated, http.MethodPost, "/v1/channel-sessions", token,
				map[string]any{"name": "org_ipe_01", "webhook_secret": channelSecret})
			body, err := os.ReadFile("../bus/waha/testdata/samples/message.gows.text-dm-phone.json")
			if err != nil {
				t.Fatal(err)
			}
			server.postWAHA(channel, body)

			dbtest.Eventually(t, "the delivery is dead", func() bool {
				return len(server.must(http.StatusOK, http.MethodGet, "/v1/dlq", token, nil)["items"].([]any)) == 1
			})
			p.mustBe(http.StatusOK, p.click(`nav a[href^="/admin/dlq"]`))
			dead := row(p.attribute("#dead tr[data-delivery]", "data-delivery"))
			hook.status.Store(http.StatusOK)
			tried := len(hook.all())

			p.says(dead+" a[data-act=replay]", say.replay)
			p.says(dead+" a[data-act=discard]", say.discard)
			p.mustBe(http.StatusOK, p.click(dead+" a[data-act=replay]"))
			p.says("form#confirm button", say.replay)
			p.mustBe(http.StatusOK, p.submit("form#confirm", map[string]string{"reason": "o receptor voltou"}))
			p.mustBeAt("/admin/dlq")
			p.find("#flash")
			if p.has(dead) {
				t.Error("what was replayed is still in the list")
			}
			dbtest.Eventually(t, "the receiver gets the event", func() bool { return len(hook.all()) == tried+1 })

			event := server.must(http.StatusOK, http.MethodGet, "/v1/events?event_type=message.received", token, nil)["items"].([]any)[0].(map[string]any)["id"].(string)
			dbtest.Eventually(t, "the event is done", func() bool {
				return server.must(http.StatusOK, http.MethodGet, "/v1/events/"+event, token, nil)["status"] == "done"
			})
			p.mustBe(http.StatusOK, p.click("nav a:first-of-type"))
			p.find(fmt.Sprintf("#recent tr[data-event=%q] [data-status=done]", event))
			p.mustBe(http.StatusOK, p.click(fmt.Sprintf("#recent tr[data-event=%q] a", event)))
			p.mustBeAt("/admin/events/" + event)
			p.find("#deliveries tr[data-delivery] [data-status=done]")
		})
	}
}
