package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/deskcomm/deskcomm/bus"
)

// Names of the headers of a delivery. Those of Standard Webhooks are in its library.
const (
	HeaderEvent           = "X-Deskcomm-Event"
	HeaderDelivery        = "X-Webhook-Delivery"
	HeaderAttempt         = "X-Webhook-Attempt"
	HeaderTimestamp       = "X-Webhook-Timestamp"
	HeaderSignature       = "X-Webhook-Signature"
	HeaderLegacySignature = "X-Deskcomm-Signature"
	// HeaderIdempotencyKey is not called Idempotency-Key: net/http would take that
	// for leave to send the request twice.
	HeaderIdempotencyKey = "X-Deskcomm-Idempotency-Key"
)

// standardPrefix marks a secret whose bytes are written in base64.
const standardPrefix = "whsec_"

// Stamp is what one attempt tells about itself in its headers.
type Stamp struct {
	EventType  string
	EventID    uuid.UUID
	DeliveryID uuid.UUID
	Attempt    int // from 1
	SentAt     time.Time
}

// Headers returns the headers of one attempt to send body. Without a secret they
// are unsigned. With several, as while a secret is being replaced, the two current
// signatures carry one part for each, and the legacy one that of the first.
//
// X-Webhook-Signature and X-Deskcomm-Signature use the UTF-8 bytes of the secret as
// its owner sees it, prefix included; webhook-signature those that Standard
// Webhooks means, see [StandardSecret]. A secret without a key is an error:
// nothing is ever sent unsigned because of it.
func Headers(s Stamp, body []byte, secrets ...string) (http.Header, error) {
	ts, delivery := strconv.FormatInt(s.SentAt.Unix(), 10), s.DeliveryID.String()
	h := make(http.Header, 12)      // with the one that a client adds
	values := make([]string, 0, 12) // of all, in one piece
	set := func(name, value string) {
		values = append(values, value)
		h[http.CanonicalHeaderKey(name)] = values[len(values)-1 : len(values) : len(values)]
	}
	set("Content-Type", "application/json")
	set(HeaderEvent, s.EventType)
	set(HeaderDelivery, delivery)
	set(HeaderAttempt, strconv.Itoa(s.Attempt))
	set(HeaderTimestamp, ts)
	set(HeaderIdempotencyKey, s.EventID.String())
	set(standardwebhooks.HeaderWebhookID, delivery)
	set(standardwebhooks.HeaderWebhookTimestamp, ts)
	if len(secrets) == 0 {
		return h, nil
	}
	native, standard := []string{"t=" + ts}, []string(nil)
	for _, secret := range secrets {
		key, err := bus.WebhookKey("secret", secret)
		if err != nil {
			return nil, err
		}
		standard = append(standard, "v1,"+base64.StdEncoding.EncodeToString(mac(key, delivery+"."+ts+".", body)))
		native = append(native, "v1="+hex.EncodeToString(nativeMAC(secret, ts, delivery, body)))
	}
	set(HeaderSignature, strings.Join(native, ","))
	set(HeaderLegacySignature, hex.EncodeToString(mac([]byte(secrets[0]), "", body)))
	set(standardwebhooks.HeaderWebhookSignature, strings.Join(standard, " "))
	return h, nil
}

// StandardSecret returns the form of a secret that a Standard Webhooks library
// wants: whsec_ and the base64 of the key. For a plain secret the key is its UTF-8
// bytes; a secret in that form already is returned as it is.
func StandardSecret(secret string) string {
	if strings.HasPrefix(secret, standardPrefix) {
		return secret
	}
	return standardPrefix + base64.StdEncoding.EncodeToString([]byte(secret))
}

// nativeMAC signs "<timestamp>.<delivery>.<raw body>".
func nativeMAC(secret, ts, delivery string, body []byte) []byte {
	return mac([]byte(secret), ts+"."+delivery+".", body)
}

// mac signs head and body.
func mac(key []byte, head string, body []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(head))
	m.Write(body)
	return m.Sum(nil)
}
