package waha

import (
	"encoding/json"
	"errors"
	"testing"
)

// event builds the body of a webhook of the account 5511900000001.
func event(t *testing.T, name, engine string, payload any) []byte {
	t.Helper()
	if text, ok := payload.(string); ok {
		payload = json.RawMessage(text)
	}
	body, err := json.Marshal(object{
		"id": "evt_test", "event": name, "session": "s", "engine": engine, "timestamp": 1783170000431,
		"me":      object{"id": "5511900000001@c.us", "lid": "100000000000001@lid", "pushName": "Loja Ipê"},
		"payload": payload,
	})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// dm is an event about a conversation with Ana, to whose payload fields are added.
func dm(t *testing.T, name, engine, fields string) []byte {
	t.Helper()
	payload := `{"id":"false_5511900000101@c.us_3EB0A","from":"5511900000101@c.us","fromMe":false,` +
		`"to":"5511900000001@c.us","timestamp":1783170000`
	if fields != "" {
		payload += "," + fields
	}
	return event(t, name, engine, payload+"}")
}

func messageOf(t *testing.T, u Update) Message {
	t.Helper()
	m, ok := u.(Message)
	if !ok {
		t.Fatalf("Normalise() = %T %+v, want a Message", u, u)
	}
	return m
}

// violations returns the fields that break the contract in body.
func violations(t *testing.T, body []byte) []FieldError {
	t.Helper()
	env, err := ParseEnvelope(body)
	if err != nil {
		t.Fatalf("ParseEnvelope() error = %v", err)
	}
	u, err := Normalise(env)
	broken, ok := errors.AsType[*ContractError](err)
	if !ok || u != nil {
		t.Fatalf("Normalise() = %+v, %v; want a *ContractError alone", u, err)
	}
	return broken.Fields
}
