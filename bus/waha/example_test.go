package waha_test

import (
	"fmt"

	"github.com/deskcomm/deskcomm/bus/waha"
)

// A receiver verifies the raw bytes, stores them, and only then asks what they
// say.
func ExampleNormalise() {
	const secret = "a-secret-of-the-channel"
	body := []byte(`{"id":"evt_1","event":"message","engine":"GOWS","payload":{
		"id":"false_5511900000101@c.us_3EB0A","from":"5511900000101@c.us","fromMe":false,"body":"Oi"}}`)
	headers := map[string]string{"X-Webhook-Hmac": waha.Sign(secret, body)}

	sig := waha.SignatureOf(func(name string) string { return headers[name] })
	if err := waha.Verify(secret, sig, body); err != nil {
		fmt.Println(err)
		return
	}
	env, err := waha.ParseEnvelope(body)
	if err != nil {
		fmt.Println(err)
		return
	}
	update, err := waha.Normalise(env)
	if err != nil {
		fmt.Println(err)
		return
	}
	switch u := update.(type) {
	case waha.Message:
		fmt.Println(u.Direction, u.Chat.Phone, u.ID, u.Body)
	case waha.Ignored:
		fmt.Println(u.Reason)
	}
	// Output: inbound +5511900000101 3EB0A Oi
}
