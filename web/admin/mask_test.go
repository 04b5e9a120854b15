package admin

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestPersonalDataIsHiddenInText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		// Phones, as WhatsApp, stores and people write them.
		"call 5511987654321 now":        "call ••• now",
		"call +5511987654321":           "call •••",
		"+55 11 98765-4321":             "•••",
		"+55 (11) 98765-4321":           "•••",
		"55 11 98765 4321":              "•••",
		"+55-11-98765-4321":             "•••",
		"551187654321":                  "•••",
		"+55 11 8765-4321":              "•••",
		"(11) 98765-4321":               "•••",
		"(11) 8765-4321":                "•••",
		"11 98765-4321":                 "•••",
		"11 98765 4321":                 "•••",
		"11987654321":                   "•••",
		"011 98765-4321":                "•••",
		"+55 11 9 8765-4321":            "•••",
		"55.11.98765.4321":              "•••",
		"tel:+55-11-98765-4321":         "tel:•••",
		"+1 (555) 123-4567":             "•••",
		"+351 912 345 678":              "•••",
		"+54 9 11 2345-6789":            "•••",
		"11 98765-4321 e 21 91234-5678": "••• e •••",
		// Names of chats.
		"5511987654321@c.us":                            "•••",
		"5511987654321@s.whatsapp.net":                  "•••",
		"5511987654321:12@s.whatsapp.net":               "•••",
		"200000000000102@lid":                           "•••",
		"120363000000000001@g.us":                       "•••",
		"false_5511987654321@c.us_3EB0C5A277F7F9B6C599": "•••",
		"chat 5511987654321@c.us is gone":               "chat ••• is gone",
		// E-mail addresses.
		"write to ana.prado+x@cliente.com.br.": "write to •••.",
		"<ANA@EXAMPLE.COM>":                    "<•••>",
		"joão@exemplo.com.br":                  "•••",
		"a@b":                                  "•••",
		// CPF and CNPJ.
		"CPF 123.456.789-09":        "CPF •••",
		"CNPJ 12.345.678/0001-95":   "CNPJ •••",
		"doc=123.456.789-09&x=1":    "doc=•••&x=1",
		"CPF 12345678909 not found": "CPF ••• not found",
	} {
		if got := maskText(text); got != want {
			t.Errorf("maskText(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestWhatIsNobodysStaysReadable(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"",
		"http_503: the receiver answered 503: the receiver asks for patience",
		"timeout: no answer: timeout in phase headers (the receiver may have got it)",
		"0190b4a8-1234-7000-8000-123456789012",
		"delivery 0190b4a8-1234-7000-8000-123456789012 of event 0190b4a8-0000-7000-8000-000000000001",
		"2026-07-04T10:20:30-03:00",
		"at 2026-07-04T10:20:30.123456Z and 2026-07-04 10:20:30",
		"order 1042", "order 650000101", "#650000101-2", "NF 000123456",
		"R$ 1.234,56", "251.82", "BRL 12345.67", "1234567890", // money and seconds since 1970
		"10.0.0.7:8080", "192.168.100.200", "port 54329", "v2026.7.1",
		"01310-100", "20260704", "3EB0C5A277F7F9B6C599",
		"dial tcp 203.0.113.10:443: connect: connection refused",
		"https://hooks.example.com/v1/orders/650000101?page=2",
	} {
		if got := maskText(text); got != text {
			t.Errorf("maskText(%q) = %q, want it as it was", text, got)
		}
	}
}

func TestPayloadsArePrintedWithoutPersonalData(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		payload string
		want    string // compact
		hidden  int
	}{
		"a message of ours": {
			`{"message_id":"0190b4a8-1234-7000-8000-123456789012","conversation_id":"0190b4a8-0000-7000-8000-000000000001","direction":"inbound","type":"text","body":"Oi, sou a Ana","from":"5511900000101@c.us","received_at":"2026-07-04T10:20:30Z","ack":1}`,
			`{"ack":1,"body":"•••","conversation_id":"0190b4a8-0000-7000-8000-000000000001","direction":"inbound","from":"•••","message_id":"0190b4a8-1234-7000-8000-123456789012","received_at":"2026-07-04T10:20:30Z","type":"text"}`, 2,
		},
		"WAHA's message.any": {
			`{"id":"evt_01kwpmkapzxg10g5x6qsezrw58","timestamp":1783171230431,"event":"message.any","session":"org_ipe_01","me":{"id":"5511900000001@c.us","pushName":"Loja Ipê","lid":"100000000000001@lid","jid":"5511900000001:12@s.whatsapp.net"},"payload":{"id":"true_5511900000101@c.us_3EB0CC6FE96EA156FC0B","timestamp":1783171230,"from":"5511900000101@c.us","fromMe":true,"body":"Seu pedido 1042 saiu para entrega.","to":null,"ackName":"SERVER","_data":{"Info":{"Chat":"5511900000101@s.whatsapp.net","PushName":"Ana Prado","IsGroup":false,"Type":"text"}}}}`,
			`{"event":"message.any","id":"evt_01kwpmkapzxg10g5x6qsezrw58","me":{"id":"•••","jid":"•••","lid":"•••","pushName":"•••"},"payload":{"_data":{"Info":{"Chat":"•••","IsGroup":false,"PushName":"•••","Type":"text"}},"ackName":"SERVER","body":"•••","from":"•••","fromMe":true,"id":"•••","timestamp":1783171230,"to":null},"session":"org_ipe_01","timestamp":1783171230431}`, 9,
		},
		"WAHA's reaction in a group": {
			`{"participant":"200000000000102@lid","reaction":{"text":"👍","messageId":"true_120363000000000001@g.us_3EB0AAADAAF082213D97_100000000000001@lid"}}`,
			`{"participant":"•••","reaction":{"messageId":"•••","text":"•••"}}`, 3,
		},
		"WAHA's raw message of WEBJS": {
			`{"_data":{"message":{"id":{"remote":"5511900000101@c.us","fromMe":false},"body":"Obrigada demais","notifyName":"Ana Prado","t":1783170260,"type":"chat"}}}`,
			`{"_data":{"message":{"body":"•••","id":{"fromMe":false,"remote":"•••"},"notifyName":"•••","t":"•••","type":"•••"}}}`, 5,
		},
		"WAHA's raw message of NOWEB": {
			`{"_data":{"key":{"remoteJid":"5511900000101@s.whatsapp.net"},"message":{"conversation":"segredo da Ana"},"verifiedBizName":"Padaria da Ana"}}`,
			`{"_data":{"key":{"remoteJid":"•••"},"message":{"conversation":"•••"},"verifiedBizName":"•••"}}`, 3,
		},
		"people who are keys": {
			`{"votes":{"5511900000101@c.us":["sim"],"ana@cliente.example":[]}}`,
			`{"votes":{"•••":["sim"],"••• 2":[]}}`, 2,
		},
		"an order of a store": {
			`{"id":650000101,"number":1042,"contact_email":"ana@cliente.example","contact_name":"Ana Prado","contact_phone":"+5511900000101","contact_identification":"00000000191","billing_address":"Rua Exemplo","billing_number":"100","billing_floor":"ap 12","billing_zipcode":"01000000","subtotal":"259.80","total":"251.82","created_at":"2026-07-04T12:58:00+0000","products":[{"name":"Caneca","price":"29.90","quantity":1,"sku":"CAN-01"}],"customer":{"name":"Ana Prado","identification":"00000000191","default_address":{"street":"Rua Exemplo","city":"São Paulo","floor":"ap 12"}}}`,
			`{"billing_address":"•••","billing_floor":"•••","billing_number":"•••","billing_zipcode":"•••","contact_email":"•••","contact_identification":"•••","contact_name":"•••","contact_phone":"•••","created_at":"2026-07-04T12:58:00+0000","customer":{"default_address":{"city":"•••","floor":"•••","street":"•••"},"identification":"•••","name":"•••"},"id":650000101,"number":1042,"products":[{"name":"•••","price":"29.90","quantity":1,"sku":"CAN-01"}],"subtotal":"259.80","total":"251.82"}`, 14,
		},
		"names in any spelling": {
			`{"firstName":"Ana","last_name":"Prado","fullName":"Ana Prado","customerName":"Ana","nome":"Ana","telefone":"x","celular":11987654321,"endereco":"Rua","mensagem":"oi","Email":"x","NAME":"Ana","senderName":"Ana","displayName":"Ana"}`,
			`{"Email":"•••","NAME":"•••","celular":"•••","customerName":"•••","displayName":"•••","endereco":"•••","firstName":"•••","fullName":"•••","last_name":"•••","mensagem":"•••","nome":"•••","senderName":"•••","telefone":"•••"}`, 13,
		},
		"names of things": {
			`{"event_name":"x.y","session_name":"default","file_name":"a.pdf","type_name":"t","consumer_name":"a-worker","ackName":"SERVER","context":"c"}`,
			`{"ackName":"SERVER","consumer_name":"a-worker","context":"c","event_name":"x.y","file_name":"a.pdf","session_name":"default","type_name":"t"}`, 0,
		},
		"lists in lists": {
			`{"to":["a","b",["c",{"x":"d","name":"e"}]],"list":[["+55 11 98765-4321",["ana@cliente.example"]],"fine"]}`,
			`{"list":[["•••",["•••"]],"fine"],"to":["•••","•••",["•••",{"name":"•••","x":"•••"}]]}`, 7,
		},
		"a phone that is a number": {
			`{"phone":5511900000101,"wa_id":5511900000101,"count":5}`, `{"count":5,"phone":"•••","wa_id":"•••"}`, 2,
		},
		"what is nobody's": {
			`{"a":"0190b4a8-1234-7000-8000-123456789012","b":"2026-07-04T10:20:30.5-03:00","c":"1042","d":"251.82","e":251.82,"f":true,"g":null,"h":650000101,"i":"","name":"","body":null,"cents":25182}`,
			`{"a":"0190b4a8-1234-7000-8000-123456789012","b":"2026-07-04T10:20:30.5-03:00","body":null,"c":"1042","cents":25182,"d":"251.82","e":251.82,"f":true,"g":null,"h":650000101,"i":"","name":""}`, 0,
		},
		"numbers with all their digits": {
			`{"big":123456789012345678901234567890,"exact":0.10000000000000000000001,"id":9007199254740993,"exp":1e400,"neg":-0}`,
			`{"big":123456789012345678901234567890,"exact":0.10000000000000000000001,"exp":1e400,"id":9007199254740993,"neg":-0}`, 0,
		},
		"markup, as it is":  {`{"a":"<script>alert(1)</script>&"}`, `{"a":"<script>alert(1)</script>&"}`, 0},
		"a bare text":       {`"ana@cliente.example"`, `"•••"`, 1},
		"a bare number":     {`12`, `12`, 0},
		"an empty object":   {`{}`, `{}`, 0},
		"what is not JSON":  {`{"a":`, ``, 0},
		"nothing":           {``, ``, 0},
		"bytes of no text":  {"{\"a\":\"\xff\"}", "{\"a\":\"\uFFFD\"}", 0},
		"a CPF in a string": {`{"x":"CPF 123.456.789-09, tel (11) 98765-4321"}`, `{"x":"CPF •••, tel •••"}`, 1},
	} {
		text, hidden := printPayload([]byte(tt.payload), false)
		if diff := cmp.Diff(tt.want, compact(t, text)); diff != "" || hidden != tt.hidden {
			t.Errorf("%s: %d values are hidden, want %d (-want +got): %s", name, hidden, tt.hidden, diff)
		}
		shown, hidden := printPayload([]byte(tt.payload), true)
		if hidden != 0 || json.Valid([]byte(tt.payload)) && !sameJSON(t, tt.payload, shown) {
			t.Errorf("%s: %d values are hidden although all were asked for: %s", name, hidden, shown)
		}
	}
}

