package webhook

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// The published vector.
const (
	vectorSecret   = "segredo-de-exemplo-nao-use-em-producao"
	vectorDelivery = "209f529f-3a34-5ccb-9486-5e20cd48fb45"
	vectorBody     = `{"event":"lead.created","occurred_at":"2026-01-01T00:00:00.000Z","happened_at":"2025-12-31T21:00:00.000Z",` +
		`"delivery_id":"209f529f-3a34-5ccb-9486-5e20cd48fb45","data":{"lead":{"id":"lead-1"}}}`
	vectorTime = 1767225600
	vectorV1   = "bccb00c040649c7e2618d9cd4a3bc79ade96d5dd939c0fb11f26064c538e57a5"
	vectorOld  = "6aa08c69080a291fadcdd6913d78e79dbd2705a95b3cf87c8a0018491a1a8dab"
)

func vectorStamp() Stamp {
	return Stamp{
		EventType:  "lead.created",
		EventID:    uuid.MustParse("11111111-1111-4111-8111-111111111111"),
		DeliveryID: uuid.MustParse(vectorDelivery),
		Attempt:    3,
		SentAt:     time.Unix(vectorTime, 999_000_000),
	}
}

func headers(t *testing.T, s Stamp, body string, secrets ...string) http.Header {
	t.Helper()
	h, err := Headers(s, []byte(body), secrets...)
	if err != nil {
		t.Fatalf("Headers: %v", err)
	}
	return h
}

func TestHeadersMatchThePublishedVector(t *testing.T) {
	t.Parallel()
	got := headers(t, vectorStamp(), vectorBody, vectorSecret)
	signer, err := standardwebhooks.NewWebhook(StandardSecret(vectorSecret))
	if err != nil {
		t.Fatal(err)
	}
	standard, err := signer.Sign(vectorDelivery, time.Unix(vectorTime, 0), []byte(vectorBody))
	if err != nil {
		t.Fatal(err)
	}
	want := http.Header{
		"Content-Type":               {"application/json"},
		"X-Deskcomm-Event":           {"lead.created"},
		"X-Webhook-Delivery":         {vectorDelivery},
		"X-Webhook-Attempt":          {"3"},
		"X-Webhook-Timestamp":        {"1767225600"},
		"X-Webhook-Signature":        {"t=1767225600,v1=" + vectorV1},
		"X-Deskcomm-Signature":       {vectorOld},
		"X-Deskcomm-Idempotency-Key": {"11111111-1111-4111-8111-111111111111"},
		"Webhook-Id":                 {vectorDelivery},
		"Webhook-Timestamp":          {"1767225600"},
		"Webhook-Signature":          {standard},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Headers (-want +got):\n%s", diff)
	}
}

// The example of the Standard Webhooks specification, so that both sides of the
// comparison do not share one mistake.
func TestAStandardSecretSignsAsTheSpecificationSays(t *testing.T) {
	t.Parallel()
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	body := []byte(`{"test": 2432232314}`)
	now := time.Now()
	s := vectorStamp()
	s.SentAt = now
	h := headers(t, s, string(body), secret)

	for name, key := range map[string]string{"with prefix": secret, "without prefix": strings.TrimPrefix(secret, "whsec_")} {
		receiver, err := standardwebhooks.NewWebhook(key)
		if err != nil {
			t.Fatal(err)
		}
		if err := receiver.Verify(body, h); err != nil {
			t.Errorf("%s: the library refuses our signature: %v", name, err)
		}
	}
	if err := Verify(secret, h, body, now); err != nil {
		t.Errorf("Verify with the secret as it is shown: %v", err)
	}
}

func TestWithoutASecretNothingIsSigned(t *testing.T) {
	t.Parallel()
	h := headers(t, vectorStamp(), vectorBody)
	for name := range h {
		if strings.Contains(name, "Signature") {
			t.Errorf("header %s is there without a secret", name)
		}
	}
	if got, want := h.Get(HeaderDelivery), vectorDelivery; got != want {
		t.Errorf("%s = %q, want %q", HeaderDelivery, got, want)
	}
}

