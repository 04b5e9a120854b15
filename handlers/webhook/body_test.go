package webhook

import (
	"encoding/json"
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

func encodeBody(t *testing.T, payload string, lead *Lead, contact *Contact) string {
	t.Helper()
	body, err := Body{
		EventType:  "lead.created",
		OccurredAt: time.Unix(vectorTime, 0),
		HappenedAt: time.Unix(vectorTime-3*3600, 0),
		DeliveryID: uuid.MustParse(vectorDelivery),
		Payload:    json.RawMessage(payload),
		Lead:       lead,
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
	if got, want := encodeBody(t, `{"lead":{"id":"lead-1"}}`, nil, nil), vectorBody; got != want {
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
		if got := dataOf(t, encodeBody(t, payload, nil, nil)); got != payload {
			t.Errorf("data =\n%.120s, want\n%.120s", got, payload)
		}
	}
}

func TestTheBodyIsOneLine(t *testing.T) {
	t.Parallel()
	got := dataOf(t, encodeBody(t, "{\n\t\"a\" : 1.50 ,\r\n \"b\" : [ ]\n}\n", nil, nil))
	if want := `{"a":1.50,"b":[]}`; got != want {
		t.Errorf("data = %q, want %q", got, want)
	}
}

func TestProjectionsStandBehindThePayload(t *testing.T) {
	t.Parallel()
	lead := &Lead{
		ID: uuid.MustParse("44444444-4444-4444-8444-444444444444"), Title: "T", Status: "open", ValueCents: new(int64(9007199254740993)),
		CreatedAt: time.Unix(vectorTime, 0),
	}
	const leadJSON = `"lead":{"id":"44444444-4444-4444-8444-444444444444","title":"T","status":"open",` +
		`"pipeline_id":"00000000-0000-0000-0000-000000000000","stage_id":"00000000-0000-0000-0000-000000000000",` +
		`"value_cents":9007199254740993,"currency":null,"tags":[],"custom_fields":{},"won_reason":null,"source":null,` +
		`"created_at":"2026-01-01T00:00:00.000Z"}`
	for name, tt := range map[string]struct {
		payload string
		lead    *Lead
		contact *Contact
		want    string
	}{
		"both":                    {`{"z":1}`, lead, vectorContact(), `{"z":1,` + leadJSON + `,` + contactJSON + `}`},
		"empty payload":           {`{}`, nil, vectorContact(), `{` + contactJSON + `}`},
		"empty payload, spaced":   {`{ }`, nil, vectorContact(), `{` + contactJSON + `}`},
		"no payload":              {``, nil, vectorContact(), `{` + contactJSON + `}`},
		"null payload":            {`null`, nil, vectorContact(), `{` + contactJSON + `}`},
		"payload has the key":     {`{"contact":null}`, nil, vectorContact(), `{"contact":null}`},
		"payload has one of two":  {`{"lead":7}`, lead, vectorContact(), `{"lead":7,` + contactJSON + `}`},
		"key in another spelling": {`{"\u0063ontact":7}`, nil, vectorContact(), `{"\u0063ontact":7}`},
		"key further inside":      {`{"a":{"contact":7}}`, nil, vectorContact(), `{"a":{"contact":7},` + contactJSON + `}`},
		"key as a value":          {`{"a":"contact"}`, nil, vectorContact(), `{"a":"contact",` + contactJSON + `}`},
	} {
		if got := dataOf(t, encodeBody(t, tt.payload, tt.lead, tt.contact)); got != tt.want {
			t.Errorf("%s: data =\n%s, want\n%s", name, got, tt.want)
		}
	}
}

func TestProjectionsHaveThePublicFieldsOnly(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		value any
		want  string
	}{
		"lead":    {Lead{}, "id title status pipeline_id stage_id value_cents currency tags custom_fields won_reason source created_at"},
		"contact": {Contact{}, "id name display_name email phone_number tags created_at"},
	} {
		text, err := json.Marshal(tt.value)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := topLevelKeys(text)
		if err != nil {
			t.Fatal(err)
		}
		want := strings.Fields(tt.want)
		if len(keys) != len(want) {
			t.Errorf("%s has the fields %v, want %v", name, keys, want)
		}
		for _, key := range want {
			if !keys[key] {
				t.Errorf("%s lacks %s", name, key)
			}
		}
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
