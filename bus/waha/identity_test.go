package waha

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestParseAddress(t *testing.T) {
	t.Parallel()
	accepted := map[string]string{
		"5511900000101@c.us":              "5511900000101@c.us",
		"5511900000101@s.whatsapp.net":    "5511900000101@c.us",
		"5511900000001:12@s.whatsapp.net": "5511900000001@c.us",
		"12345678@c.us":                   "12345678@c.us",
		"123456789012345@c.us":            "123456789012345@c.us",
		"200000000000101@lid":             "200000000000101@lid",
		"200000000000101:3@lid":           "200000000000101@lid",
		"120363000000000001@g.us":         "120363000000000001@g.us",
		"5511900000101-1400000000@g.us":   "5511900000101-1400000000@g.us",
		"120363000000000777@newsletter":   "120363000000000777@newsletter",
		"status@broadcast":                "status@broadcast",
		"1400000000@broadcast":            "1400000000@broadcast",
	}
	for raw, want := range accepted {
		if a, ok := ParseAddress(raw); !ok || a.String() != want {
			t.Errorf("ParseAddress(%q) = %q, %t; want %q", raw, a, ok, want)
		}
	}
	refused := []string{
		"", "me", "@c.us", ":1@c.us", "5511900000101", "1234567@c.us", "1234567890123456@c.us",
		"55119x0000101@c.us", "+5511900000101@c.us", "5511900000101@c.us@c.us", "5511900000101@C.US",
		"5511900000101@s.whatsapp.net.example", "5511900000101@hosted", "@lid", "12a@lid",
		strings.Repeat("1", 21) + "@lid", strings.Repeat("1", 125) + "@g.us", strings.Repeat("@", 65536),
	}
	for _, raw := range refused {
		if a, ok := ParseAddress(raw); ok {
			t.Errorf("ParseAddress(%.60q) = %q, want it refused", raw, a)
		}
	}
}

func TestPhoneVariants(t *testing.T) {
	t.Parallel()
	tests := map[string][]string{
		"+5511988887777":   {"+5511988887777", "+551188887777"}, // mobile with the digit
		"+551188887777":    {"+5511988887777", "+551188887777"}, // mobile without it
		"+551168887777":    {"+5511968887777", "+551168887777"},
		"+551158887777":    {"+551158887777"},  // landline
		"+5511958887777":   {"+5511958887777"}, // would be a landline without its nine
		"+551138887777":    {"+551138887777"},  // landline
		"+5511900000101":   {"+5511900000101"}, // nine digits that no old mobile had
		"+5510988887777":   {"+5510988887777"}, // no such area
		"+351912345678":    {"+351912345678"},  // another country
		"+5511":            nil,
		"+55119888877":     {"+55119888877"},
		"5511988887777":    nil,
		"+55119888x7777":   nil,
		"+123456789012345": {"+123456789012345"},
		"":                 nil,
	}
	for phone, want := range tests {
		if diff := cmp.Diff(want, PhoneVariants(phone)); diff != "" {
			t.Errorf("PhoneVariants(%q) differs (-want +got):\n%s", phone, diff)
		}
	}
}

func TestPhoneVariantsAgreeFromEitherForm(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		phone := rapid.StringMatching(`\+(55[1-9][0-9][2-9][0-9]{7,8}|[1-9][0-9]{7,14})`).Draw(rt, "phone")
		all := PhoneVariants(phone)
		found := false
		for _, variant := range all {
			found = found || variant == phone
			if diff := cmp.Diff(all, PhoneVariants(variant)); diff != "" {
				rt.Errorf("PhoneVariants(%q) and of %q differ:\n%s", phone, variant, diff)
			}
		}
		if !found {
			rt.Errorf("PhoneVariants(%q) = %q, want the phone among them", phone, all)
		}
	})
}

