package admin

import (
	"bytes"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// mask stands for what is hidden.
const mask = "•••"

// kept are values that the form of personal data would hit: ids and instants.
const kept = `\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b|` +
	`\b\d{4}-\d\d-\d\d(?:[T ]\d\d:[\d:.]+(?:Z|[+-]\d\d:?\d\d)?)?\b`

// personal finds what is a person's by its form, wherever it stands: an e-mail
// address or WhatsApp's name of a chat, a CPF or CNPJ, and a phone's number: after
// a plus, after an area code in parentheses, with Brazil's ninth digit, in two
// groups of four, or as long as a mobile's with its area code.
var personal = regexp.MustCompile(kept + `|[\p{L}\p{N}_.+-]+(?::\d+)?(?:@[\p{L}\p{N}_-]+(?:\.[\p{L}\p{N}_-]+)*)+|` +
	`\b\d{3}\.\d{3}\.\d{3}-\d{2}\b|\b\d{2}\.\d{3}\.\d{3}/\d{4}-\d{2}\b|` +
	`\+\d[\d ().-]{7,}\d\b|(?:\b\d{1,3} ?)?\(\d{2,3}\)[ .-]?(?:9[ .-]?)?\d{3,4}[ .-]?\d{4}\b|` +
	`\b(?:\d{2,3}[ .-]?)?\d{2,3}[ .-]?9[ .-]?\d{4}[ .-]?\d{4}\b|\b(?:\d{2,3}[ .-])?\d{2,3}[ .-]\d{4}[ .-]\d{4}\b|\b\d{11,13}\b`)

var technical = regexp.MustCompile(`^(?:` + kept + `)$`)

// identifier is an id of ours, which says nothing of a person wherever it stands.
var identifier = regexp.MustCompile(`^[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// instants are the names of fields that hold a time as a number, which may be as
// long as a phone's.
var instants = regexp.MustCompile(`(?:_at|_ms|timestamp|time)$`)

// personalKeys are the names of fields that hold what a person said or is, in
// snake case. What stands anywhere below such a field is personal too.
var personalKeys = regexp.MustCompile(`^(?:(?:.*_)?(?:name|nome|phone|phone_number|telefone|celular|email|cpf|cnpj|identification|` +
	`address|endereco|street|locality|floor|zipcode|cep|body|text|caption|preview|note|notes|comment|birthday|jid|lid)|` +
	`from|to|author|participant|chat|chat_id|chatid|wa_id|pushname|vcard|content|message|mensage[mn]s?|conversation|billing_number|` +
	`shipping_number|latitude|longitude|emoji|reactor)$`)

// structuralKeys end like personal ones and are not.
var structuralKeys = regexp.MustCompile(`^(?:ack_name|event_name|session_name|consumer_name|type_name|file_name|gateway_name)$`)

// phoneNumber is a mobile's number with its country, written as a JSON number.
var phoneNumber = regexp.MustCompile(`^55[1-9]\d{9,10}$`)

// camel finds where a word of a key begins.
var camel = regexp.MustCompile(`([a-z0-9])([A-Z])`)

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

// maskValue replaces what is personal in v, which stands under key, and returns
// how many values that were.
func maskValue(key string, v any) (any, int) {
	return maskBelow(isPersonal(key), instants.MatchString(key), v)
}

func maskBelow(secret, instant bool, v any) (any, int) {
	hidden := 0
	switch value := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(value))
		for _, k := range slices.Sorted(maps.Keys(value)) {
			masked, n := maskBelow(secret || isPersonal(k), instants.MatchString(k), value[k])
			name := maskText(k)
			if name != k {
				n++
			}
			for i := 2; has(out, name); i++ {
				name = mask + " " + strconv.Itoa(i)
			}
			out[name], hidden = masked, hidden+n
		}
		return out, hidden
	case []any:
		for i, inner := range value {
			masked, n := maskBelow(secret, instant, inner)
			value[i], hidden = masked, hidden+n
		}
		return value, hidden
	case string:
		switch masked := maskText(value); {
		case value == "":
			return value, 0
		case secret && !identifier.MatchString(value):
			return mask, 1
		case technical.MatchString(value):
			return value, 0
		case masked != value:
			return masked, 1
		default:
			return value, 0
		}
	case json.Number:
		if secret || !instant && phoneNumber.MatchString(value.String()) {
			return mask, 1
		}
		return value, 0
	default:
		return value, 0
	}
}

func has(m map[string]any, key string) bool {
	_, found := m[key]
	return found
}

func isPersonal(key string) bool {
	key = strings.ToLower(camel.ReplaceAllString(key, "${1}_$2"))
	return personalKeys.MatchString(key) && !structuralKeys.MatchString(key)
}

// maskText hides what looks personal in free text.
func maskText(s string) string {
	return personal.ReplaceAllStringFunc(s, func(found string) string {
		if technical.MatchString(found) {
			return found
		}
		return mask
	})
}

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
