package waha

import "strings"

// messageID is WAHA's composite id, "{fromMe}_{chat}_{bare}[_{participant}]".
// All but the bare id may differ between two events about the same message.
type messageID struct {
	full      string
	bare      string
	chat      string
	direction string // "true", "false" or unknown
}

// messageIDOf finds the id of a message in the order key, id, _data. WEBJS
// loses `id`, and `_serialized` inside `_data`, whenever WhatsApp renames the
// property ("$1" since July 2026, WAHA #2157).
func messageIDOf(p object) messageID {
	data := p.object("_data")
	for _, v := range []any{
		keyID(p.object("key")),
		p["id"],
		data["id"],
		keyID(data.object("key")),
		data.object("Info")["ID"],
		data.object("message")["id"], // WEBJS wraps the model of an edited message
	} {
		if id := readMessageID(v); id.bare != "" {
			return id
		}
	}
	return messageID{}
}

// keyID turns the Baileys key of NOWEB into the form that WEBJS uses for ids.
func keyID(key object) any {
	if key == nil {
		return nil
	}
	return map[string]any{"id": key["id"], "remote": key["remoteJid"], "fromMe": key["fromMe"]}
}

func readMessageID(v any) messageID {
	fields, isObject := v.(map[string]any)
	if !isObject {
		return parseMessageID(object{"id": v}.text("id"))
	}
	o := object(fields)
	id := parseMessageID(o.text("_serialized", "$1", "id"))
	if bare := o.text("id"); isBareID(bare) {
		id.bare = bare
	}
	if id.bare == "" {
		return messageID{}
	}
	if id.chat == "" {
		id.chat = serialized(o["remote"])
	}
	if fromMe, ok := asBool(o["fromMe"]); ok && id.direction == "" {
		id.direction = map[bool]string{true: "true", false: "false"}[fromMe]
	}
	return id
}

// parseMessageID reads a composite or a bare id.
func parseMessageID(s string) messageID {
	direction, rest, composite := strings.Cut(s, "_")
	if !composite {
		if !isBareID(s) {
			return messageID{}
		}
		return messageID{bare: s}
	}
	chat, rest, _ := strings.Cut(rest, "_")
	bare, _, _ := strings.Cut(rest, "_")
	if !isBareID(bare) {
		return messageID{}
	}
	id := messageID{bare: bare, chat: chat}
	if direction == "true" || direction == "false" {
		id.direction = direction
	}
	if len(s) <= 4*maxKey {
		id.full = s
	}
	return id
}

// isBareID reports whether s can be the part of an id that identifies a message.
func isBareID(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' || s[i] == '@' || s[i] == '_' {
			return false
		}
	}
	return s != "" && len(s) <= maxKey
}

// bareIDOf reads a reference to a message: its bare id, a composite one or the
// object form; "" when it is none of them.
func bareIDOf(v any) string { return readMessageID(v).bare }

// serialized reads an address that WEBJS wrote as text or as an object.
func serialized(v any) string {
	if fields, ok := v.(map[string]any); ok {
		return object(fields).text("_serialized", "$1")
	}
	text, _ := v.(string)
	return text
}
