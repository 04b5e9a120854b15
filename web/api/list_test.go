package api

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// pages reads a list to its end, two items at a time, and calls between after
// each page.
func (w *world) pages(path string, between func()) (ids []string) {
	w.t.Helper()
	cursor := ""
	for range 100 {
		items, next := w.get(path + "?limit=2&cursor=" + url.QueryEscape(cursor)).items()
		for _, item := range items {
			ids = append(ids, item["id"].(string))
		}
		if next == "" {
			return ids
		}
		if len(items) != 2 {
			w.t.Fatalf("%s: a page of %d items has a next one, want 2", path, len(items))
		}
		cursor = next
		between()
	}
	w.t.Fatalf("%s: no end after 100 pages", path)
	return nil
}

func TestPagesHaveNoGapAndNoDoubleWhileRowsAreAdded(t *testing.T) {
	t.Parallel()
	shared := setup(t)
	post := func(body func() string) func(w *world, path string) string {
		return func(w *world, path string) string {
			return w.post(path, body()).want(http.StatusCreated).fields()["id"].(string)
		}
	}
	for path, tt := range map[string]struct {
		add         func(w *world, path string) string
		newestFirst bool
	}{
		"/v1/events":                {post(func() string { return custom }), true},
		"/v1/webhook-subscriptions": {post(func() string { return passing["/v1/webhook-subscriptions"] }), false},
		"/v1/channel-sessions":      {post(func() string { return `{"name":"` + uuid.NewString() + `"}` }), false},
		"/v1/tokens":                {post(func() string { return passing["/v1/tokens"] }), false},
		"/v1/dlq":                   {func(w *world, _ string) string { return w.bury() }, true},
	} {
		w := shared.elsewhere()
		var want, added []string
		if path == "/v1/tokens" {
			items, _ := w.get(path).items() // the one that asks
			want = append(want, items[0]["id"].(string))
		}
		for range 5 {
			want = append(want, tt.add(w, path))
		}
		got := w.pages(path, func() {
			if len(added) < 3 {
				added = append(added, tt.add(w, path))
			}
		})
		if tt.newestFirst { // what is added comes before the first page
			slices.Reverse(want)
		} else {
			want = append(want, added...)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: pages = %v, want %v", path, got, want)
		}
	}
}

func TestTheLastPageHasNoCursor(t *testing.T) {
	t.Parallel()
	w := setup(t)
	if _, next := w.get("/v1/events").items(); next != "" {
		t.Errorf("next_cursor of an empty list = %q, want none", next)
	}
	w.post("/v1/events/batch", `{"events":[`+custom+`,`+custom+`]}`).want(http.StatusCreated)
	for limit, want := range map[int]bool{1: true, 2: false, 3: false} {
		items, next := w.get(fmt.Sprintf("/v1/events?limit=%d", limit)).items()
		if got := next != ""; got != want || len(items) != min(limit, 2) {
			t.Errorf("limit %d: %d items, another page: %t, want %t", limit, len(items), got, want)
		}
	}
}

func TestAListHasFiftyItemsUnlessAskedForMore(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.post("/v1/events/batch", `{"events":[`+strings.Repeat(custom+",", 200)+custom+`]}`).want(http.StatusCreated)
	for query, want := range map[string]int{"": 50, "?limit=200": 200, "?limit=": 50} {
		items, next := w.get("/v1/events" + query).items()
		if len(items) != want || next == "" {
			t.Errorf("%q: %d items and cursor %q, want %d and one", query, len(items), next, want)
		}
	}
}

func TestACursorThatIsNotOursIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.post("/v1/events/batch", `{"events":[`+custom+`,`+custom+`]}`).want(http.StatusCreated)
	_, next := w.get("/v1/events?limit=1").items()
	raw, err := base64.RawURLEncoding.DecodeString(next)
	if err != nil {
		t.Fatalf("cursor is not base64url: %v", err)
	}
	future := slices.Concat([]byte{cursorVersion}, []byte("dead"), make([]byte, 16), []byte{0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	for _, bad := range []string{
		"/v1/dlq?cursor=" + next, "/v1/events?cursor=" + next[1:], "/v1/events?cursor=" + next + "A", "/v1/events?cursor=x", "/v1/events?cursor=!",
		"/v1/events?cursor=" + base64.RawURLEncoding.EncodeToString(append([]byte{9}, raw[1:]...)),
		"/v1/events?cursor=" + base64.RawURLEncoding.EncodeToString(append(raw, 0)),
		"/v1/events?cursor=" + uuid.NewString(), "/v1/dlq?cursor=" + base64.RawURLEncoding.EncodeToString(future),
	} {
		w.get(bad).wantFault("", "cursor")
	}
}

func TestEventsAreFiltered(t *testing.T) {
	t.Parallel()
	w := setup(t)
	entity := uuid.NewString()
	w.post("/v1/events", `{"event_type":"custom.a","entity_kind":"x","entity_id":"`+entity+`"}`).want(http.StatusCreated)
	w.post("/v1/events", `{"event_type":"custom.b","entity_kind":"y"}`).want(http.StatusCreated)
	w.bury()
	soon := url.QueryEscape(time.Now().Add(time.Hour).Format(time.RFC3339))
	for query, want := range map[string]int{
		"": 3, "?event_type=custom.a": 1, "?event_type=LeadCreated": 0, "?entity_kind=y": 1, "?entity_id=" + entity: 1,
		"?entity_id=" + uuid.NewString(): 0, "?status=pending": 2, "?status=dead": 1, "?status=done": 0, "?status=delivered": 0,
		"?status=held": 0, "?status=uncertain": 0, "?since=1969-12-31T23:59:59Z": 3, "?until=1969-12-31T23:59:59Z": 0,
		"?since=0001-01-01T00:00:00Z": 3, "?until=9999-12-31T23:59:59Z": 3, "?since=9999-12-31T23:59:59-14:00": 0,
		"?until=" + soon: 3, "?since=" + soon: 0, "?event_type=custom.a&entity_kind=y": 0,
		"?unknown=parameter": 3,
	} {
		if items, _ := w.get("/v1/events" + query).items(); len(items) != want {
			t.Errorf("%q: %d events, want %d", query, len(items), want)
		}
	}
}
