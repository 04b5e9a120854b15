package webhook

import (
	"crypto/hmac"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Tolerance is how far the signed time may lie from the receiver's clock.
const Tolerance = 300 * time.Second

// VerifyError says why [Verify] refused a request.
type VerifyError struct {
	Code VerifyCode
}

// VerifyCode is the machine word of a [VerifyError].
type VerifyCode string

// The codes of [VerifyError].
const (
	SignatureMissing   VerifyCode = "signature_missing"
	SignatureMalformed VerifyCode = "signature_malformed"
	SignatureMismatch  VerifyCode = "signature_mismatch"
	SignatureStale     VerifyCode = "signature_stale" // the signed time is too old or too new
)

func (e *VerifyError) Error() string { return "verify webhook: " + string(e.Code) }

// Verify tells a receiver whether a request is ours: X-Webhook-Signature must hold a
// signature of the signed time, the delivery id and the raw body, made with the
// secret, at most [Tolerance] before or after now. X-Deskcomm-Signature is never
// looked at: it proves neither the time nor the delivery. The error is a
// [*VerifyError]. Whoever verifies must still remember the delivery id
// (X-Webhook-Delivery), because a delivery may come twice.
func Verify(secret string, header http.Header, body []byte, now time.Time) error {
	signatures, deliveries := header.Values(HeaderSignature), header.Values(HeaderDelivery)
	if len(signatures) == 0 || len(deliveries) == 0 {
		return &VerifyError{SignatureMissing}
	}
	if len(signatures) > 1 || len(deliveries) > 1 || secret == "" {
		return &VerifyError{SignatureMalformed}
	}
	ts, candidates, ok := parseSignature(signatures[0])
	if !ok {
		return &VerifyError{SignatureMalformed}
	}
	seconds, err := strconv.ParseInt(ts, 10, 64)
	if err != nil {
		return &VerifyError{SignatureMalformed}
	}
	if !matches(nativeMAC(secret, ts, deliveries[0], body), candidates) {
		return &VerifyError{SignatureMismatch}
	}
	if age := now.Sub(time.Unix(seconds, 0)); age > Tolerance || age < -Tolerance {
		return &VerifyError{SignatureStale}
	}
	return nil
}

// parseSignature reads "t=<seconds>,v1=<hex>", with one v1 for each secret.
func parseSignature(value string) (ts string, candidates [][]byte, ok bool) {
	for part := range strings.SplitSeq(value, ",") {
		name, text, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch name {
		case "t":
			if ts != "" {
				return "", nil, false // which one was signed?
			}
			ts = text
		case "v1":
			candidate, err := hex.DecodeString(text)
			if err != nil {
				return "", nil, false
			}
			candidates = append(candidates, candidate)
		}
	}
	return ts, candidates, ts != "" && len(candidates) > 0
}

// matches compares with every candidate, so that time tells nothing.
func matches(want []byte, candidates [][]byte) bool {
	found := false
	for _, candidate := range candidates {
		found = hmac.Equal(want, candidate) || found
	}
	return found
}
