package waha

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// FuzzNormalise feeds both stages with anything: they never panic, always give
// exactly one of update and error, the same each time, and let nothing out that
// the database refuses.
func FuzzNormalise(f *testing.F) {
	files, err := filepath.Glob("testdata/samples/*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("samples = %d, %v", len(files), err)
	}
	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(body)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		env, err := ParseEnvelope(body)
		if err != nil {
			if broken, ok := errors.AsType[*ContractError](err); !errors.Is(err, ErrNotJSON) && (!ok || len(broken.Fields) == 0) {
				t.Errorf("ParseEnvelope() error = %v, want a known one", err)
			}
			return
		}
		if key := env.DedupeKey(string(body)); len(key) > maxKey || !utf8.ValidString(key) {
			t.Errorf("DedupeKey() = %q, want a short text", key)
		}
		u, err := Normalise(env)
		if (u == nil) == (err == nil) {
			t.Fatalf("Normalise() = %v, %v; want one of them", u, err)
		}
		if err != nil {
			broken, ok := errors.AsType[*ContractError](err)
			if !ok || len(broken.Fields) == 0 {
				t.Errorf("Normalise() error = %v, want a *ContractError", err)
			}
			return
		}
		checkUpdate(t, u)
		again, _ := Normalise(env)
		if diff := cmp.Diff(u, again); diff != "" {
			t.Errorf("Normalise() differs the second time:\n%s", diff)
		}
	})
}

// reporter is what *testing.T and *rapid.T share.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
}

// TestNoReplacedFieldDoesHarm puts into each place of a real body, in turn, what
// does not belong there.
func TestNoReplacedFieldDoesHarm(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/samples/message*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("samples = %d, %v", len(files), err)
	}
	odd := []any{
		nil, "", "x", "a\x00b", "@", "_", "true_x_y_z", "5511900000101@c.us", "1@g.us", true, 0, -1, 1.5, 1e300,
		[]any{},
		[]any{"x"},
		object{},
		object{"id": "A"},
		object{"low": 1},
		object{"message": object{"conversation": "x"}},
	}
	rapid.Check(t, func(rt *rapid.T) {
		body, err := os.ReadFile(rapid.SampledFrom(files).Draw(rt, "sample"))
		if err != nil {
			rt.Fatal(err)
		}
		root, _ := decodeObject(body)
		root["engine"] = rapid.SampledFrom([]any{root["engine"], nil, "WPP", "OTHER"}).Draw(rt, "engine")
		for range rapid.IntRange(1, 4).Draw(rt, "replacements") {
			place := rapid.SampledFrom(places(root)).Draw(rt, "place")
			place.in[place.key] = rapid.SampledFrom(odd).Draw(rt, "value")
		}
		changed, err := json.Marshal(root)
		if err != nil {
			rt.Fatal(err)
		}
		env, err := ParseEnvelope(changed)
		if err != nil {
			return
		}
		u, err := Normalise(env)
		if broken, ok := errors.AsType[*ContractError](err); ok && len(broken.Fields) > 0 && u == nil {
			return
		}
		if err != nil || u == nil {
			rt.Fatalf("Normalise() = %v, %v", u, err)
		}
		checkUpdate(rt, u)
	})
}

type place struct {
	in  object
	key string
}

// places lists every field of o and of the objects in it, in a fixed order.
func places(o object) []place {
	var all []place
	for _, key := range slices.Sorted(maps.Keys(o)) {
		all = append(all, place{o, key})
		all = append(all, places(o.object(key))...)
	}
	return all
}

// checkUpdate checks what holds for every update.
func checkUpdate(t reporter, u Update) {
	t.Helper()
	checkStrings(t, reflect.ValueOf(u))
	switch u := u.(type) {
	case Message:
		if !isBareID(u.ID) || u.FullID == "" || u.Type == "" || u.Type == TypeReaction {
			t.Errorf("message = %+v, want its ids and type", u)
		}
		if u.Direction == Outbound && u.PushName != "" {
			t.Errorf("outbound message has the name %q", u.PushName)
		}
		checkIdentity(t, u.Chat)
	case Ack:
		if !isBareID(u.ID) {
			t.Errorf("ack = %+v, want its id", u)
		}
		checkIdentity(t, u.Chat)
	case Edit:
		if !isBareID(u.TargetID) || u.Empty != (u.Body == "") {
			t.Errorf("edit = %+v, want its target", u)
		}
		checkIdentity(t, u.Chat)
	case Revoke:
		if !isBareID(u.TargetID) {
			t.Errorf("revoke = %+v, want its target", u)
		}
		checkIdentity(t, u.Chat)
	case Reaction:
		if !isBareID(u.TargetID) || u.Removed != (u.Emoji == "") {
			t.Errorf("reaction = %+v, want its target", u)
		}
		checkIdentity(t, u.Chat)
	case SessionStatus:
		if u.State == "" {
			t.Errorf("session status = %+v, want a state", u)
		}
	case Ignored:
		if u.Reason == "" {
			t.Errorf("ignored without a reason")
		}
	default:
		t.Errorf("update = %T, want one of seven types", u)
	}
}

func checkIdentity(t reporter, id Identity) {
	t.Helper()
	if id.Kind != ChatPhone && id.Kind != ChatLID {
		t.Errorf("chat = %+v, want a person's", id)
	}
	if id.Phone != "" && !isE164(id.Phone) || id.LID != "" && !allDigits(id.LID) || id.Phone == "" && id.LID == "" {
		t.Errorf("chat = %+v, want a phone or a LID", id)
	}
}

// checkStrings walks all text in v.
func checkStrings(t reporter, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		if s := v.String(); !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
			t.Errorf("text = %q, want UTF-8 without NUL", s)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				checkStrings(t, v.Field(i))
			}
		}
	case reflect.Pointer:
		if !v.IsNil() {
			checkStrings(t, v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			checkStrings(t, v.Index(i))
		}
	default:
	}
}
