package admin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func localeOf(t *testing.T, accept string) *locale {
	t.Helper()
	texts, err := newLocales()
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/admin/", http.NoBody)
	if accept != "" {
		r.Header.Set("Accept-Language", accept)
	}
	return texts.of(r)
}

func TestTheBrowserPicksTheLanguage(t *testing.T) {
	t.Parallel()
	for accept, want := range map[string]string{
		"":                             "en",
		"en":                           "en",
		"en-US,en;q=0.9":               "en",
		"en-GB":                        "en",
		"pt":                           "pt-BR",
		"pt-BR":                        "pt-BR",
		"pt-br":                        "pt-BR",
		"pt-PT":                        "pt-BR",
		"pt-BR,pt;q=0.9,en-US;q=0.8":   "pt-BR",
		"en-US,pt-BR;q=0.8":            "en",
		"en;q=0.2,pt-BR;q=0.9":         "pt-BR",
		"de,pt;q=0.5":                  "pt-BR",
		"es":                           "en",
		"es-AR,es;q=0.9":               "en",
		"es,pt;q=0.4,en;q=0.1":         "pt-BR",
		"de":                           "en",
		"ja-JP,zh-Hans;q=0.7":          "en",
		"*":                            "en",
		"pt;q=0":                       "en",
		"%%%":                          "en",
		"; q=, ,":                      "en",
		"\xff\xfe":                     "en",
		"pt-BR;q=nonsense":             "en",
		"x-" + strings.Repeat("a-", 9): "en",
		strings.Repeat("-", 5000):      "en",
	} {
		if got := localeOf(t, accept).Tag; got != want {
			t.Errorf("Accept-Language %.40q: language = %s, want %s", accept, got, want)
		}
	}
}

func TestNumbersAreGroupedAsTheLanguageDoes(t *testing.T) {
	t.Parallel()
	en, pt := localeOf(t, "en"), localeOf(t, "pt")
	for n, want := range map[int]string{
		0: "0", 7: "7", 999: "999", 1000: "1,000", 12345: "12,345", 999999: "999,999", 1000000: "1,000,000",
		-1: "-1", -999: "-999", -1000: "-1,000", -123456: "-123,456",
	} {
		if got := en.number(n); got != want {
			t.Errorf("en: number(%d) = %s, want %s", n, got, want)
		}
		if got, want := pt.number(n), strings.ReplaceAll(want, ",", "."); got != want {
			t.Errorf("pt-BR: number(%d) = %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int]string{0: "0", 9999: "9,999", 10000: "10,000", 10001: "10,000+"} {
		if got := en.capped(n, 10000); got != want {
			t.Errorf("capped(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestSpansAreRoundedDownToTheirLargestUnit(t *testing.T) {
	t.Parallel()
	en, pt := localeOf(t, "en"), localeOf(t, "pt")
	for d, want := range map[time.Duration][2]string{
		0:                                     {"just now", "agora"},
		5*time.Second - 1:                     {"just now", "agora"},
		5 * time.Second:                       {"5 s ago", "há 5 s"},
		59*time.Second + 999*time.Millisecond: {"59 s ago", "há 59 s"},
		time.Minute:                           {"1 min ago", "há 1 min"},
		time.Hour - 1:                         {"59 min ago", "há 59 min"},
		time.Hour:                             {"1 h ago", "há 1 h"},
		48*time.Hour - 1:                      {"47 h ago", "há 47 h"},
		48 * time.Hour:                        {"2 days ago", "há 2 dias"},
		72*time.Hour - 1:                      {"2 days ago", "há 2 dias"},
		1000 * 24 * time.Hour:                 {"1,000 days ago", "há 1.000 dias"},
		-time.Second:                          {"in 1 s", "em 1 s"},
		-90 * time.Second:                     {"in 1 min", "em 1 min"},
		-2 * time.Hour:                        {"in 2 h", "em 2 h"},
		-49 * time.Hour:                       {"in 2 days", "em 2 dias"},
	} {
		if got := [2]string{en.ago(d), pt.ago(d)}; got != want {
			t.Errorf("ago(%v) = %q, want %q", d, got, want)
		}
	}
}

func TestMomentsArePrintedInTheZoneOfTheOrganization(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 7, 4, 2, 5, 6, 789_000_000, time.UTC)
	now := at.Add(90 * time.Minute)
	en := moment{ISO: "2026-07-04T02:05:06Z", Text: "2026-07-03 23:05:06", Ago: "1 h ago", UTC: "2026-07-04 02:05:06.789 UTC"}
	tokyo := en
	tokyo.Text = "2026-07-04 11:05:06"
	pt := en
	pt.Text, pt.Ago = "03/07/2026 23:05:06", "há 1 h"
	for name, tt := range map[string]struct {
		accept string
		at     time.Time
		zone   string
		want   moment
	}{
		"in São Paulo":                        {"en", at, "America/Sao_Paulo", en},
		"in Tokyo":                            {"en", at, "Asia/Tokyo", tokyo},
		"in Portuguese":                       {"pt", at, "America/Sao_Paulo", pt},
		"given in another zone":               {"en", at.In(time.FixedZone("", 3600)), "America/Sao_Paulo", en},
		"where no zone is set":                {"en", at, "", en},
		"where the zone is none":              {"en", at, "Mars/Olympus", en},
		"where the zone is a path":            {"en", at, "../../etc/passwd", en},
		"where the zone is absolute":          {"en", at, "/etc/localtime", en},
		"where the zone is in the wrong case": {"en", at, "asia/tokyo\x00", en},
	} {
		if diff := cmp.Diff(tt.want, localeOf(t, tt.accept).moment(tt.at, now, zoneOf(tt.zone))); diff != "" {
			t.Errorf("a moment %s (-want +got): %s", name, diff)
		}
	}
}
