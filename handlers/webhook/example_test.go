package webhook_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/deskcomm/deskcomm/handlers/webhook"
)

// A receiver checks the raw body before it reads anything out of it, answers fast,
// and drops deliveries that it knows already.
func ExampleVerify() {
	const secret = "the secret of the subscription"
	seen := map[string]bool{} // a table, in a real receiver
	receiver := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, "unreadable", http.StatusRequestEntityTooLarge)
			return
		}
		if err := webhook.Verify(secret, r.Header, body, time.Now()); err != nil {
			http.Error(w, "not ours", http.StatusUnauthorized)
			return
		}
		if id := r.Header.Get(webhook.HeaderDelivery); !seen[id] {
			seen[id] = true
			fmt.Println("new:", r.Header.Get(webhook.HeaderEvent))
		}
		w.WriteHeader(http.StatusNoContent)
	})

	body := `{"event":"lead.created"}`
	header, err := webhook.Headers(webhook.Stamp{
		EventType: "lead.created", EventID: uuid.New(), DeliveryID: uuid.New(), Attempt: 1, SentAt: time.Now(),
	}, []byte(body), secret)
	if err != nil {
		panic(err)
	}
	for _, sent := range []string{body, body, body + " "} {
		r := httptest.NewRequest(http.MethodPost, "/hook", strings.NewReader(sent))
		r.Header = header
		w := httptest.NewRecorder()
		receiver.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// new: lead.created
	// 204
	// 204
	// 401
}

// A receiver with a library of Standard Webhooks hands it this form of the secret.
func ExampleStandardSecret() {
	const secret, body = "the secret of the subscription", `{"event":"lead.created"}`
	header, err := webhook.Headers(webhook.Stamp{
		EventType: "lead.created", EventID: uuid.New(), DeliveryID: uuid.New(), Attempt: 1, SentAt: time.Now(),
	}, []byte(body), secret)
	if err != nil {
		panic(err)
	}
	receiver, err := standardwebhooks.NewWebhook(webhook.StandardSecret(secret))
	if err != nil {
		panic(err)
	}
	fmt.Println(receiver.Verify([]byte(body), header))
	// Output:
	// <nil>
}
