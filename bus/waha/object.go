package waha

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"
)

// object is a decoded JSON object with numbers kept as text. Every reader
// accepts a nil object and treats absent, null and a value of another kind
// alike, because engines and versions disagree about all three.
type object map[string]any

// decodeObject reads the JSON object that raw begins with, made storable; ok is
// false for anything else.
func decodeObject(raw []byte) (o object, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(storable(raw)))
	dec.UseNumber()
	if err := dec.Decode(&o); err != nil {
		return nil, false
	}
	return o, o != nil
}

// object returns the first of keys that holds an object, or nil.
func (o object) object(keys ...string) object {
	for _, key := range keys {
		if child, ok := o[key].(map[string]any); ok {
			return child
		}
	}
	return nil
}

// text returns the first of keys that holds a non-empty string or a number.
func (o object) text(keys ...string) string {
	for _, key := range keys {
		switch v := o[key].(type) {
		case string:
			if v != "" {
				return v
			}
		case json.Number:
			return v.String()
		}
	}
	return ""
}

// has reports whether key holds anything but null.
func (o object) has(key string) bool { return o[key] != nil }

// flag reports whether one of keys is true.
func (o object) flag(keys ...string) bool {
	for _, key := range keys {
		if v, ok := asBool(o[key]); ok && v {
			return true
		}
	}
	return false
}

// objects returns the objects in the list under key.
func (o object) objects(key string) []object {
	list, _ := o[key].([]any)
	var objects []object
	for _, v := range list {
		if child, ok := v.(map[string]any); ok {
			objects = append(objects, child)
		}
	}
	return objects
}

func asBool(v any) (value, ok bool) {
	switch v := v.(type) {
	case bool:
		return v, true
	case string:
		return v == "true", v == "true" || v == "false"
	}
	return false, false
}

// asFloat reads a number, also one written as text.
func asFloat(v any) (float64, bool) {
	var text string
	switch v := v.(type) {
	case json.Number:
		text = v.String()
	case string:
		text = strings.TrimSpace(v)
	}
	if len(text) == 0 || len(text) > 40 {
		return 0, false
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
		return 0, false
	}
	return f, true
}

// asInt reads a whole number, dropping a fraction. NOWEB writes some as the
// halves of a 64-bit integer: {"low": …, "high": …}.
func asInt(v any) (int64, bool) {
	if long, ok := v.(map[string]any); ok {
		low, lowOK := asFloat(long["low"])
		high, _ := asFloat(long["high"])
		if !lowOK || math.Abs(low) > 1<<32 || math.Abs(high) > 1<<20 {
			return 0, false
		}
		return int64(high)<<32 | int64(uint32(int64(low))), true
	}
	f, ok := asFloat(v)
	if !ok || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}

// asTime reads an instant in seconds or, above 10^11, in milliseconds; either
// may have a fraction. What is no instant is the zero time.
func asTime(v any) time.Time {
	f, ok := asFloat(v)
	if !ok {
		n, isLong := asInt(v)
		f, ok = float64(n), isLong
	}
	if !ok || f <= 0 || f > 1e14 {
		return time.Time{}
	}
	if f > 1e11 {
		f /= 1000
	}
	return time.UnixMilli(int64(math.Round(f * 1000))).UTC()
}
