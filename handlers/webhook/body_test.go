package webhook

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

func vectorContact() *Contact {
	return &Contact{
		ID: uuid.MustParse("33333333-3333-4333-8333-333333333333"), Name: new("Ana <&> Ção"), PhoneNumber: new("+5511999990000"),
		Tags: []string{"vip"}, CreatedAt: time.Date(2026, 1, 1, 9, 30, 0, 123_456_789, time.FixedZone("", -3*3600)),
	}
}

const contactJSON = `"contact":{"id":"33333333-3333-4333-8333-333333333333","name":"Ana <&> Ção","display_name":null,"email":null,` +
	`"phone_number":"+5511999990000","tags":["vip"],"created_at":"2026-01-01T12:30:00.123Z"}`

func encodeBody(t *testing.T, payload string, contact *Contact) string {
	t.Helper()
	body, err := Body{
		EventType:  "lead.created",
		OccurredAt: time.Unix(vectorTime, 0),
		HappenedAt: time.Unix(vectorTime-3*3600, 0),
		DeliveryID: uuid.MustParse(vectorDelivery),
		Payload:    json.RawMessage(payload),
		Contact:    contact,
	}.Encode()
	if err != nil {
		t.Fatalf("Encode: %v", err)
	}
	return string(body)
}

func dataOf(t *testing.T, body string) string {
	t.Helper()
	prefix, _, _ := strings.Cut(vectorBody, `{"lead"`)
	data, ok := strings.CutPrefix(body, prefix)
	if !ok {
		t.Fatalf("Encode = %s, want it to start with %s", body, prefix)
	}
	return strings.TrimSuffix(data, "}")
}

func TestTheBodyMatchesThePublishedVector(t *testing.T) {
	t.Parallel()
	if got, want := encodeBody(t, `{"lead":{"id":"lead-1"}}`, nil), vectorBody; got != want {
		t.Errorf("Encode =\n%s, want\n%s", got, want)
	}
}

func TestThePayloadKeepsItsSpelling(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{
		`{"big":9007199254740993,"dec":12.50,"exp":1e400,"neg":-0,"one":1.0}`,
		`{"html":"<a href='x'>&</a>","line":"\u2028","pair":"\ud83d\ude00","lone":"\ud800","nul":"\u0000","ção":"é"}`,
		`{"b":1,"a":2,"b":3}`,
		`{"deep":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}`,
		`{}`,
	} {
		if got := dataOf(t, encodeBody(t, payload, nil)); got != payload {
			t.Errorf("data =\n%.120s, want\n%.120s", got, payload)
		}
	}
}

func TestTheBodyIsOneLine(t *testing.T) {
	t.Parallel()
	got := dataOf(t, encodeBody(t, "{\n\t\"a\" : 1.50 ,\r\n \"b\" : [ ]\n}\n", nil))
	if want := `{"a":1.50,"b":[]}`; got != want {
		t.Errorf("data = %q, want %q", got, want)
	}
}

func TestTheContactStandsBehindThePayload(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		payload string
		contact *Contact
		want    string
	}{
		"a key before it":         {`{"z":1}`, vectorContact(), `{"z":1,` + contactJSON + `}`},
		"empty payload":           {`{}`, vectorContact(), `{` + contactJSON + `}`},
		"empty payload, spaced":   {`{ }`, vectorContact(), `{` + contactJSON + `}`},
		"no payload":              {``, vectorContact(), `{` + contactJSON + `}`},
		"null payload":            {`null`, vectorContact(), `{` + contactJSON + `}`},
		"payload has the key":     {`{"contact":null}`, vectorContact(), `{"contact":null}`},
		"no contact":              {`{"z":1}`, nil, `{"z":1}`},
		"key in another spelling": {`{"\u0063ontact":7}`, vectorContact(), `{"\u0063ontact":7}`},
		"key further inside":      {`{"a":{"contact":7}}`, vectorContact(), `{"a":{"contact":7},` + contactJSON + `}`},
		"key as a value":          {`{"a":"contact"}`, vectorContact(), `{"a":"contact",` + contactJSON + `}`},
	} {
		if got := dataOf(t, encodeBody(t, tt.payload, tt.contact)); got != tt.want {
			t.Errorf("%s: data =\n%s, want\n%s", name, got, tt.want)
		}
	}
}

func TestTheContactHasThePublicFieldsOnly(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(Contact{})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := topLevelKeys(text)
	if err != nil {
		t.Fatal(err)
	}
	got := slices.Sorted(maps.Keys(keys))
	want := []string{"created_at", "display_name", "email", "id", "name", "phone_number", "tags"}
	if !slices.Equal(got, want) {
		t.Errorf("the contact has the fields %v, want %v", got, want)
	}
}

func TestAPayloadThatIsNoObjectIsAnError(t *testing.T) {
	t.Parallel()
	for _, payload := range []string{
		`[]`, `7`, `"text"`, `true`, `{`, `{"a"}`, `{"a":1}}`, `{"a":1} {"b":2}`, `{"a":01}`, `{"a":1,}`, `{1:2}`, `nul`,
		`{"a":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`,
	} {
		if body, err := (Body{Payload: json.RawMessage(payload)}).Encode(); err == nil {
			t.Errorf("Encode(%.40q) = %s, want an error", payload, body)
		}
	}
}
