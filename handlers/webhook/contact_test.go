package webhook

import (
	"encoding/json"
	"testing"
)

// What package json would read as the key must not be overlooked.
func TestAKeyIsFoundAsADecoderFindsIt(t *testing.T) {
	t.Parallel()
	for object, want := range map[string]bool{
		`{"contact_id":"x"}`:                     true,
		`{"a_b":1,"__":2,"Contact_ID":"x"}`:      true,
		`{"\u0063ontact_id":"x"}`:                true,
		`{"contact_id":"x","contact_name":"y"}`:  true,
		`{"contact":"x","id":1}`:                 false,
		`{"contact_i":"x"}`:                      false,
		`{"ontact_id":"x","_":1}`:                false,
		`{"contact_name":"x","message_id":"y_"}`: false,
		`{}`:                                     false,
		``:                                       false,
	} {
		var named struct {
			ContactID *string `json:"contact_id"`
		}
		if err := json.Unmarshal([]byte(object), &named); object != "" && err != nil {
			t.Fatal(err)
		}
		if got := mayName([]byte(object), "contact_id"); got != want || named.ContactID != nil && !got {
			t.Errorf("mayName(%s) = %t, want %t; a decoder finds it %t", object, got, want, named.ContactID != nil)
		}
	}
}