func compact(t *testing.T, text string) string {
	t.Helper()
	if text == "" {
		return ""
	}
	var out bytes.Buffer
	if err := json.Compact(&out, []byte(text)); err != nil {
		t.Fatalf("not JSON: %v: %s", err, text)
	}
	return out.String()
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var values [2]any
	for i, text := range []string{a, b} {
		decoder := json.NewDecoder(strings.NewReader(text))
		decoder.UseNumber()
		if err := decoder.Decode(&values[i]); err != nil {
			t.Errorf("not JSON: %v: %.200s", err, text)
			return false
		}
	}
	return cmp.Equal(values[0], values[1])
}

func TestALargePayloadIsCut(t *testing.T) {
	t.Parallel()
	payload := `{"a":"` + strings.Repeat("ç", 512<<10) + `","phone":"5511900000101"}`
	text, hidden := printPayload([]byte(payload), false)
	if len(text) > maxPrinted+len("\n…") || len(text) < maxPrinted-utf8.UTFMax || !strings.HasSuffix(text, "ç\n…") || !utf8.ValidString(text) || hidden != 1 {
		t.Errorf("1 MiB became %d bytes, ending in %q, %d values hidden", len(text), text[len(text)-8:], hidden)
	}
	for in, want := range map[string]string{"": "", "abc": "abc", "abcd": "abc\n…", "abç": "ab\n…", "ççç": "ç\n…"} {
		if got := cut(in, 3); got != want {
			t.Errorf("cut(%q, 3) = %q, want %q", in, got, want)
		}
	}
}

