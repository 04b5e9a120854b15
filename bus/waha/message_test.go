package waha

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestOperatorsNameIsNeverTheCustomers(t *testing.T) {
	t.Parallel()
	own := []string{
		"message-any.gows.from-me-phone", "message-any.gows.from-me-api",
		"message-any.noweb.from-me-api", "message-any.webjs.from-me",
	}
	for _, name := range own {
		body := sample(t, name)
		m := messageOf(t, normalised(t, body))
		if m.Direction != Outbound || m.PushName != "" {
			t.Errorf("%s: direction = %s, name = %q; want outbound without a name", name, m.Direction, m.PushName)
		}
	}
}

func TestNameOfAStrangerIsKeptShortAndOnOneLine(t *testing.T) {
	t.Parallel()
	m := messageOf(t, normalised(t, dm(t, "message", "WEBJS",
		`"body":"oi","_data":{"notifyName":"  Ana\n\u0000\tPrado `+strings.Repeat("é", 200)+`"}`)))
	if want := "Ana  Prado " + strings.Repeat("é", 89); m.PushName != want {
		t.Errorf("PushName = %q, want %q", m.PushName, want)
	}
}

func TestNULReachesNoString(t *testing.T) {
	t.Parallel()
	m := messageOf(t, normalised(t, dm(t, "message", "GOWS",
		`"body":"a\u0000b","media":{"url":"http://x/\u0000f","filename":"\u0000n","mimetype":"image/png"},"vCards":["\u0000c"]`)))
	if m.Body != "ab" || m.Media.URL != "http://x/f" || m.Media.Filename != "n" || m.VCards[0] != "c" {
		t.Errorf("Normalise() = %+v, media %+v; want no NUL", m, m.Media)
	}
}

func TestMessageTimeIsTheFirstThatCanBeBelieved(t *testing.T) {
	t.Parallel()
	received := time.Date(2026, 7, 4, 13, 30, 0, 0, time.UTC)
	const envelope, sent = `"timestamp":1783170000431,`, `2026-07-04T13:00:00`
	tests := map[string]struct{ envelope, payload, want string }{
		"seconds":                   {envelope, `1783170001`, sent[:18] + "1Z"},
		"milliseconds":              {envelope, `1783170001500`, sent[:18] + "1.5Z"},
		"a fraction":                {envelope, `1783170001.853`, sent[:18] + "1.853Z"},
		"text":                      {envelope, `"1783170001"`, sent[:18] + "1Z"},
		"the halves of a long":      {envelope, `{"low":1783170001,"high":0,"unsigned":true}`, sent[:18] + "1Z"},
		"nothing":                   {envelope, `null`, sent + ".431Z"},
		"zero":                      {envelope, `0`, sent + ".431Z"},
		"before WhatsApp":           {envelope, `1199145600`, sent + ".431Z"},
		"the day after tomorrow":    {envelope, `1783350000`, sent + ".431Z"},
		"no number":                 {envelope, `"NaN"`, sent + ".431Z"},
		"an infinite number":        {envelope, `1e400`, sent + ".431Z"},
		"nothing in an old version": {``, `null`, "2026-07-04T13:30:00Z"},
		"two clocks gone mad":       {`"timestamp":99999999999,`, `99999999999`, "2026-07-04T13:30:00Z"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, err := ParseEnvelope([]byte(`{"event":"message",` + tt.envelope +
				`"payload":{"id":"A","from":"5511900000101@c.us","fromMe":false,"body":"oi","timestamp":` + tt.payload + `}}`))
			if err != nil {
				t.Fatal(err)
			}
			env.ReceivedAt = received
			u, err := Normalise(env)
			if err != nil {
				t.Fatal(err)
			}
			if got := messageOf(t, u).SentAt.Format(time.RFC3339Nano); got != tt.want {
				t.Errorf("SentAt = %s, want %s", got, tt.want)
			}
		})
	}
}

