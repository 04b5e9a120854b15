package waha

import (
	"crypto/hmac"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"strings"
)

// What Verify can answer besides nil. The caller decides what each means: an
// unsigned body may be acceptable, a wrong signature never is.
var (
	ErrUnsigned  = errors.New("waha webhook is not signed")
	ErrNoSecret  = errors.New("waha webhook is signed but no secret is known")
	ErrSignature = errors.New("waha webhook signature does not match")
)

// Signature is what the headers of a webhook say about its authenticity.
type Signature struct {
	HMAC      string // X-Webhook-Hmac: hex, with or without "sha512=" before it
	Algorithm string // X-Webhook-Hmac-Algorithm: "sha512" or absent
	Version   string // X-Webhook-Hmac-Version: absent, or "2" from one fork
	Timestamp string // X-Webhook-Timestamp: milliseconds; signed in version 2 only
}

// SignatureOf reads the headers through get, which is http.Header.Get or alike.
func SignatureOf(get func(name string) string) Signature {
	return Signature{
		HMAC:      strings.TrimSpace(get("X-Webhook-Hmac")),
		Algorithm: strings.TrimSpace(get("X-Webhook-Hmac-Algorithm")),
		Version:   strings.TrimSpace(get("X-Webhook-Hmac-Version")),
		Timestamp: strings.TrimSpace(get("X-Webhook-Timestamp")),
	}
}

// Verify checks sig against the raw bytes of the body in constant time. It
// returns nil, ErrUnsigned, ErrNoSecret or ErrSignature.
//
// Nothing but the body is signed upstream, so a valid signature is no proof of
// freshness: replays are stopped by Envelope.DedupeKey.
func Verify(secret string, sig Signature, body []byte) error {
	if sig.HMAC == "" {
		return ErrUnsigned
	}
	if secret == "" {
		return ErrNoSecret
	}
	got, err := hex.DecodeString(strings.TrimPrefix(sig.HMAC, "sha512="))
	if err != nil {
		return ErrSignature
	}
	if sig.Algorithm != "" && !strings.EqualFold(sig.Algorithm, "sha512") {
		return ErrSignature
	}
	var want []byte
	switch {
	case sig.Version == "":
		want = sum(secret, body)
	case sig.Version == "2" && sig.Timestamp != "":
		want = sum(secret, []byte(sig.Timestamp+"."), body)
	default:
		return ErrSignature
	}
	if !hmac.Equal(got, want) {
		return ErrSignature
	}
	return nil
}

// Sign returns the X-Webhook-Hmac that WAHA would send with body.
func Sign(secret string, body []byte) string {
	return hex.EncodeToString(sum(secret, body))
}

func sum(secret string, parts ...[]byte) []byte {
	mac := hmac.New(sha512.New, []byte(secret))
	for _, part := range parts {
		mac.Write(part)
	}
	return mac.Sum(nil)
}
