package admin

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

// A filter goes through the address of every link of the list and comes back as
// it was, whatever people typed.
func TestAFilterComesBackFromItsURL(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.Custom(func(t *rapid.T) string {
			return strings.TrimSpace(strings.ReplaceAll(rapid.String().Draw(t, "value"), "\x00", "0"))
		})
		f := filter{
			EventType: value.Draw(t, "type"), EntityKind: value.Draw(t, "kind"), Consumer: value.Draw(t, "consumer"),
			Since: value.Draw(t, "since"), Until: value.Draw(t, "until"), Before: value.Draw(t, "before"),
		}
		q, err := url.ParseQuery(f.query())
		if err != nil {
			t.Fatalf("query %q: %v", f.query(), err)
		}
		if diff := cmp.Diff(f, filterOf(q)); diff != "" {
			t.Errorf("by the query string: %s", diff)
		}
		u, err := url.Parse(scope{param: everywhere}.url("/admin/dlq", f.pairs()...))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(f, filterOf(u.Query())); diff != "" || u.Query().Get("organization") != everywhere || u.Path != "/admin/dlq" {
			t.Errorf("by the link %s: %s", u, diff)
		}
		wantNarrows := f.EventType+f.EntityKind+f.Consumer+f.Since+f.Until != ""
		if f.narrows() != wantNarrows {
			t.Errorf("narrows = %v, want %v: %+v", f.narrows(), wantNarrows, f)
		}
	})
}

func TestACursorComesBackFromItsText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		at := time.UnixMicro(rapid.Int64Range(0, 32503680000000000).Draw(t, "micros"))
		var id uuid.UUID
		copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		text := cursorOf(db.DeadDelivery{DiedAt: at, ID: id})
		gotAt, gotID, ok := readCursor(text)
		if !ok || !gotAt.Equal(at) || gotID != id {
			t.Errorf("%s came back as %v %v %v", text, gotAt, gotID, ok)
		}
		if url.QueryEscape(text) != text {
			t.Errorf("cursor %s needs escaping", text)
		}
	})
}

func TestAFilterIsReadInTheZoneOfTheOrganization(t *testing.T) {
	t.Parallel()
	zone := zoneOf("America/Sao_Paulo")
	id := uuid.MustParse("0190b4a8-0000-7000-8000-000000000001")
	died := time.UnixMicro(1783171230431123)
	f := filter{
		EventType: "message.received", EntityKind: "message", Consumer: "webhook-dispatch-worker",
		Since: "2026-07-04T10:20", Until: "2026-07-05T00:00", Before: cursorOf(db.DeadDelivery{DiedAt: died, ID: id}),
	}
	got, err := f.forStore(zone)
	if err != nil {
		t.Fatal(err)
	}
	want := db.DeadFilter{
		Type: f.EventType, EntityKind: f.EntityKind, Consumer: f.Consumer, Bare: true,
		Since: new(time.Date(2026, 7, 4, 13, 20, 0, 0, time.UTC)), Until: new(time.Date(2026, 7, 5, 3, 0, 0, 0, time.UTC)),
		BeforeAt: &died, BeforeID: uuid.NullUUID{UUID: id, Valid: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("in the terms of the store (-want +got): %s", diff)
	}
}

func TestABadFilterNamesItsField(t *testing.T) {
	t.Parallel()
	id := "0190b4a8-0000-7000-8000-000000000001"
	for name, tt := range map[string]struct {
		filter filter
		field  string // "" when it is taken
	}{
		"nothing":                     {filter{}, ""},
		"minutes":                     {filter{Since: "2026-07-04T10:20"}, ""},
		"seconds":                     {filter{Since: "2026-07-04T10:20:30"}, ""},
		"a day":                       {filter{Until: "2026-07-04"}, ""},
		"a moment that a clock skips": {filter{Since: "2018-11-04T00:30"}, ""},
		"the first year":              {filter{Since: "2000-01-01"}, ""},
		"the last year":               {filter{Until: "2999-12-31T23:59"}, ""},
		"a word":                      {filter{Since: "yesterday"}, "since"},
		"a day that is not":           {filter{Since: "2026-02-30"}, "since"},
		"a month that is not":         {filter{Until: "2026-13-01T00:00"}, "until"},
		"an hour that is not":         {filter{Until: "2026-12-01T24:00"}, "until"},
		"too early":                   {filter{Since: "1999-12-31T23:59"}, "since"},
		"too late":                    {filter{Until: "3000-01-01"}, "until"},
		"five digits":                 {filter{Until: "20260-01-01"}, "until"},
		"a zone":                      {filter{Since: "2026-07-04T10:20Z"}, "since"},
		"SQL":                         {filter{Until: "2026-07-04' or '1'='1"}, "until"},
		"a NUL":                       {filter{Since: "2026-07-04\x00"}, "since"},
		"a cursor":                    {filter{Before: "mk2_" + id}, ""},
		"a cursor of the epoch":       {filter{Before: "0_" + id}, ""},
		"half a cursor":               {filter{Before: "mk2_"}, "before"},
		"the other half":              {filter{Before: "_" + id}, "before"},
		"no underscore":               {filter{Before: id}, "before"},
		"no number":                   {filter{Before: "!!_" + id}, "before"},
		"a negative instant":          {filter{Before: "-1_" + id}, "before"},
		"an instant in year 30000":    {filter{Before: "zzzzzzzzzzz_" + id}, "before"},
		"more than 64 bits":           {filter{Before: strings.Repeat("z", 40) + "_" + id}, "before"},
		"an id that is none":          {filter{Before: "mk2_0190b4a8"}, "before"},
		"two faults, the first":       {filter{Since: "x", Before: "y"}, "since"},
	} {
		_, err := tt.filter.forStore(zoneOf("America/Sao_Paulo"))
		field, isField := errors.AsType[*bus.FieldError](err)
		switch {
		case tt.field == "" && err != nil:
			t.Errorf("%s: error = %v, want none", name, err)
		case tt.field != "" && (!isField || field.Field != tt.field):
			t.Errorf("%s: error = %v, want one that names %s", name, err, tt.field)
		case isField && strings.Contains(field.Error(), "or '1'"):
			t.Errorf("%s: the error repeats the value: %v", name, err)
		}
	}
}

// Whatever stands in an address: no panic, and what is taken fits Postgres.
func FuzzFilter(f *testing.F) {
	for _, seed := range []string{
		"", "event_type=message.received&since=2026-07-04T10:20", "before=mk2_0190b4a8-0000-7000-8000-000000000001", "since=%00&until=%ff",
		"event_type=%27;drop table users;--", "a;b&%zz", "before=_", "organization=all&before=&before=x",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		q, _ := url.ParseQuery(query) // what could be read of it
		wanted := filterOf(q)
		got, err := wanted.forStore(time.UTC)
		if _, ok := errors.AsType[*bus.FieldError](err); err != nil && !ok {
			t.Fatalf("error = %v, want one that names a field", err)
		}
		if err != nil {
			return
		}
		for name, at := range map[string]*time.Time{"since": got.Since, "until": got.Until, "before": got.BeforeAt} {
			if at != nil && (at.Year() < 1969 || at.Year() > 3000) {
				t.Errorf("%s = %v, which no list has", name, at)
			}
		}
		if again := filterOf(mustQuery(t, wanted.query())); again != wanted {
			t.Errorf("filter %+v came back as %+v", wanted, again)
		}
	})
}

