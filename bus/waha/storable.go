package waha

import (
	"bytes"
	"strconv"
	"unicode/utf8"
)

// storable returns valid JSON as JSON that Postgres can keep: text and jsonb
// refuse NUL (seen in push names, WAHA #820), jsonb refuses half a surrogate
// pair (JavaScript writes one when it cuts an emoji in two), both refuse bytes
// that are not UTF-8. NUL is removed, the others become U+FFFD.
//
// In valid JSON a backslash occurs only inside strings, so no further parsing
// is needed. A body with nothing to change is returned as it is.
func storable(valid []byte) []byte {
	if !utf8.Valid(valid) {
		valid = bytes.ToValidUTF8(valid, []byte("\uFFFD"))
	}
	if !bytes.Contains(valid, []byte(`\u`)) {
		return valid
	}
	out := make([]byte, 0, len(valid))
	for len(valid) > 0 {
		i := bytes.IndexByte(valid, '\\')
		if i < 0 || i+1 >= len(valid) {
			break
		}
		out, valid = append(out, valid[:i]...), valid[i:]
		first, ok := unicodeEscape(valid)
		if !ok {
			out, valid = append(out, valid[:2]...), valid[2:] // \n, \", \\ and so on
			continue
		}
		second, _ := unicodeEscape(valid[6:])
		switch {
		case first == 0:
			valid = valid[6:]
		case isHigh(first) && isLow(second):
			out, valid = append(out, valid[:12]...), valid[12:]
		case isHigh(first) || isLow(first):
			out, valid = append(out, `\ufffd`...), valid[6:]
		default:
			out, valid = append(out, valid[:6]...), valid[6:]
		}
	}
	return append(out, valid...)
}

// unicodeEscape reads the \uXXXX that b begins with.
func unicodeEscape(b []byte) (rune, bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	code, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	return rune(code), err == nil
}

func isHigh(r rune) bool { return r >= 0xD800 && r <= 0xDBFF }

func isLow(r rune) bool { return r >= 0xDC00 && r <= 0xDFFF }
