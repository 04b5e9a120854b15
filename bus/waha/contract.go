package waha

import (
	"errors"
	"strings"
)

// ErrNotJSON means that a webhook body is not JSON, or is nested deeper than
// encoding/json follows (10,000 levels).
var ErrNotJSON = errors.New("waha body is not JSON")

// The rules a FieldError can name.
const (
	RuleRequired  = "required"
	RuleObject    = "object"
	RuleString    = "string"
	RuleBoolean   = "boolean"
	RuleNumber    = "number"
	RuleMessageID = "message_id"
	RuleMaxLength = "max_length"
)

// FieldError is one field that breaks the contract. It never carries the value,
// which may be personal data.
type FieldError struct {
	Pointer string // RFC 6901, from the root of the body, as in "/payload/id"
	Rule    string // one of the Rule constants
}

// ContractError lists every field of a body that breaks the contract. Sending
// the same body again cannot help.
type ContractError struct {
	Fields []FieldError
}

// Error names the fields and the rules, so it is safe to log and to show.
func (e *ContractError) Error() string {
	var b strings.Builder
	b.WriteString("waha body breaks the contract")
	for i, f := range e.Fields {
		b.WriteString([2]string{": ", ", "}[min(i, 1)])
		b.WriteString(f.Pointer + " " + f.Rule)
	}
	return b.String()
}

func violation(pointer, rule string) *ContractError {
	return &ContractError{Fields: []FieldError{{Pointer: pointer, Rule: rule}}}
}
