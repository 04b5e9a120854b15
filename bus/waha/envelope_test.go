package waha

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestParseEnvelopeReadsTheWholeFrame(t *testing.T) {
	t.Parallel()
	env, err := ParseEnvelope(sample(t, "message.gows.text-dm-phone"))
	if err != nil {
		t.Fatal(err)
	}
	payload := env.Payload
	env.Payload = nil
	want := Envelope{
		ID: "evt_01kwpkgv6f5mzkq9bssdhdm3gx", Event: "message", Session: "org_ipe_01", Engine: EngineGOWS,
		Timestamp: time.UnixMilli(1783170100431).UTC(),
		Me:        Account{Phone: "+5511900000001", LID: "100000000000001", PushName: "Loja Ipê"},
	}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Errorf("ParseEnvelope() differs (-want +got):\n%s", diff)
	}
	if !strings.Contains(string(payload), "a blusa azul") || !json.Valid(payload) {
		t.Errorf("Payload = %s, want the sample's", payload)
	}
}

func TestParseEnvelopeRefusesOnlyWhatHasNoEvent(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		body string
		want error
	}{
		"nothing":                  {``, ErrNotJSON},
		"text":                     {`event=message`, ErrNotJSON},
		"half an object":           {`{"event":"message"`, ErrNotJSON},
		"two objects":              {`{"event":"a"}{"event":"b"}`, ErrNotJSON},
		"a list":                   {`[{"event":"message"}]`, violation("", RuleObject)},
		"null":                     {`null`, violation("", RuleObject)},
		"an object without event":  {`{"session":"s"}`, violation("/event", RuleRequired)},
		"an empty event":           {`{"event":""}`, violation("/event", RuleRequired)},
		"a null event":             {`{"event":null}`, violation("/event", RuleRequired)},
		"an event in another case": {`{"Event":"message"}`, violation("/event", RuleRequired)},
		"an event that is no text": {`{"event":{"name":"message"}}`, violation("/event", RuleString)},
		"an endless event":         {`{"event":"` + strings.Repeat("a", 129) + `"}`, violation("/event", RuleMaxLength)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseEnvelope([]byte(tt.body))
			if want, ok := errors.AsType[*ContractError](tt.want); ok {
				got, _ := errors.AsType[*ContractError](err)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("ParseEnvelope() error differs (-want +got):\n%s", diff)
				}
			} else if !errors.Is(err, tt.want) {
				t.Errorf("ParseEnvelope() error = %v, want %v", err, tt.want)
			}
		})
	}
}

func TestParseEnvelopeForgivesEverythingElse(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"a":[`, 4900) + strings.Repeat(`]}`, 4900)
	env, err := ParseEnvelope([]byte(`{"event":"brand.new","id":42,"timestamp":"1783170000431.7","session":["s"],` +
		`"me":"nobody","engine":null,"environment":{"engine":"noweb"},"later":` + deep + `}`))
	if err != nil {
		t.Fatalf("ParseEnvelope() error = %v", err)
	}
	want := Envelope{
		ID: "42", Event: "brand.new", Engine: EngineNOWEB,
		Timestamp: time.UnixMilli(1783170000432).UTC(),
	}
	if diff := cmp.Diff(want, env); diff != "" {
		t.Errorf("ParseEnvelope() differs (-want +got):\n%s", diff)
	}
}

func TestAccountIsReadByTheSuffixOfEachAddress(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		me   string
		want Account
	}{
		"of a LID with the phone in jid": {
			`{"id":"100000000000001@lid","jid":"5511900000001:12@s.whatsapp.net","pushName":"Loja"}`,
			Account{Phone: "+5511900000001", LID: "100000000000001", PushName: "Loja"},
		},
		"of a phone alone": {`{"id":"5511900000001@c.us"}`, Account{Phone: "+5511900000001"}},
		"of nobody":        {`null`, Account{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, err := ParseEnvelope([]byte(`{"event":"e","me":` + tt.me + `}`))
			if err != nil || env.Me != tt.want {
				t.Errorf("Me = %+v, %v; want %+v", env.Me, err, tt.want)
			}
		})
	}
}

func TestDedupeKeyPrefersTheEventAndStaysIndexable(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 1<<20)
	tests := map[string]struct {
		id, request, want string
	}{
		"the event id":                         {"evt_1", "req_1", "evt_1"},
		"the request id of an old version":     {"", "req_1", "req_1"},
		"nothing":                              {"", "", ""},
		"a digest of an endless id":            {long, "", "sha256:"},
		"a digest of a header that is no text": {"", "a\xff", "sha256:"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Envelope{ID: tt.id}.DedupeKey(tt.request)
			if tt.want == "sha256:" {
				if !strings.HasPrefix(got, "sha256:") || len(got) != len("sha256:")+64 {
					t.Errorf("DedupeKey() = %q, want a digest", got)
				}
			} else if got != tt.want {
				t.Errorf("DedupeKey() = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestPayloadIsFitForTheDatabase(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ in, want string }{
		"NUL is removed":                      {`"a\u0000b"`, `"ab"`},
		"NUL in a name is removed":            {`{"a\u0000":1}`, `{"a":1}`},
		"an escaped backslash is no NUL":      {`"a\\u0000b"`, `"a\\u0000b"`},
		"a pair of surrogates stays":          {`"\ud83d\ude00"`, `"\ud83d\ude00"`},
		"a lone first half is replaced":       {`"\ud83dx"`, `"\ufffdx"`},
		"a lone second half is replaced":      {`"\ude00"`, `"\ufffd"`},
		"halves around a NUL do not meet":     {`"\ud83d\u0000\ude00"`, `"\ufffd\ufffd"`},
		"bytes that are no text are replaced": {"\"a\xffb\"", `"a` + "\uFFFD" + `b"`},
		"other escapes stay":                  {`"\n\"\u00e9\/"`, `"\n\"\u00e9\/"`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, err := ParseEnvelope([]byte(`{"event":"e","payload":` + tt.in + `}`))
			if err != nil || string(env.Payload) != tt.want {
				t.Errorf("Payload of %s = %s, %v; want %s", tt.in, env.Payload, err, tt.want)
			}
		})
	}
}

func TestStorableChangesNothingButNUL(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		text := strings.Join(rapid.SliceOf(rapid.SampledFrom([]string{
			"\x00", `\`, "u0000", `"`, "é", "😀", "\n", "x", "\x1f", "\u2028", "<",
		})).Draw(rt, "parts"), "")
		encoded, err := json.Marshal(text)
		if err != nil {
			rt.Fatal(err)
		}
		var got string
		if err := json.Unmarshal(storable(encoded), &got); err != nil {
			rt.Fatalf("storable(%s) = %s is not JSON: %v", encoded, storable(encoded), err)
		}
		if want := strings.ReplaceAll(text, "\x00", ""); got != want {
			rt.Errorf("storable text = %q, want %q", got, want)
		}
	})
}
