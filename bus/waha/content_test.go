package waha

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestContentIsNamedByTheEngine covers the kind of content, its text and what
// was chosen, for contents of which there is no recorded sample.
func TestContentIsNamedByTheEngine(t *testing.T) {
	t.Parallel()
	type result struct {
		Type              Type
		Raw, Body, Choice string
	}
	proto := func(message string) string { return `"_data":{"Message":` + message + `}` }
	tests := map[string]struct {
		engine, fields string
		want           result
	}{
		"text inside two envelopes": {
			"GOWS", proto(`{"ephemeralMessage":{"message":{"deviceSentMessage":{"message":{"conversation":"oi"}}}}}`),
			result{TypeText, "conversation", "oi", ""},
		},
		"text beside keys that accompany it": {
			"NOWEB", `"_data":{"message":{"messageContextInfo":{},"senderKeyDistributionMessage":{},"conversation":"oi"}}`,
			result{TypeText, "conversation", "oi", ""},
		},
		"a view-once picture that did come": {
			"GOWS", proto(`{"viewOnceMessageV2":{"message":{"imageMessage":{"caption":"veja"}}}}`) + `,"hasMedia":true`,
			result{TypeImage, "imageMessage", "veja", ""},
		},
		"a picture beside an empty text": {
			"NOWEB", `"_data":{"message":{"conversation":"","imageMessage":{"caption":"veja"}}}`, result{TypeImage, "imageMessage", "veja", ""},
		},
		"a round video": {"GOWS", proto(`{"ptvMessage":{}}`), result{TypeVideo, "ptvMessage", "", ""}},
		"a live location": {
			"NOWEB", `"_data":{"message":{"liveLocationMessage":{"caption":"a caminho","degreesLatitude":-23.5,"degreesLongitude":-46.6}}}`,
			result{TypeLocation, "liveLocationMessage", "a caminho", ""},
		},
		"a document in its envelope": {
			"NOWEB", `"_data":{"message":{"documentWithCaptionMessage":{"message":{"documentMessage":{"caption":"nota","fileName":"a.pdf"}}}}}`,
			result{TypeDocument, "documentMessage", "nota", ""},
		},
		"a native-flow answer of NOWEB": {
			"NOWEB", `"_data":{"message":{"interactiveResponseMessage":{"body":{"text":"Pagar"},"nativeFlowResponseMessage":{"paramsJson":"{\"id\":\"pix\"}"}}}}`,
			result{TypeText, "interactiveResponseMessage", "Pagar", "pix"},
		},
		"a native-flow answer without text": {
			"GOWS", proto(`{"interactiveResponseMessage":{"InteractiveResponseMessage":{"NativeFlowResponseMessage":{"paramsJSON":"{\"id\":\"1\",\"title\":\"Sim\"}"}}}}`),
			result{TypeText, "interactiveResponseMessage", "Sim", "1"},
		},
		"a native-flow answer with broken parameters": {
			"GOWS", proto(`{"interactiveResponseMessage":{"body":{"text":"Sim"},"nativeFlowResponseMessage":{"paramsJSON":"{"}}}`),
			result{TypeText, "interactiveResponseMessage", "Sim", ""},
		},
		"a template button": {
			"NOWEB", `"_data":{"message":{"templateButtonReplyMessage":{"selectedId":"7","selectedDisplayText":"Quero"}}}`,
			result{TypeText, "templateButtonReplyMessage", "Quero", "7"},
		},
		"a list answer that WAHA left empty": {
			"GOWS", proto(`{"listResponseMessage":{"title":"Boleto","singleSelectReply":{"selectedRowID":"b"}}}`),
			result{TypeText, "listResponseMessage", "Boleto", "b"},
		},
		"a template": {
			"GOWS", proto(`{"templateMessage":{"Format":{"HydratedFourRowTemplate":{"hydratedContentText":"Olá","hydratedFooterText":"Ipê"}}}}`),
			result{TypeTemplate, "templateMessage", "Olá\nIpê", ""},
		},
		"a carousel": {
			"GOWS", proto(`{"interactiveMessage":{"body":{"text":"Veja"},"InteractiveMessage":{"CarouselMessage":{"cards":[{"body":{"text":"A"}},{"body":{"text":"B"}}]}}}}`),
			result{TypeText, "interactiveMessage", "Veja\nA\nB", ""},
		},
		"a poll": {
			"NOWEB", `"_data":{"message":{"pollCreationMessageV3":{"name":"Dia?","options":[{"optionName":"Seg"},{"optionName":"Ter"}]}}}`,
			result{TypeText, "pollCreationMessageV3", "Dia?\nSeg\nTer", ""},
		},
		"several contacts": {
			"GOWS", proto(`{"contactsArrayMessage":{"contacts":[{"vcard":"BEGIN:VCARD"},{"vcard":"BEGIN:VCARD"}]}}`),
			result{TypeContact, "contactsArrayMessage", "", ""},
		},
		"a browser's contact, whose body is the card": {
			"WEBJS", `"body":"BEGIN:VCARD\nEND:VCARD","_data":{"type":"vcard"}`,
			result{TypeContact, "vcard", "", ""},
		},
		"a browser's location, whose body is its picture": {
			"WEBJS", `"body":"/9j/4AAQ","location":{"latitude":1,"longitude":2,"description":"Loja"},"_data":{"type":"location","body":"/9j/4AAQ"}`,
			result{TypeLocation, "location", "Loja", ""},
		},
		"a browser's picture, whose raw body is its thumbnail": {
			"WEBJS", `"body":"","hasMedia":true,"_data":{"type":"image","body":"/9j/4AAQ"}`,
			result{TypeImage, "image", "", ""},
		},
		"a browser's document with a caption": {
			"WEBJS", `"body":"segue","media":{"url":"http://x/f","filename":"a.pdf"},"_data":{"type":"document"}`,
			result{TypeDocument, "document", "segue", ""},
		},
		"a browser's voice note": {"WEBJS", `"hasMedia":true,"_data":{"type":"ptt"}`, result{TypeAudio, "ptt", "", ""}},
		"an explicit type":       {"", `"type":"ptt","hasMedia":true,"mediaUrl":"http://x/f"`, result{TypeAudio, "ptt", "", ""}},
		"a kind to come, with text": {
			"GOWS", `"body":"oi",` + proto(`{"hologramMessage":{}}`), result{TypeText, "hologramMessage", "oi", ""},
		},
		"a kind to come, without text": {
			"GOWS", proto(`{"zMessage":{},"hologramMessage":{}}`), result{TypeSystem, "hologramMessage", "", ""},
		},
		"a known kind before one to come": {
			"GOWS", proto(`{"aMessage":{},"stickerMessage":{}}`), result{TypeSticker, "stickerMessage", "", ""},
		},
		"a call in a browser's history": {"WEBJS", `"body":"","_data":{"type":"call_log"}`, result{TypeSystem, "call_log", "", ""}},
		"a view-once message that stays on the phone": {
			"GOWS", `"_data":{"IsViewOnce":true,"Message":null}`, result{TypeSystem, RawViewOnce, "", ""},
		},
		"an empty message from an advertisement": {
			"NOWEB", `"_data":{"message":{"extendedTextMessage":{"text":"","contextInfo":{"externalAdReply":{"title":"Promo"}}}}}`,
			result{TypeSystem, RawAdClick, "", ""},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := messageOf(t, normalised(t, dm(t, "message.any", tt.engine, tt.fields)))
			got := result{m.Type, m.RawType, m.Body, m.SelectedID}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("Normalise() differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatIsNoMessageIsIgnoredWithItsReason(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		engine, fields string
		want           Reason
	}{
		"a setting":                 {"NOWEB", `"_data":{"message":{"protocolMessage":{"type":"EPHEMERAL_SETTING","key":{"id":"B"}}}}`, ReasonProtocol},
		"a revoke of nothing":       {"NOWEB", `"_data":{"message":{"protocolMessage":{"type":"REVOKE"}}}`, ReasonProtocol},
		"an action without a type":  {"NOWEB", `"_data":{"message":{"protocolMessage":{"key":{"id":"B"}}}}`, ReasonProtocol},
		"a key of a group":          {"NOWEB", `"_data":{"message":{"senderKeyDistributionMessage":{},"messageContextInfo":{}}}`, ReasonProtocol},
		"a notice of a browser":     {"WEBJS", `"body":"","_data":{"type":"e2e_notification"}`, ReasonProtocol},
		"a reaction":                {"NOWEB", `"_data":{"message":{"reactionMessage":{"text":"x"}}}`, ReasonReactionInMessage},
		"a vote":                    {"GOWS", `"_data":{"Message":{"pollUpdateMessage":{}}}`, ReasonPoll},
		"an album":                  {"NOWEB", `"_data":{"message":{"albumMessage":{"expectedImageCount":3}}}`, ReasonAlbum},
		"an answer to an event":     {"GOWS", `"_data":{"Message":{"encEventResponseMessage":{}}}`, ReasonEventResponse},
		"a sealed thing":            {"NOWEB", `"_data":{"message":{"secretEncryptedMessage":{"secretEncType":"EVENT_EDIT","targetMessageKey":{"id":"B"}}}}`, ReasonSealed},
		"a sealed edit of nothing":  {"NOWEB", `"_data":{"message":{"secretEncryptedMessage":{"secretEncType":2}}}`, ReasonSealed},
		"a text not decrypted":      {"WEBJS", `"body":"","_data":{"type":"ciphertext"}`, ReasonWaiting},
		"a message lost on the way": {"NOWEB", `"_data":{"message":null,"messageStubType":2}`, ReasonWaiting},
		"an empty text":             {"GOWS", `"_data":{"Message":{"conversation":""}}`, ReasonEmpty},
		"an explicit type cannot make a message of a setting": {
			"NOWEB", `"type":"chat","body":"x","_data":{"message":{"keepInChatMessage":{}}}`, ReasonProtocol,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := normalised(t, dm(t, "message.any", tt.engine, tt.fields))
			if want := (Ignored{Reason: tt.want}); u != want {
				t.Errorf("Normalise() = %+v, want %+v", u, want)
			}
		})
	}
}

func TestEventsThatAreNoMessagesAreIgnoredWhateverTheyCarry(t *testing.T) {
	t.Parallel()
	tests := map[string]Reason{
		"message.waiting": ReasonWaiting, "presence.update": ReasonPresence, "call.received": ReasonCall,
		"call.accepted": ReasonCall, "call.rejected": ReasonCall, "poll.vote": ReasonPoll, "poll.vote.failed": ReasonPoll,
		"event.response": ReasonEventResponse, "event.response.failed": ReasonEventResponse,
		"chat.archive": ReasonChatArchive, "engine.event": ReasonEngineDebug, "state.change": ReasonDeprecated,
		"group.join": ReasonDeprecated, "group.leave": ReasonDeprecated, "group.v2.join": ReasonGroupChange,
		"group.v2.requests": ReasonGroupChange, "label.upsert": ReasonLabel, "label.chat.added": ReasonLabel,
		"message.pinned": ReasonUnknownEvent, "MESSAGE": ReasonUnknownEvent,
	}
	for name, reason := range tests {
		for _, payload := range []string{`null`, `"CONNECTED"`, `[1]`, `{}`} {
			u := normalised(t, event(t, name, "WEBJS", payload))
			if want := (Ignored{Reason: reason}); u != want {
				t.Errorf("Normalise() of %s %s = %+v, want %+v", name, payload, u, want)
			}
		}
	}
}