func TestAnErrorIsShortInAList(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ç", maxShort)
	for in, want := range map[string]string{"": "", "  a \n": "a", long: long, long + "x": strings.Repeat("ç", maxShort-1) + "…"} {
		if got := short(in); got != want {
			t.Errorf("short(%.10q) has %d bytes, want %d", in, len(got), len(want))
		}
	}
}

func FuzzPrintPayload(f *testing.F) {
	for _, seed := range []string{
		`{"from":"5511900000101@c.us","n":12345678901234567890,"list":[{"name":"x"}]}`, `[]`, `"a"`, `1e999`, `{"a":`, `{"":"\u0000"}`,
		"\xff", `{"a":{"b":[[["2026-07-04T10:20:30Z"]]]}}`, `{"x":"+55 (11) 98765-4321"} trailing`, `null`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		masked, _ := printPayload(payload, false)
		shown, hidden := printPayload(payload, true)
		if !utf8.ValidString(masked) || !utf8.ValidString(shown) || hidden != 0 {
			t.Errorf("printed %q and %q, %d hidden", masked, shown, hidden)
		}
		if json.Valid(payload) && len(shown) < maxPrinted && !sameJSON(t, string(payload), shown) {
			t.Errorf("%q was shown as %q", payload, shown)
		}
		if again, n := printPayload([]byte(masked), false); json.Valid(payload) && len(masked) < maxPrinted && again != masked {
			t.Errorf("%d more values are hidden when %q is printed again: %q", n, masked, again)
		}
	})
}

// What is nobody's by its form may be a person's by its name, and a number may be a
// phone's.
func TestFormDoesNotExcuseWhatANameGivesAway(t *testing.T) {
	t.Parallel()
	got, hidden := printPayload([]byte(`{"birthday":"1990-05-01","whatsapp":5511987654321,"sent_at":1796063356123,
		"contact_name":"0190b4a8-0000-7000-8000-0000000000aa","ordered":"2026-11-30"}`), false)
	want := `{
  "birthday": "•••",
  "contact_name": "0190b4a8-0000-7000-8000-0000000000aa",
  "ordered": "2026-11-30",
  "sent_at": 1796063356123,
  "whatsapp": "•••"
}`
	if diff := cmp.Diff(want, got); diff != "" || hidden != 2 {
		t.Errorf("hidden %d (-want +got):\n%s", hidden, diff)
	}
}