// TestCustomerIsNamedByTheOtherAddress covers the pairs of phone and LID, and
// that neither the account's own addresses nor impossible ones are taken.
func TestCustomerIsNamedByTheOtherAddress(t *testing.T) {
	t.Parallel()
	const me = `"me":{"id":"551188887777@c.us","lid":"100000000000001@lid"}`
	tests := map[string]struct {
		engine, payload string
		want            Identity
	}{
		"incoming, GOWS SenderAlt": {
			"GOWS", `"fromMe":false,"from":"200000000000101@lid","_data":{"Info":{"SenderAlt":"5511900000101@s.whatsapp.net"}}`,
			Identity{"200000000000101@lid", ChatLID, "+5511900000101", "200000000000101"},
		},
		"own, GOWS RecipientAlt and not SenderAlt": {
			"GOWS", `"fromMe":true,"from":"200000000000101@lid","_data":{"Info":{"SenderAlt":"5541900000109@s.whatsapp.net"}}`,
			Identity{"200000000000101@lid", ChatLID, "", "200000000000101"},
		},
		"own, NOWEB remoteJidAlt": {
			"NOWEB", `"fromMe":true,"from":"5511900000101@c.us","_data":{"key":{"remoteJidAlt":"200000000000101@lid"}}`,
			Identity{"5511900000101@c.us", ChatPhone, "+5511900000101", "200000000000101"},
		},
		"incoming, NOWEB participantAlt": {
			"NOWEB", `"fromMe":false,"from":"200000000000101@lid","_data":{"key":{"participantAlt":"5511900000101:7@s.whatsapp.net"}}`,
			Identity{"200000000000101@lid", ChatLID, "+5511900000101", "200000000000101"},
		},
		"an alternate that is the account, with the ninth digit": {
			"NOWEB", `"fromMe":true,"from":"200000000000101@lid","_data":{"key":{"remoteJidAlt":"5511988887777@s.whatsapp.net"}}`,
			Identity{"200000000000101@lid", ChatLID, "", "200000000000101"},
		},
		"an alternate that is a group": {
			"NOWEB", `"fromMe":false,"from":"200000000000101@lid","_data":{"key":{"remoteJidAlt":"120363000000000001@g.us"}}`,
			Identity{"200000000000101@lid", ChatLID, "", "200000000000101"},
		},
		"an alternate of too many digits": {
			"NOWEB", `"fromMe":false,"from":"200000000000101@lid","_data":{"key":{"remoteJidAlt":"5511900000101000@c.us"}}`,
			Identity{"200000000000101@lid", ChatLID, "", "200000000000101"},
		},
		"an alternate of the same kind": {
			"NOWEB", `"fromMe":false,"from":"200000000000101@lid","_data":{"key":{"remoteJidAlt":"200000000000102@lid"}}`,
			Identity{"200000000000101@lid", ChatLID, "", "200000000000101"},
		},
		"the account writing to itself": {
			"NOWEB", `"fromMe":true,"from":"551188887777@c.us","_data":{"key":{"remoteJidAlt":"100000000000001@lid"}}`,
			Identity{"551188887777@c.us", ChatPhone, "+551188887777", "100000000000001"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := normalised(t, []byte(`{"event":"message.any","engine":"`+tt.engine+`",`+me+
				`,"payload":{"id":"ABC","body":"oi",`+tt.payload+`}}`))
			if got := messageOf(t, u).Chat; got != tt.want {
				t.Errorf("Chat = %+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestConversationIsFoundInEveryEngine covers `from` and `to`, which change
// places, and the fallbacks when one of them is missing.
func TestConversationIsFoundInEveryEngine(t *testing.T) {
	t.Parallel()
	const account, ana, group = "5511900000001@c.us", "5511900000101@c.us", "120363000000000001@g.us"
	tests := map[string]struct {
		engine, id, from, to string
		fromMe               bool
		want                 string // a chat id or a reason
	}{
		"WEBJS own":                       {"WEBJS", "true_" + ana + "_A", account, ana, true, ana},
		"WEBJS incoming":                  {"WEBJS", "false_" + ana + "_A", ana, account, false, ana},
		"WPP own":                         {"WPP", "A", account, ana, true, ana},
		"GOWS own":                        {"GOWS", "A", ana, "", true, ana},
		"NOWEB own with an odd to":        {"NOWEB", "A", ana, account, true, ana},
		"no engine, own":                  {"", "true_" + ana + "_A", account, ana, true, ana},
		"no engine, own, bare id":         {"", "A", account, ana, true, ana},
		"WEBJS own without to":            {"WEBJS", "true_" + ana + "_A", account, "", true, ana},
		"GOWS own with the account":       {"GOWS", "true_" + ana + "_A", account, "", true, ana},
		"only the id":                     {"GOWS", "false_" + ana + "_A", "", "", false, ana},
		"own group, WEBJS":                {"WEBJS", "A", account, group, true, "group_message"},
		"group in to alone":               {"GOWS", "A", ana, group, false, "group_message"},
		"group in the id alone":           {"WEBJS", "true_" + group + "_A_" + account, account, ana, true, "group_message"},
		"status":                          {"GOWS", "A", "status@broadcast", "", false, "status_broadcast"},
		"broadcast list":                  {"GOWS", "A", "1400000000@broadcast", "", false, "broadcast"},
		"newsletter with a short id":      {"NOWEB", "false_120363000000000777@newsletter_214", "120363000000000777@newsletter", "", false, "newsletter"},
		"an address of a kind to come":    {"GOWS", "A", "5511900000101@hosted", "", false, "chat_id_not_recognized"},
		"the official account of the app": {"GOWS", "A", "0@c.us", "", false, "chat_id_not_recognized"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			payload := object{"id": tt.id, "from": tt.from, "to": tt.to, "fromMe": tt.fromMe, "body": "oi"}
			u := normalised(t, event(t, "message.any", tt.engine, payload))
			got := ""
			switch u := u.(type) {
			case Message:
				got = u.Chat.ID
			case Ignored:
				got = string(u.Reason)
			}
			if got != tt.want {
				t.Errorf("Normalise() = %+v, want %s", u, tt.want)
			}
		})
	}
}

func TestUnknownAddressLeavesOnlyItsSuffix(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"5511900000101@hosted.lid":           "hosted.lid",
		"5511900000101@5511900000101":        "",
		"5511900000101":                      "",
		"a@" + strings.Repeat("b", 33):       "",
		"5511900000101@c.us@ana.prado":       "ana.prado",
		"5511900000101@Ana Prado":            "",
		strings.Repeat("@", 1<<20):           "",
		strings.Repeat("@", 1<<20) + "later": "later",
	}
	for from, want := range tests {
		u := normalised(t, event(t, "message", "GOWS", object{"id": "A", "from": from, "fromMe": true, "body": "oi"}))
		if got := (Ignored{ReasonChatIDNotRecognized, want, Outbound}); u != got {
			t.Errorf("Normalise() of %.40q = %+v, want %+v", from, u, got)
		}
	}
}

// TestAnEndlessAddressDoesNotStall would not end in a lifetime if any reading
// of an address were quadratic.
func TestAnEndlessAddressDoesNotStall(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"@", "_", ":", "1", `\`, "@c.us"} {
		endless := strings.Repeat(part, 1<<19/len(part))
		u := normalised(t, event(t, "message", "GOWS", object{
			"id": "false_" + endless, "from": endless, "to": endless, "fromMe": false, "body": endless,
			"replyTo": object{"id": endless}, "_data": object{
				"Info":           object{"ID": "3EB0A", "Chat": "5511900000101@s.whatsapp.net", "SenderAlt": endless, "PushName": endless},
				"key":            object{"remoteJidAlt": endless, "id": endless},
				"quotedStanzaID": endless,
			},
		}))
		m := messageOf(t, u)
		if m.ID != "3EB0A" || m.Chat.Phone != "+5511900000101" || m.Chat.LID != "" || len(m.PushName) > 400 || m.ReplyTo != "" {
			t.Errorf("Normalise() with endless %q = id %q, chat %+v, reply %.20q", part, m.ID, m.Chat, m.ReplyTo)
		}
	}
}
