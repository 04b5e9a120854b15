package waha

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var ana = Identity{ID: "5511900000101@c.us", Kind: ChatPhone, Phone: "+5511900000101"}

// built is when the events of these tests were built by the gateway.
var built = time.UnixMilli(1783170000431).UTC()

func TestAckLevels(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		fields string
		want   Update
	}{
		"a failure":               {`"ack":-1`, Ack{Level: AckError, Status: StatusFailed}},
		"a pending one":           {`"ack":0`, Ack{Level: AckPending, Status: StatusSending}},
		"one by its name":         {`"ack":null,"ackName":"DEVICE"`, Ack{Level: AckDevice, Status: StatusDelivered}},
		"one as text":             {`"ack":"1"`, Ack{Level: AckServer, Status: StatusSent}},
		"a played one":            {`"ack":4,"ackName":"PLAYED"`, Ack{Level: AckPlayed, Status: StatusRead}},
		"one with a participant":  {`"ack":3,"participant":"5511900000101:3@s.whatsapp.net"`, Ack{Level: AckRead, Status: StatusRead, Participant: ana.ID}},
		"a level to come":         {`"ack":5`, Ignored{Reason: ReasonUnknownAck}},
		"a level out of mind":     {`"ack":-2`, Ignored{Reason: ReasonUnknownAck}},
		"a level by another name": {`"ackName":"ARCHIVED"`, Ignored{Reason: ReasonUnknownAck}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if ack, ok := tt.want.(Ack); ok {
				ack.ID, ack.Chat, ack.At = "3EB0A", ana, built
				tt.want = ack
			}
			u := normalised(t, dm(t, "message.ack", "NOWEB", tt.fields))
			if diff := cmp.Diff(tt.want, u); diff != "" {
				t.Errorf("Normalise() differs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestReceiptNamesTheCustomerUnlessTheAccountWroteIt covers SenderAlt of GOWS
// receipts, which is the account's when its own phone read the message.
func TestReceiptNamesTheCustomerUnlessTheAccountWroteIt(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ data, lid string }{
		"the customer":                     {`{"IsFromMe":false,"SenderAlt":"200000000000101@lid"}`, "200000000000101"},
		"the account":                      {`{"IsFromMe":true,"SenderAlt":"300000000000104@lid"}`, ""},
		"the account, telling the other":   {`{"IsFromMe":true,"SenderAlt":"300000000000104@lid","RecipientAlt":"200000000000101@lid"}`, "200000000000101"},
		"the account, said to be customer": {`{"IsFromMe":false,"SenderAlt":"100000000000001@lid"}`, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := normalised(t, dm(t, "message.ack", "GOWS", `"ack":3,"_data":`+tt.data))
			if ack, ok := u.(Ack); !ok || ack.Chat.LID != tt.lid || ack.Chat.ID != ana.ID {
				t.Errorf("Normalise() = %+v, want the LID %q", u, tt.lid)
			}
		})
	}
}

func TestReceiptSaysWhenItWasWritten(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		timestamp string
		want      time.Time
	}{
		"by its own clock":       {"2026-07-04T09:59:30-03:00", time.Date(2026, 7, 4, 12, 59, 30, 0, time.UTC)},
		"by a clock of the past": {"0001-01-01T00:00:00Z", built},
		"by a clock to come":     {"2027-01-01T00:00:00Z", built},
		"not at all":             {"", built},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := normalised(t, dm(t, "message.ack", "GOWS", `"ack":3,"_data":{"Timestamp":"`+tt.timestamp+`"}`))
			if ack, ok := u.(Ack); !ok || !ack.At.Equal(tt.want) {
				t.Errorf("Normalise() = %+v, want At %s", u, tt.want)
			}
		})
	}
}

func TestGroupAckIsIgnoredUnderEitherName(t *testing.T) {
	t.Parallel()
	const fields = `{"id":"true_120363000000000001@g.us_3EB0A_5511900000001@c.us","from":"120363000000000001@g.us",` +
		`"to":"5511900000001@c.us","fromMe":true,"ack":3}`
	for _, name := range []string{"message.ack", "message.ack.group"} {
		u := normalised(t, event(t, name, "WEBJS", fields))
		if want := (Ignored{Reason: ReasonGroupMessage}); u != want {
			t.Errorf("Normalise() of %s = %+v, want %+v", name, u, want)
		}
	}
}

