package webhook

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestVerifyAcceptsOnlyOurFreshSignature(t *testing.T) {
	t.Parallel()
	at := time.Unix(vectorTime, 0)
	for name, tt := range map[string]struct {
		change func(http.Header)
		secret string
		body   string
		now    time.Time
		want   VerifyCode // "" means accepted
	}{
		"as sent":             {want: ""},
		"300 s late":          {now: at.Add(300 * time.Second), want: ""},
		"300 s early":         {now: at.Add(-300 * time.Second), want: ""},
		"301 s late":          {now: at.Add(301 * time.Second), want: SignatureStale},
		"301 s early":         {now: at.Add(-301 * time.Second), want: SignatureStale},
		"another secret":      {secret: "other", want: SignatureMismatch},
		"no secret":           {secret: "-", want: SignatureMalformed},
		"another body":        {body: vectorBody + " ", want: SignatureMismatch},
		"another delivery":    {change: set(HeaderDelivery, "22222222-2222-4222-8222-222222222222"), want: SignatureMismatch},
		"no delivery":         {change: remove(HeaderDelivery), want: SignatureMissing},
		"no signature":        {change: remove(HeaderSignature), want: SignatureMissing},
		"two signatures":      {change: add(HeaderSignature, "t=1,v1=aa"), want: SignatureMalformed},
		"two deliveries":      {change: add(HeaderDelivery, "x"), want: SignatureMalformed},
		"empty signature":     {change: set(HeaderSignature, ""), want: SignatureMalformed},
		"no time":             {change: set(HeaderSignature, "v1="+vectorV1), want: SignatureMalformed},
		"no v1":               {change: set(HeaderSignature, "t=1767225600"), want: SignatureMalformed},
		"two times":           {change: set(HeaderSignature, "t=1767225600,t=1767225601,v1="+vectorV1), want: SignatureMalformed},
		"time in words":       {change: set(HeaderSignature, "t=now,v1="+vectorV1), want: SignatureMalformed},
		"time beyond numbers": {change: set(HeaderSignature, "t=99999999999999999999,v1="+vectorV1), want: SignatureMalformed},
		"v1 not hex":          {change: set(HeaderSignature, "t=1767225600,v1=zz"), want: SignatureMalformed},
		"empty v1":            {change: set(HeaderSignature, "t=1767225600,v1="), want: SignatureMismatch},
		"short v1":            {change: set(HeaderSignature, "t=1767225600,v1="+vectorV1[:62]), want: SignatureMismatch},
		"unsigned time moved": {change: set(HeaderTimestamp, "1"), want: ""},
		"signed time moved":   {change: set(HeaderSignature, "t=1767225601,v1="+vectorV1), want: SignatureMismatch},
		"legacy as v1":        {change: set(HeaderSignature, "t=1767225600,v1="+vectorOld), want: SignatureMismatch},
		"a second v1":         {change: set(HeaderSignature, "t=1767225600, v1=aa, v1="+vectorV1), want: ""},
		"upper case":          {change: set(HeaderSignature, "t=1767225600,v1="+strings.ToUpper(vectorV1)), want: ""},
		"a part to come":      {change: set(HeaderSignature, "t=1767225600,v1="+vectorV1+",v2=x"), want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := headers(t, vectorStamp(), vectorBody, vectorSecret)
			if tt.change != nil {
				tt.change(h)
			}
			secret, body, now := vectorSecret, vectorBody, at
			if tt.secret != "" {
				secret = strings.TrimPrefix(tt.secret, "-")
			}
			if tt.body != "" {
				body = tt.body
			}
			if !tt.now.IsZero() {
				now = tt.now
			}
			err := Verify(secret, h, []byte(body), now)
			var got VerifyCode
			if refusal, ok := errors.AsType[*VerifyError](err); ok {
				got = refusal.Code
			}
			if got != tt.want || (err == nil) != (tt.want == "") {
				t.Errorf("Verify = %v, want %q", err, tt.want)
			}
		})
	}
}

func set(name, value string) func(http.Header) { return func(h http.Header) { h.Set(name, value) } }
func add(name, value string) func(http.Header) { return func(h http.Header) { h.Add(name, value) } }
func remove(name string) func(http.Header)     { return func(h http.Header) { h.Del(name) } }

func FuzzVerify(f *testing.F) {
	f.Add("t=1767225600,v1="+vectorV1, vectorDelivery)
	f.Add("t=1,v1=,v1=aa", "")
	f.Fuzz(func(t *testing.T, signature, delivery string) {
		h := http.Header{HeaderSignature: {signature}, HeaderDelivery: {delivery}}
		forged := !strings.Contains(strings.ToLower(signature), vectorV1) || delivery != vectorDelivery
		if Verify(vectorSecret, h, []byte(vectorBody), time.Unix(vectorTime, 0)) == nil && forged {
			t.Fatalf("Verify accepts %q for %q", signature, delivery)
		}
	})
}