func TestQuotedMessageIsFoundInTheRawData(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"of WAHA":           `"replyTo":{"id":"3EB0Q"},"_data":{"quotedStanzaID":"3EB0X"}`,
		"of WAHA, in full":  `"replyTo":{"id":"true_5511900000101@c.us_3EB0Q"}`,
		"of an old version": `"replyTo":"3EB0Q"`,
		"of NOWEB":          `"_data":{"message":{"imageMessage":{"contextInfo":{"stanzaId":"3EB0Q"}}}}`,
		"of a browser":      `"replyTo":null,"_data":{"type":"chat","quotedStanzaID":"3EB0Q"}`,
	}
	for name, fields := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := messageOf(t, normalised(t, dm(t, "message", "", `"body":"oi",`+fields)))
			if got, want := m.ReplyTo, "3EB0Q"; got != want {
				t.Errorf("ReplyTo = %q, want %q", got, want)
			}
		})
	}
}

func TestTimeNobodyKnowsIsZero(t *testing.T) {
	t.Parallel()
	u := normalised(t, []byte(`{"event":"message","payload":{"id":"A","from":"5511900000101@c.us","fromMe":false,"body":"oi"}}`))
	if got := messageOf(t, u).SentAt; !got.IsZero() {
		t.Errorf("SentAt = %s, want zero", got)
	}
}

func TestNumbersAndFlagsAsText(t *testing.T) {
	t.Parallel()
	m := messageOf(t, normalised(t, event(t, "message", "GOWS",
		`{"id":"A","from":"5511900000101@c.us","fromMe":"true","hasMedia":"true","ack":"2","timestamp":"1783170001.5",`+
			`"_data":{"Message":{"documentMessage":{"fileLength":"88012"}}},"media":{"url":"http://x/f"}}`)))
	want := Message{
		ID: "A", FullID: "true_5511900000101@c.us_A", Direction: Outbound, Type: TypeDocument, RawType: "documentMessage",
		Chat:     Identity{ID: "5511900000101@c.us", Kind: ChatPhone, Phone: "+5511900000101"},
		HasMedia: true, Media: &Media{URL: "http://x/f", Size: 88012},
		SentAt: time.UnixMilli(1783170001500).UTC(), Ack: new(AckDevice),
	}
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("Normalise() differs (-want +got):\n%s", diff)
	}
}

func TestEndlessNestingOfUnknownFieldsIsHarmless(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat(`{"ephemeralMessage":{"message":`, 4000) + `{}` + strings.Repeat(`}}`, 4000)
	u := normalised(t, dm(t, "message", "GOWS", `"body":"oi","_data":{"Message":`+deep+`,"later":[[[{}]]]},"later":{"a":[1,{}]}`))
	if m := messageOf(t, u); m.Body != "oi" {
		t.Errorf("Normalise() = %+v, want the text", m)
	}
}

func TestEmptyBodiesAreAlike(t *testing.T) {
	t.Parallel()
	for _, fields := range []string{`"body":null`, `"body":""`, ``, `"body":null,"hasMedia":false,"media":null,"_data":null`} {
		u := normalised(t, dm(t, "message", "NOWEB", fields))
		if want := (Ignored{Reason: ReasonEmpty}); u != want {
			t.Errorf("Normalise() of %s = %+v, want %+v", fields, u, want)
		}
	}
}