func mustQuery(t *testing.T, query string) url.Values {
	t.Helper()
	q, err := url.ParseQuery(query)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestALinkNeverLeadsOutOfTheConsole(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{
		"/admin/dlq":                           "/admin/dlq",
		"/admin/dlq?event_type=a&since=2026":   "/admin/dlq?event_type=a&since=2026",
		"/admin/dlq/0190b4a8#payload":          "/admin/dlq/0190b4a8",
		"/admin/dlq?next=https://evil.example": "/admin/dlq?next=https://evil.example",
		"":                                     "/admin/",
		"/":                                    "/admin/",
		"/admin":                               "/admin/",
		"/administrator":                       "/admin/",
		"dlq":                                  "/admin/",
		"admin/dlq":                            "/admin/",
		"https://evil.example/admin/":          "/admin/",
		"//evil.example/admin/":                "/admin/",
		"///evil.example/admin/":               "/admin/",
		"/\\evil.example/admin/":               "/admin/",
		"\\\\evil.example/admin/":              "/admin/",
		"/admin/\\evil":                        "/admin/",
		"http:/admin/":                         "/admin/",
		"javascript:alert(1)//admin/":          "/admin/",
		"data:text/html,/admin/":               "/admin/",
		"//user@evil.example/admin/":           "/admin/",
		"/admin/../../evil":                    "/admin/",
		"/admin/%2e%2e/v1/events":              "/admin/",
		"/admin/%2E%2E%2Fv1":                   "/admin/",
		"/admin/\r\nSet-Cookie: a=b":           "/admin/",
		"/admin/\tx":                           "/admin/",
		"/admin/\x00":                          "/admin/",
		" /admin/":                             "/admin/",
		"/v1/events":                           "/admin/",
		"/admin/%zz":                           "/admin/",
		"?next=/admin/":                        "/admin/",
		"/admin/dlq?a=%0d%0aSet-Cookie:%20evil=1": "/admin/dlq?a=%0d%0aSet-Cookie:%20evil=1",
	} {
		if got := localPage(target); got != want {
			t.Errorf("localPage(%q) = %q, want %q", target, got, want)
		}
	}
}

func FuzzLocalPage(f *testing.F) {
	for _, seed := range []string{"/admin/dlq", "//evil/admin/", "/admin/..", "/admin//x", "/\\evil", "/admin/%5c%5cevil", "https:/admin/"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, target string) {
		got := localPage(target)
		u, err := url.Parse(got)
		if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(got, "/admin/") || strings.ContainsAny(got, "\\\r\n\t\x00 ") {
			t.Errorf("localPage(%q) = %q", target, got)
		}
	})
}
