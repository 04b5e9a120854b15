package waha

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestBareIDSurvivesWhateverSurroundsIt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		bare := rapid.StringMatching(`[0-9A-Z]{1,32}`).Draw(rt, "bare")
		chat := rapid.StringMatching(`[0-9]{8,18}@(c\.us|lid|g\.us|newsletter)`).Draw(rt, "chat")
		parts := []string{rapid.SampledFrom([]string{"true", "false"}).Draw(rt, "from me"), chat, bare}
		if rapid.Bool().Draw(rt, "in a group") {
			parts = append(parts, "200000000000102@lid")
		}
		full := strings.Join(parts, "_")
		want := messageID{full: full, bare: bare, chat: chat, direction: parts[0]}
		if got := parseMessageID(full); got != want {
			rt.Errorf("parseMessageID(%q) = %+v, want %+v", full, got, want)
		}
		if got := parseMessageID(bare); got != (messageID{bare: bare}) {
			rt.Errorf("parseMessageID(%q) = %+v, want only the bare id", bare, got)
		}
	})
}

func TestIDsThatIdentifyNothingAreRefused(t *testing.T) {
	t.Parallel()
	for _, id := range []string{
		"", "true", "_", "true_5511900000101@c.us", "true_5511900000101@c.us_", "5511900000101@c.us", "a b", "é",
		"false_5511900000101@c.us_" + strings.Repeat("A", 129), strings.Repeat("A", 129),
	} {
		if got := parseMessageID(id); got.bare != "" && id != "true" {
			t.Errorf("parseMessageID(%.60q) = %+v, want none", id, got)
		}
	}
}

func TestMessageIDIsFoundInEveryDialect(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ message, want string }{
		"WEBJS":                    {`{"id":{"fromMe":true,"remote":"55@c.us","id":"3EB0A","_serialized":"true_55@c.us_3EB0A"}}`, "3EB0A"},
		"WEBJS with the long form": {`{"id":{"_serialized":"true_55@c.us_3EB0A"}}`, "3EB0A"},
		"WEBJS since July 2026":    {`{"id":{"$1":"true_55@c.us_3EB0A"}}`, "3EB0A"},
		"WEBJS in a group":         {`{"id":{"_serialized":"true_1@g.us_3EB0A_55@c.us"}}`, "3EB0A"},
		"NOWEB":                    {`{"key":{"remoteJid":"55@s.whatsapp.net","fromMe":true,"id":"3EB0A"},"status":"PENDING"}`, "3EB0A"},
		"GOWS":                     {`{"id":"true_55@c.us_3EB0A","_data":{"Info":{"ID":"3EB0B"}}}`, "3EB0A"},
		"GOWS with a bare id":      {`{"id":"3EB0A"}`, "3EB0A"},
		"only the raw model":       {`{"_data":{"id":{"id":"3EB0A"}}}`, "3EB0A"},
		"only the raw info":        {`{"_data":{"Info":{"ID":"3EB0A"}}}`, "3EB0A"},
		"an error":                 {`{"statusCode":500}`, ""},
		"no JSON":                  {`<html>`, ""},
		"a list":                   {`["3EB0A"]`, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			message, _ := decodeObject([]byte(tt.message))
			if got := messageIDOf(message).bare; got != tt.want {
				t.Errorf("messageIDOf(%s) = %q, want %q", tt.message, got, tt.want)
			}
		})
	}
}

// TestLostIDsAreRebuilt covers the browser engine that lost its ids (WAHA #2157).
func TestLostIDsAreRebuilt(t *testing.T) {
	t.Parallel()
	const full = "false_200000000000101@lid_3EB0A"
	tests := map[string]struct{ fields, wantFull string }{
		"from the renamed property":    {`"_data":{"id":{"fromMe":false,"remote":"200000000000101@lid","id":"3EB0A","$1":"` + full + `"}}`, full},
		"from an id that is an object": {`"id":{"fromMe":false,"remote":"200000000000101@lid","id":"3EB0A","$1":"` + full + `"}`, full},
		"from the parts of the model":  {`"_data":{"id":{"fromMe":false,"remote":{"_serialized":"200000000000101@lid"},"id":"3EB0A"}}`, full},
		"from a key":                   {`"_data":{"key":{"remoteJid":"200000000000101@lid","fromMe":false,"id":"3EB0A"}}`, full},
		"from the raw info":            {`"from":"200000000000101@lid","_data":{"Info":{"ID":"3EB0A","IsFromMe":false}}`, full},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := messageOf(t, normalised(t, event(t, "message", "WEBJS", `{"body":"oi","from":"200000000000101@lid",`+tt.fields+`}`)))
			if m.ID != "3EB0A" || m.FullID != tt.wantFull || m.Direction != Inbound || m.Chat.ID != "200000000000101@lid" {
				t.Errorf("Normalise() = %+v, want 3EB0A rebuilt", m)
			}
		})
	}
}

func TestOneMessageToldTwiceHasOneID(t *testing.T) {
	t.Parallel()
	a := messageOf(t, normalised(t, sample(t, "message.gows.text-dm-phone")))
	b := messageOf(t, normalised(t, sample(t, "message-any.gows.incoming-duplicate-of-message")))
	if a.ID != b.ID || a.Body != b.Body {
		t.Errorf("message = %s, message.any = %s; want one id", a.ID, b.ID)
	}
	envA, _ := ParseEnvelope(sample(t, "message.gows.text-dm-phone"))
	envB, _ := ParseEnvelope(sample(t, "message-any.gows.incoming-duplicate-of-message"))
	if envA.DedupeKey("") == envB.DedupeKey("") {
		t.Errorf("DedupeKey() = %q for both, want two deliveries", envA.DedupeKey(""))
	}
}