func TestNormaliseRefusesWhatItCannotUnderstand(t *testing.T) {
	t.Parallel()
	const chat = `"from":"5511900000101@c.us","fromMe":false,`
	tests := map[string]struct {
		event, payload string
		want           []FieldError
	}{
		"no payload":         {"message", `null`, []FieldError{{"/payload", RuleObject}}},
		"a payload of text":  {"message", `"CONNECTED"`, []FieldError{{"/payload", RuleObject}}},
		"a payload of lists": {"message.ack", `[]`, []FieldError{{"/payload", RuleObject}}},
		"an empty object": {"message.any", `{}`, []FieldError{
			{"/payload/fromMe", RuleRequired}, {"/payload/from", RuleRequired}, {"/payload/id", RuleRequired},
		}},
		"no id":              {"message", `{` + chat + `"body":"oi"}`, []FieldError{{"/payload/id", RuleRequired}}},
		"an id that is none": {"message", `{` + chat + `"id":[1],"body":"oi"}`, []FieldError{{"/payload/id", RuleMessageID}}},
		"half an id":         {"message", `{` + chat + `"id":"false_5511900000101@c.us"}`, []FieldError{{"/payload/id", RuleMessageID}}},
		"wrong types": {"message", `{"id":"A","from":5511900000101,"to":{},"fromMe":7,"body":["x"],"media":"f"}`, []FieldError{
			{"/payload/from", RuleString},
			{"/payload/to", RuleString},
			{"/payload/fromMe", RuleBoolean},
			{"/payload/media", RuleObject},
			{"/payload/body", RuleString},
		}},
		"a media url that is none": {"message", `{` + chat + `"id":"A","media":{"url":{}}}`, []FieldError{{"/payload/media/url", RuleString}}},
		"an ack without level":     {"message.ack", `{` + chat + `"id":"A","ack":null,"ackName":"UNKNOWN"}`, []FieldError{{"/payload/ack", RuleRequired}}},
		"an ack of text":           {"message.ack", `{` + chat + `"id":"A","ack":"READ"}`, []FieldError{{"/payload/ack", RuleNumber}}},
		"an ack without id":        {"message.ack", `{` + chat + `"ack":1}`, []FieldError{{"/payload/id", RuleRequired}}},
		"an edit of an object":     {"message.edited", `{` + chat + `"id":"A","editedMessageId":{"x":1}}`, []FieldError{{"/payload/editedMessageId", RuleMessageID}}},
		"an empty revoke":          {"message.revoked", `{"after":null}`, []FieldError{{"/payload/after", RuleRequired}}},
		"a revoke by text":         {"message.revoked", `{"after":"x"}`, []FieldError{{"/payload/after", RuleObject}}},
		"a revoke of a stranger": {"message.revoked", `{"after":{"id":"A","from":[]},"revokedMessageId":"B"}`, []FieldError{
			{"/payload/after/from", RuleString}, {"/payload/after/fromMe", RuleRequired},
		}},
		"a reaction without one":    {"message.reaction", `{` + chat + `"id":"A"}`, []FieldError{{"/payload/reaction", RuleRequired}}},
		"a reaction to nothing":     {"message.reaction", `{` + chat + `"id":"A","reaction":{"text":1}}`, []FieldError{{"/payload/reaction/messageId", RuleRequired}, {"/payload/reaction/text", RuleString}}},
		"a session without status":  {"session.status", `{"name":"s"}`, []FieldError{{"/payload/status", RuleRequired}}},
		"a session with two states": {"session.status", `{"status":["WORKING"]}`, []FieldError{{"/payload/status", RuleString}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := violations(t, []byte(`{"event":"`+tt.event+`","engine":"GOWS","payload":`+tt.payload+`}`))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("violations differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestContractErrorTellsFieldsAndRulesOnly(t *testing.T) {
	t.Parallel()
	err := &ContractError{Fields: []FieldError{{"/payload/id", RuleRequired}, {"/payload/from", RuleString}}}
	if got, want := err.Error(), "waha body breaks the contract: /payload/id required, /payload/from string"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
}

func TestBrokenStatusPostIsOnlyAStatusPost(t *testing.T) {
	t.Parallel()
	u := normalised(t, event(t, "message", "GOWS", `{"from":"status@broadcast","to":7,"body":[]}`))
	if want := (Ignored{Reason: ReasonStatusBroadcast}); u != want {
		t.Errorf("Normalise() = %+v, want %+v", u, want)
	}
}
