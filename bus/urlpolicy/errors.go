package urlpolicy

import "fmt"

// Code names the broken rule for machines. Codes are part of the API.
type Code string

// The codes of [Policy.CheckURL], [CheckAddr] and [Policy.CheckDial].
const (
	CodeInvalid       Code = "unsafe_url:invalid"
	CodeTooLong       Code = "unsafe_url:too_long"
	CodeCharacters    Code = "unsafe_url:characters"
	CodeScheme        Code = "unsafe_url:scheme"
	CodeHTTPSRequired Code = "unsafe_url:https_required"
	CodeUserinfo      Code = "unsafe_url:userinfo"
	CodeFragment      Code = "unsafe_url:fragment"
	CodeHost          Code = "unsafe_url:host"
	CodeHostNotASCII  Code = "unsafe_url:host_not_ascii"
	CodeIPv6Literal   Code = "unsafe_url:ipv6_literal"
	CodePrivateHost   Code = "unsafe_url:private_host"
	CodePrivateIP     Code = "unsafe_url:private_ip"
	CodePort          Code = "unsafe_url:port"
)

// Error is a refusal. Its text holds nothing of what was refused.
type Error struct {
	Code Code
	Rule string // for people, completes "the URL …"
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Rule }

// AllowError is a fault in one entry of the operator's allow list.
type AllowError struct {
	Position int // counted from 1, blank entries included
	Rule     string
}

func (e *AllowError) Error() string { return fmt.Sprintf("entry %d: %s", e.Position, e.Rule) }
