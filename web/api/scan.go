package api

import (
	"bytes"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/deskcomm/deskcomm/web/problem"
)

// maxDepth is how deep JSON may nest: what PHP's json_decode reads by default,
// since what is taken here is sent on to others.
const maxDepth = 512

// scanner walks JSON that is known to be valid and finds text that jsonb cannot
// hold. The standard decoder cannot: it replaces unpaired surrogates.
type scanner struct {
	text    []byte
	at      int
	depth   int
	path    []string // as far as the contract knows the names
	schemas huma.Registry
}

// run returns the first fault, nil when there is none.
func (s *scanner) run(schema *huma.Schema) *problem.Fault {
	s.space()
	return s.value(s.resolve(schema))
}

// value walks one value. A nil schema is a value of which the contract knows
// nothing: faults inside it are reported where that began.
func (s *scanner) value(schema *huma.Schema) *problem.Fault {
	switch s.text[s.at] {
	case '"':
		_, fault := s.str()
		return fault
	case '{', '[':
		if s.depth++; s.depth > maxDepth {
			return s.fault("must not nest more than " + strconv.Itoa(maxDepth) + " deep")
		}
		fault := s.container(schema)
		s.depth--
		return fault
	default: // a number or a word ends where the value does
		start := s.at
		for s.at < len(s.text) && bytes.IndexByte([]byte(",]} \t\r\n"), s.text[s.at]) < 0 {
			s.at++
		}
		if !bounded(s.text[start:s.at]) {
			return s.fault("must not hold a number with an exponent beyond " + strconv.Itoa(maxExponent))
		}
		return nil
	}
}

// maxExponent bounds how many digits a number of a few bytes may stand for: the
// database writes them all out.
const maxExponent = 400

// bounded reports whether a word is no number or one without a huge exponent.
func bounded(word []byte) bool {
	mark := bytes.IndexAny(word, "eE")
	if mark <= 0 || word[0] != '-' && (word[0] < '0' || word[0] > '9') {
		return true
	}
	exponent, err := strconv.Atoi(string(bytes.TrimPrefix(word[mark+1:], []byte("+"))))
	return err == nil && exponent <= maxExponent && exponent >= -maxExponent
}

// container walks an object or an array.
func (s *scanner) container(schema *huma.Schema) *problem.Fault {
	object := s.text[s.at] == '{'
	s.at++
	for n := 0; ; n++ {
		s.space()
		switch s.text[s.at] {
		case '}', ']':
			s.at++
			return nil
		case ',':
			s.at++
			s.space()
		}
		var fault *problem.Fault
		if object {
			fault = s.property(schema)
		} else {
			fault = s.item(schema, n)
		}
		if fault != nil {
			return fault
		}
	}
}

// property walks a key and its value; the name is shown if the contract has it.
func (s *scanner) property(schema *huma.Schema) *problem.Fault {
	key, fault := s.str()
	if fault != nil {
		return fault
	}
	s.space()
	s.at++ // the colon
	s.space()
	if schema == nil || schema.Properties[string(key)] == nil {
		return s.value(nil)
	}
	return s.inside(string(key), schema.Properties[string(key)])
}

// item walks the nth value of an array.
func (s *scanner) item(schema *huma.Schema, n int) *problem.Fault {
	if schema == nil || schema.Items == nil {
		return s.value(nil)
	}
	return s.inside(strconv.Itoa(n), schema.Items)
}

func (s *scanner) inside(name string, schema *huma.Schema) *problem.Fault {
	s.path = append(s.path, name)
	fault := s.value(s.resolve(schema))
	s.path = s.path[:len(s.path)-1]
	return fault
}

// str walks a string or a key and returns what stands between its quotes.
func (s *scanner) str() ([]byte, *problem.Fault) {
	s.at++
	start := s.at
	for {
		switch s.text[s.at] {
		case '"':
			s.at++
			return s.text[start : s.at-1], nil
		case '\\':
			if s.text[s.at+1] != 'u' {
				s.at += 2
				continue
			}
			unit := s.unit()
			switch {
			case unit == 0:
				return nil, s.fault(`must not contain NUL (\u0000)`)
			case unit>>10 == 0xDC00>>10, unit>>10 == 0xD800>>10 && !s.lowSurrogate():
				return nil, s.fault("must not contain an unpaired surrogate")
			}
		default:
			s.at++
		}
	}
}

// unit reads \uXXXX.
func (s *scanner) unit() uint16 {
	n, _ := strconv.ParseUint(string(s.text[s.at+2:s.at+6]), 16, 16) // the JSON is valid
	s.at += 6
	return uint16(n)
}

// lowSurrogate takes the second half of a pair, if it is there.
func (s *scanner) lowSurrogate() bool {
	return bytes.HasPrefix(s.text[s.at:], []byte(`\u`)) && s.unit()>>10 == 0xDC00>>10
}

func (s *scanner) space() {
	for s.at < len(s.text) && bytes.IndexByte([]byte(" \t\r\n"), s.text[s.at]) >= 0 {
		s.at++
	}
}

func (s *scanner) fault(rule string) *problem.Fault {
	f := problem.InBody(problem.Pointer(s.path...), rule)
	return &f
}

func (s *scanner) resolve(schema *huma.Schema) *huma.Schema {
	for schema != nil && schema.Ref != "" {
		schema = s.schemas.SchemaFromRef(schema.Ref)
	}
	return schema
}
