package bus_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/deskcomm/deskcomm/bus"
)

func TestWebhookKeyIsWhatTheSecretStandsFor(t *testing.T) {
	t.Parallel()
	for secret, want := range map[string]string{
		"segredo-ção": "segredo-ção", "whsec-legado": "whsec-legado", "whsec_YWJj": "abc", strings.Repeat("s", 200): strings.Repeat("s", 200),
	} {
		if got, err := bus.WebhookKey("secret", secret); err != nil || string(got) != want {
			t.Errorf("WebhookKey(%q) = %q, %v, want %q", secret, got, err, want)
		}
	}
}

func TestWebhookKeyRefusesByFieldAndRuleAndHidesTheSecret(t *testing.T) {
	t.Parallel()
	for name, secret := range map[string]string{
		"nothing": "", "too short": "7 bytes", "too long": strings.Repeat("s", 201), "no key": "whsec_", "no base64": "whsec_not base64",
		"no padding": "whsec_YWJjZA", "a line break in the base64": "whsec_YWJj\nYWJj", "a line break": "a secret\nand more", "bytes that are no text": "secret \xff",
	} {
		_, err := bus.WebhookKey("secret", secret)
		field, ok := errors.AsType[*bus.FieldError](err)
		if !ok || field.Field != "secret" || len(secret) > 7 && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: WebhookKey() = %v, want a refusal of the field", name, err)
		}
	}
}