func TestDuringARotationBothSecretsVerify(t *testing.T) {
	t.Parallel()
	const newer, older = "newer-secret", "whsec_b2xkZXIgc2VjcmV0IG9mIGEgcmVjZWl2ZXI="
	s := vectorStamp()
	s.SentAt = time.Now()
	h := headers(t, s, vectorBody, newer, older)
	for _, secret := range []string{newer, older} {
		if err := Verify(secret, h, []byte(vectorBody), s.SentAt); err != nil {
			t.Errorf("Verify: %v", err)
		}
		receiver, err := standardwebhooks.NewWebhook(StandardSecret(secret))
		if err != nil {
			t.Fatal(err)
		}
		if err := receiver.Verify([]byte(vectorBody), h); err != nil {
			t.Errorf("the library refuses our signature: %v", err)
		}
	}
	alone := headers(t, s, vectorBody, newer)
	if got, want := h.Get(HeaderLegacySignature), alone.Get(HeaderLegacySignature); got != want {
		t.Errorf("legacy signature = %q, want that of the first secret, %q", got, want)
	}
}

func TestASecretWithoutAKeySignsNothing(t *testing.T) {
	t.Parallel()
	for _, secret := range []string{"", "whsec_", "whsec_not base64", "whsec_YWJj\n", "whsec_YQ"} {
		if h, err := Headers(vectorStamp(), []byte(vectorBody), secret); err == nil || h != nil {
			t.Errorf("Headers with secret %q = %v, %v; want an error alone", secret, h, err)
		}
	}
}

func TestStandardSecretIsTheBase64OfThePlainOne(t *testing.T) {
	t.Parallel()
	for secret, want := range map[string]string{
		"segredo-ção": "whsec_" + base64.StdEncoding.EncodeToString([]byte("segredo-ção")),
		"whsec_YWJj":  "whsec_YWJj",
	} {
		if got := StandardSecret(secret); got != want {
			t.Errorf("StandardSecret(%q) = %q, want %q", secret, got, want)
		}
	}
}

// The id of a rule's delivery is computed here only, to hold the published vector
// until package bus owns the function.
func TestTheDeliveryIDOfARuleMatchesThePublishedVector(t *testing.T) {
	t.Parallel()
	id := func(actions ...action) string {
		name := "11111111-1111-4111-8111-111111111111:22222222-2222-4222-8222-222222222222:0:" + fingerprint(t, actions)
		namespace := uuid.MustParse("ce410f0a-ca5e-4a06-89a0-bfe57222d74f")
		return uuid.NewSHA1(namespace, []byte(name)).String()
	}
	const want = "ee864a8c-af7e-5815-bc75-391f70ae0834"
	call := action{"call_webhook", map[string]string{"url": "https://hooks.example.com/crm"}}
	if got := id(call); got != want {
		t.Errorf("delivery id = %s, want %s", got, want)
	}
	signed := action{"call_webhook", map[string]string{"url": "https://hooks.example.com/crm", "secret": "a", "secret_enc": "b"}}
	if got := id(signed); got != want {
		t.Errorf("delivery id with a secret = %s, want the same %s", got, want)
	}
	if got := id(call, call); got == want {
		t.Errorf("delivery id with another action = %s, want a different one", got)
	}
}

type action struct {
	kind   string
	config map[string]string
}

// fingerprint is a compact array of [type, sorted pairs of the configuration].
func fingerprint(t *testing.T, actions []action) string {
	t.Helper()
	list := []any{}
	for _, a := range actions {
		pairs := [][2]string{}
		for key, value := range a.config {
			if key != "secret" && key != "secret_enc" {
				pairs = append(pairs, [2]string{key, value})
			}
		}
		slices.SortFunc(pairs, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
		list = append(list, []any{a.kind, pairs})
	}
	text, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheSignatureCoversEveryByte(t *testing.T) {
	t.Parallel()
	seen := map[[32]byte]bool{}
	base := vectorStamp()
	other := base
	other.DeliveryID = uuid.MustParse("22222222-2222-4222-8222-222222222222")
	later := base
	later.SentAt = base.SentAt.Add(time.Second)
	for _, h := range []http.Header{
		headers(t, base, vectorBody, vectorSecret), headers(t, base, vectorBody+" ", vectorSecret),
		headers(t, other, vectorBody, vectorSecret), headers(t, later, vectorBody, vectorSecret), headers(t, base, vectorBody, "another secret"),
	} {
		_, v1, _ := strings.Cut(h.Get(HeaderSignature), ",")
		seen[sha256.Sum256([]byte(v1))] = true
	}
	if got, want := len(seen), 5; got != want {
		t.Errorf("%d different signatures, want %d", got, want)
	}
}