func TestEditNeverBlanksAText(t *testing.T) {
	t.Parallel()
	sent := time.Unix(1783170000, 0).UTC()
	sealed := `"_data":{"message":{"secretEncryptedMessage":{"secretEncType":"MESSAGE_EDIT","targetMessageKey":{"id":"3EB0T"}}}}`
	proto := `"_data":{"message":{"protocolMessage":{"type":"MESSAGE_EDIT","key":{"id":"3EB0T"},"editedMessage":{"extendedTextMessage":{"text":"novo"}}}}}`
	tests := map[string]struct {
		event, engine, fields string
		want                  Update
	}{
		"with its text":               {"message.edited", "GOWS", `"body":"novo","editedMessageId":"3EB0T"`, Edit{TargetID: "3EB0T", Body: "novo", At: sent}},
		"by a composite id":           {"message.edited", "GOWS", `"body":"novo","editedMessageId":"false_200000000000101@lid_3EB0T"`, Edit{TargetID: "3EB0T", Body: "novo", At: sent}},
		"with its text in the raw":    {"message.edited", "NOWEB", `"body":null,` + proto, Edit{TargetID: "3EB0T", Body: "novo", At: sent}},
		"sealed":                      {"message.edited", "GOWS", `"body":"","editedMessageId":"3EB0T"`, Edit{TargetID: "3EB0T", Empty: true, At: sent}},
		"sealed without a target":     {"message.edited", "GOWS", `"body":""`, Ignored{Reason: ReasonSealed}},
		"of a browser, by its own id": {"message.edited", "WEBJS", `"body":"","_data":{"message":{"type":"chat"},"newBody":"novo"}`, Edit{TargetID: "3EB0A", Body: "novo", At: built}},
		"as a message":                {"message.any", "NOWEB", `"body":null,` + proto, Edit{TargetID: "3EB0T", Body: "novo", At: sent}},
		"sealed, as a message":        {"message.any", "NOWEB", `"body":null,` + sealed, Edit{TargetID: "3EB0T", Empty: true, At: sent}},
		"from us":                     {"message.edited", "GOWS", `"fromMe":true,"source":"api","body":"novo","editedMessageId":"3EB0T"`, Edit{TargetID: "3EB0T", Body: "novo", FromMe: true, Source: SourceAPI, At: sent}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if edit, ok := tt.want.(Edit); ok {
				edit.ID, edit.Chat = "3EB0A", ana
				tt.want = edit
			}
			u := normalised(t, dm(t, tt.event, tt.engine, tt.fields))
			if diff := cmp.Diff(tt.want, u); diff != "" {
				t.Errorf("Normalise() differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRevokeFindsItsTargetOrDeletesNothing(t *testing.T) {
	t.Parallel()
	const after = `"id":"false_5511900000101@c.us_3EB0A","from":"5511900000101@c.us","fromMe":false,"timestamp":1783170000`
	const before = `"before":{"id":"false_5511900000101@c.us_3EB0T","from":"5511900000101@c.us","fromMe":false}`
	const proto = `{"Message":{"protocolMessage":{"type":0,"key":{"ID":"3EB0T"}}}}`
	revoked := Revoke{TargetID: "3EB0T", Chat: ana, At: time.Unix(1783170000, 0).UTC()}
	browser := revoked
	browser.At = built
	bare := browser
	bare.At = built
	tests := map[string]struct {
		engine, payload string
		want            Update
	}{
		"named":                      {"GOWS", `{"after":{` + after + `},"revokedMessageId":"3EB0T"}`, revoked},
		"named in full":              {"GOWS", `{"after":{` + after + `},"revokedMessageId":"true_x@c.us_3EB0T"}`, revoked},
		"in the raw data":            {"GOWS", `{"after":{` + after + `},"_data":` + proto + `}`, revoked},
		"in the raw data of after":   {"GOWS", `{"after":{` + after + `,"_data":` + proto + `}}`, revoked},
		"in the key of the browser":  {"WEBJS", `{"after":{` + after + `,"_data":{"protocolMessageKey":{"id":"3EB0T"}}}}`, browser},
		"in before":                  {"WEBJS", `{"after":{` + after + `},` + before + `}`, browser},
		"in before alone":            {"WEBJS", `{` + before + `,"revokedMessageId":"3EB0T"}`, bare},
		"nowhere":                    {"WEBJS", `{"after":{` + after + `},"before":null}`, Ignored{Reason: ReasonUnmatchedRevoke}},
		"in a before that repeats":   {"WEBJS", `{"after":{` + after + `},"before":{` + after + `}}`, Ignored{Reason: ReasonUnmatchedRevoke}},
		"in a group":                 {"GOWS", `{"after":{"id":"A","from":"1@g.us","fromMe":false},"revokedMessageId":"3EB0T"}`, Ignored{Reason: ReasonGroupMessage}},
		"in a group, without the id": {"GOWS", `{"after":{"from":"1@g.us"}}`, Ignored{Reason: ReasonGroupMessage}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := normalised(t, event(t, "message.revoked", tt.engine, tt.payload))
			if diff := cmp.Diff(tt.want, u); diff != "" {
				t.Errorf("Normalise() differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRevokeAsMessageIsARevoke(t *testing.T) {
	t.Parallel()
	u := normalised(t, dm(t, "message.any", "NOWEB", `"_data":{"message":{"protocolMessage":{"type":"REVOKE","key":{"id":"3EB0T"}}}}`))
	want := Revoke{TargetID: "3EB0T", Chat: ana, At: time.Unix(1783170000, 0).UTC()}
	if diff := cmp.Diff(Update(want), u); diff != "" {
		t.Errorf("Normalise() differs (-want +got):\n%s", diff)
	}
}

func TestReactionTellsWhoReactedAndToWhat(t *testing.T) {
	t.Parallel()
	account := Identity{ID: "5511900000001@c.us", Kind: ChatPhone, Phone: "+5511900000001", LID: "100000000000001"}
	tests := map[string]struct {
		fields string
		want   Reaction
	}{
		"the customer, to a wrong prefix": {`"reaction":{"text":"❤️","messageId":"false_200000000000101@lid_3EB0T"}`, Reaction{Reactor: ana, Emoji: "❤️"}},
		"the customer, taking it back":    {`"reaction":{"text":"","messageId":"3EB0T"}`, Reaction{Reactor: ana, Removed: true}},
		"the customer, with no text":      {`"reaction":{"text":null,"messageId":"3EB0T"}`, Reaction{Reactor: ana, Removed: true}},
		"the account":                     {`"fromMe":true,"reaction":{"text":"✅","messageId":"3EB0T"}`, Reaction{Reactor: account, FromMe: true, Emoji: "✅"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tt.want.ID, tt.want.TargetID, tt.want.Chat = "3EB0A", "3EB0T", ana
			tt.want.At = time.Unix(1783170000, 0).UTC()
			u := normalised(t, dm(t, "message.reaction", "GOWS", tt.fields))
			if diff := cmp.Diff(Update(tt.want), u); diff != "" {
				t.Errorf("Normalise() differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSessionStatusKnowsSevenStates(t *testing.T) {
	t.Parallel()
	account := Account{Phone: "+5511900000001", LID: "100000000000001", PushName: "Loja Ipê"}
	for _, state := range []SessionState{
		SessionStopped, SessionStarting, SessionScanQRCode, SessionPasskeyRequired,
		SessionPasskeyConfirmationRequired, SessionWorking, SessionFailed,
	} {
		u := normalised(t, event(t, "session.status", "GOWS", object{
			"status": state, "statuses": []any{
				object{"status": state, "timestamp": 1783100000000},
				object{"status": state, "timestamp": 1783160000000},
				object{"status": "OTHER", "timestamp": 1783165000000},
			},
		}))
		want := SessionStatus{Session: "s", State: state, Me: account, At: time.Unix(1783160000, 0).UTC()}
		if diff := cmp.Diff(Update(want), u); diff != "" {
			t.Errorf("Normalise() differs (-want +got):\n%s", diff)
		}
	}
	u := normalised(t, event(t, "session.status", "GOWS", object{"status": "HIBERNATING"}))
	if want := (Ignored{Reason: ReasonUnknownStatus}); u != want {
		t.Errorf("Normalise() = %+v, want %+v", u, want)
	}
}

func TestSessionStatusFallsBackOnItsPayload(t *testing.T) {
	t.Parallel()
	u := normalised(t, []byte(`{"event":"session.status","payload":{"name":"org","status":"working","me":{"id":"5511900000001@c.us"}}}`))
	want := SessionStatus{Session: "org", State: SessionWorking, Me: Account{Phone: "+5511900000001"}}
	if diff := cmp.Diff(Update(want), u); diff != "" {
		t.Errorf("Normalise() differs (-want +got):\n%s", diff)
	}
}
