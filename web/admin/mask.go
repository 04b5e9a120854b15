package admin

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"unicode/utf8"
)

// mask stands for what is hidden.
const mask = "•••"

// personal finds what is a person's by its form, wherever it stands: an e-mail
// address or WhatsApp's name of a chat, a CPF, a phone number as people or
// programs write it. A shorter run of digits is an order or an instant.
var personal = regexp.MustCompile(`[\w.+-]+@[\w-]+(?:\.[\w-]+)*` +
	`|\b\d{3}\.\d{3}\.\d{3}-\d{2}\b` +
	`|\+\d{8,15}\b|\b\d{11,15}\b` +
	`|(?:\+?\d{2}[ -]?)?\(?\b\d{2}\)?[ -]?9?\d{4}[ -]\d{4}\b`)

// technical are values that the form of personal data would hit: ids, instants
// and addresses without a person in them.
var technical = regexp.MustCompile(`^(?:[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d))$`)

// personalKeys are the names of fields that hold what a person said or is.
var personalKeys = regexp.MustCompile(`(?i)^(?:(?:.*_)?(?:name|phone|phone_number|email|cpf|cnpj|address|body|text|caption|preview|note|notes|comment|birthday)|` +
	`from|to|author|participant|chat_id|chatid|jid|wa_id|wa_lid|lid|pushname|pushName|vcard|content|message|street|number|zipcode|latitude|longitude|emoji|reactor)$`)

// structuralKeys end like personal ones and are not.
var structuralKeys = regexp.MustCompile(`(?i)^(?:event_name|session_name|consumer_name|type_name|file_name)$`)

// maxPrinted bounds what a page shows of a payload, in bytes.
const maxPrinted = 128 << 10

// printPayload indents a payload for people and returns how many values it hid;
// with reveal it hides none. Numbers keep all their digits.
func printPayload(payload []byte, reveal bool) (text string, hidden int) {
	decoder := json.NewDecoder(bytes.NewReader(payload))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		return "", 0 // what the database holds is JSON
	}
	if !reveal {
		v, hidden = maskValue("", v)
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // the page escapes it
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(v); err != nil {
		return "", hidden
	}
	return cut(strings.TrimSuffix(out.String(), "\n"), maxPrinted), hidden
}

// maskValue replaces what is personal in v, which stands under key.
func maskValue(key string, v any) (any, int) {
	hidden := 0
	switch value := v.(type) {
	case map[string]any:
		for k, inner := range value {
			masked, n := maskValue(k, inner)
			value[k], hidden = masked, hidden+n
		}
		return value, hidden
	case []any:
		for i, inner := range value {
			masked, n := maskValue(key, inner)
			value[i], hidden = masked, hidden+n
		}
		return value, hidden
	case string:
		if value == "" || technical.MatchString(value) {
			return value, 0
		}
		if isPersonal(key) {
			return mask, 1
		}
		if masked := maskText(value); masked != value {
			return masked, 1
		}
		return value, 0
	case json.Number:
		if isPersonal(key) {
			return mask, 1
		}
		return value, 0
	default:
		return value, 0
	}
}

func isPersonal(key string) bool {
	return personalKeys.MatchString(key) && !structuralKeys.MatchString(key)
}

// maskText hides what looks personal in free text.
func maskText(s string) string { return personal.ReplaceAllString(s, mask) }

// cut keeps at most n bytes of s, whole characters, and marks the cut.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "\n…"
}
