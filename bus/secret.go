package bus

import (
	"encoding/base64"
	"strings"
)

// Bounds of a secret that two sides share, in bytes.
const (
	minSecret = 8
	maxSecret = 200
)

// CheckSecret refuses a shared secret that is too short to protect, too long, or
// not printable ASCII or UTF-8 text on one line.
func CheckSecret(field, secret string) error {
	if len(secret) < minSecret || len(secret) > maxSecret {
		return Invalid(field, "must have 8 to 200 bytes")
	}
	if strings.ContainsFunc(secret, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }) {
		return Invalid(field, "must be text without control characters")
	}
	return nil
}

// standardPrefix marks a secret whose key is written in base64 behind it.
const standardPrefix = "whsec_"

// WebhookKey returns the key that a webhook secret stands for in Standard Webhooks:
// what its base64 decodes to behind whsec_, else its own bytes.
func WebhookKey(field, secret string) ([]byte, error) {
	if err := CheckSecret(field, secret); err != nil {
		return nil, err
	}
	encoded, ok := strings.CutPrefix(secret, standardPrefix)
	if !ok {
		return []byte(secret), nil
	}
	key, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || len(key) == 0 {
		return nil, Invalid(field, "must go on in padded base64 after whsec_")
	}
	return key, nil
}
