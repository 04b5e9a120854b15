package waha

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

type hmacVector struct {
	Key       string `json:"key"`
	Body      string `json:"body"`
	HMAC      string `json:"x-webhook-hmac"`
	Timestamp string `json:"x-webhook-timestamp"`
}

func hmacVectors(t *testing.T) []hmacVector {
	t.Helper()
	raw, err := os.ReadFile("testdata/hmac-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		WAHA []hmacVector `json:"waha"`
	}
	if err := json.Unmarshal(raw, &file); err != nil || len(file.WAHA) != 3 {
		t.Fatalf("vectors = %d, %v; want 3", len(file.WAHA), err)
	}
	return file.WAHA
}

// signVersion2 signs like the fork that also signs the X-Webhook-Timestamp.
func signVersion2(secret, timestamp string, body []byte) string {
	return hex.EncodeToString(sum(secret, []byte(timestamp+"."), body))
}

func TestVerifyAcceptsThePublishedVectors(t *testing.T) {
	t.Parallel()
	for _, v := range hmacVectors(t) {
		sig := Signature{HMAC: v.HMAC, Algorithm: "sha512", Timestamp: v.Timestamp}
		signed := Sign(v.Key, []byte(v.Body))
		if v.Timestamp != "" {
			sig.Version = "2"
			signed = signVersion2(v.Key, v.Timestamp, []byte(v.Body))
		}
		if signed != v.HMAC {
			t.Errorf("signature of %s = %s, want %s", v.Body, signed, v.HMAC)
		}
		for _, prefix := range []string{"", "sha512="} {
			sig.HMAC = prefix + v.HMAC
			if err := Verify(v.Key, sig, []byte(v.Body)); err != nil {
				t.Errorf("Verify(%+v) = %v, want nil", sig, err)
			}
		}
	}
}

func TestVerifyRefuses(t *testing.T) {
	t.Parallel()
	const secret, timestamp = "my-secret-key", "1783170000431"
	body := []byte(`{"event":"message"}`)
	good := Sign(secret, body)
	tests := map[string]struct {
		secret string
		sig    Signature
		want   error
	}{
		"a body without a signature":         {secret, Signature{}, ErrUnsigned},
		"an unsigned body without a secret":  {"", Signature{}, ErrUnsigned},
		"a signature nobody can check":       {"", Signature{HMAC: good}, ErrNoSecret},
		"the signature of another secret":    {"my-secret-kez", Signature{HMAC: good}, ErrSignature},
		"a signature cut short":              {secret, Signature{HMAC: good[:126]}, ErrSignature},
		"a signature that is only a prefix":  {secret, Signature{HMAC: "sha512="}, ErrSignature},
		"a signature that is not hex":        {secret, Signature{HMAC: strings.Repeat("zz", 64)}, ErrSignature},
		"another algorithm":                  {secret, Signature{HMAC: good, Algorithm: "sha256"}, ErrSignature},
		"version 2 with a plain signature":   {secret, Signature{HMAC: good, Version: "2", Timestamp: timestamp}, ErrSignature},
		"version 2 without a timestamp":      {secret, Signature{HMAC: signVersion2(secret, "", body), Version: "2"}, ErrSignature},
		"a version 2 signature unannounced":  {secret, Signature{HMAC: signVersion2(secret, timestamp, body), Timestamp: timestamp}, ErrSignature},
		"a version nobody has heard of":      {secret, Signature{HMAC: good, Version: "3"}, ErrSignature},
		"version 2 with another timestamp":   {secret, Signature{HMAC: signVersion2(secret, timestamp, body), Version: "2", Timestamp: "1783170000432"}, ErrSignature},
		"a signature in the wrong algorithm": {secret, Signature{HMAC: "sha256=" + good}, ErrSignature},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Verify(tt.secret, tt.sig, body); !errors.Is(got, tt.want) {
				t.Errorf("Verify() = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestVerifyFailsWhenAnyByteChanges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		secret := rapid.StringN(1, 80, -1).Draw(rt, "secret")
		body := rapid.SliceOfN(rapid.Byte(), 1, 300).Draw(rt, "body")
		sig := Signature{HMAC: Sign(secret, body)}
		if err := Verify(secret, sig, body); err != nil {
			rt.Fatalf("Verify() of the signed body = %v, want nil", err)
		}
		body[rapid.IntRange(0, len(body)-1).Draw(rt, "at")] ^= 1 << rapid.IntRange(0, 7).Draw(rt, "bit")
		if err := Verify(secret, sig, body); !errors.Is(err, ErrSignature) {
			rt.Fatalf("Verify() of a changed body = %v, want %v", err, ErrSignature)
		}
	})
}

func TestSignatureOfReadsTheHeadersOfTheGateway(t *testing.T) {
	t.Parallel()
	headers := map[string]string{
		"X-Webhook-Hmac": " ab ", "X-Webhook-Hmac-Algorithm": "sha512",
		"X-Webhook-Hmac-Version": "2", "X-Webhook-Timestamp": "1783170000431",
	}
	got := SignatureOf(func(name string) string { return headers[name] })
	want := Signature{HMAC: "ab", Algorithm: "sha512", Version: "2", Timestamp: "1783170000431"}
	if got != want {
		t.Errorf("SignatureOf() = %+v, want %+v", got, want)
	}
}
