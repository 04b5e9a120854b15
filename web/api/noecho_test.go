package api

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"
	"github.com/google/uuid"
)

// marker stands for something that must never come back in an error. It is the
// form of nothing that the API takes.
const marker = "s3cr3t-marker"

// values are JSON values that hold the marker in every way that a value can.
var values = []string{
	`"` + marker + `"`, `["` + marker + `"]`, `{"` + marker + `":1}`, `{"a":"` + marker + `"}`, `[["` + marker + `"]]`,
	`{"x.` + marker + `":1,"y[` + marker + `":2,"z.` + marker + `":3}`, `"\u0000` + marker + `"`, `{"\u0000` + marker + `":1}`,
	`"\ud800` + marker + `"`, `"\u0001` + marker + `"`, `["a","` + marker + `","a"]`, `12345` + marker, `"` + marker, `1e999`,
	`{"` + marker + `":"\u0000"}`, `{"` + marker + `":{"b":"\ud800"}}`, `[{"` + marker + `":1}]`,
	`{"event_type":"` + marker + `","entity_kind":"` + marker + `","x.` + marker + `":1}`,
	`{"` + marker + `.x.y":1,"` + marker + `[x.y":2}`, `[{"` + marker + `.x.y":1},{"` + marker + `[x[y":1},{"event_type":1},{"event_type":1}]`,
	`[{"x.` + marker + `":1,"event_type":1},{"event_type":"` + marker + `","entity_kind":7},{"entity_id":"` + marker + `"}]`,
}

// wantSilent fails the test when an error repeats the marker.
func (a answer) wantSilent(what string) {
	a.t.Helper()
	if a.status >= http.StatusInternalServerError {
		a.t.Errorf("%s: status = %d: %s", what, a.status, a.text)
	}
	if a.status < http.StatusBadRequest {
		return
	}
	echo := strings.ToLower(a.text + fmt.Sprint(a.header))
	if strings.Contains(echo, "s3cr3t") || strings.Contains(echo, "marker") {
		a.t.Errorf("%s: the error repeats the marker: %s", what, a.text)
	}
}

func TestErrorsNeverRepeatWhatStandsInABody(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for name, op := range w.operations() {
		method, path, _ := strings.Cut(name, " ")
		_, schema := contract(op)
		if method != http.MethodPost || schema == nil {
			continue
		}
		path = strings.ReplaceAll(path, "{id}", uuid.NewString())
		for _, body := range values {
			w.post(path, body).wantSilent(name + " " + body)
		}
		schema = (&scanner{schemas: w.server.api.OpenAPI().Components.Schemas}).resolve(schema)
		for field := range schema.Properties {
			for _, value := range values {
				body := strings.Replace(good(passing[path], schema), `"`+field+`":`, `"`+field+`":`+value+`,"was":`, 1)
				w.post(path, body).wantSilent(name + " " + body)
				body = good(passing[path], schema)
				body = strings.TrimSuffix(body, "}") + `,"` + marker + `":` + value + `,"` + field + `":` + value + `}`
				w.post(path, body).wantSilent(name + " " + body)
			}
		}
	}
}

// good is a body that has every field of the schema, mostly with bad values.
func good(body string, schema *huma.Schema) string {
	if body == "" {
		body = "{}"
	}
	for field := range schema.Properties {
		if !strings.Contains(body, `"`+field+`"`) {
			comma := ","
			if body == "{}" {
				comma = ""
			}
			body = strings.TrimSuffix(body, "}") + comma + `"` + field + `":null}`
		}
	}
	return body
}

func TestErrorsNeverRepeatParameters(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for name, op := range w.operations() {
		method, path, _ := strings.Cut(name, " ")
		w.send(method, strings.ReplaceAll(path, "{id}", marker), passing[path]).wantSilent(name + " path")
		w.send(method, strings.ReplaceAll(path, "{id}", marker+"%00"), passing[path]).wantSilent(name + " path")
		path = strings.ReplaceAll(path, "{id}", uuid.NewString())
		w.send(method, path+"?"+marker+"="+marker+"&x["+marker+"]=1&%zz"+marker, passing[path]).wantSilent(name + " query")
		for _, p := range op.Parameters {
			for _, value := range []string{marker, marker + "\x00", marker + "\xff", "[" + marker, marker + strings.Repeat("x", 300), "{\"" + marker + "\":1}"} {
				switch p.In {
				case "query":
					a := w.send(method, path+"?"+p.Name+"="+url.QueryEscape(value), passing[path])
					a.wantSilent(name + " " + p.Name)
					if a.status == http.StatusUnprocessableEntity {
						a.wantFault("", p.Name)
					}
				case "header":
					w.send(method, path, strings.ReplaceAll(passing[path], "NAME", uuid.NewString()), p.Name, value).wantSilent(name + " " + p.Name)
				}
			}
		}
		for _, header := range []string{"Accept", "Content-Type", "Authorization", "X-Request-Id", "Host", "Cookie", "Content-Encoding", "Expect"} {
			w.send(method, path, passing[path], header, marker).wantSilent(name + " " + header)
		}
	}
}

func TestBadParametersAreNamed(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for path, parameter := range map[string]string{
		"/v1/events?limit=0":              "limit",
		"/v1/events?limit=201":            "limit",
		"/v1/events?limit=many":           "limit",
		"/v1/events?limit=1.5":            "limit",
		"/v1/events?status=lost":          "status",
		"/v1/events?entity_id=7":          "entity_id",
		"/v1/events?since=yesterday":      "since",
		"/v1/events?until=2026-01-02":     "until",
		"/v1/events?event_type=%00":       "event_type",
		"/v1/events?entity_kind=%ff":      "entity_kind",
		"/v1/events?cursor=%00":           "cursor",
		"/v1/events/not-an-id":            "id",
		"/v1/events/%00":                  "id",
		"/v1/dlq?consumer=%0a":            "consumer",
		"/v1/messages?conversation_id=%7": "",
	} {
		a := w.get(path)
		if parameter == "" {
			a.want(http.StatusOK) // a pair that is no query is no parameter
			continue
		}
		a.wantFault("", parameter)
	}
}

func TestRulesNeverHoldWhatHumaQuotes(t *testing.T) {
	t.Parallel()
	for _, message := range []string{
		validation.MsgExpectedRFC5322Email, validation.MsgExpectedRFC3986URI, validation.MsgExpectedRFC4122UUID,
		validation.MsgExpectedRegexp, validation.MsgExpectedDuration, "invalid value: %v", "invalid character %v", "%v", "required %v",
		"json: cannot unmarshal number %v into Go value", "parsing time %v", "unknown content type: %v", "cannot read multipart form: %v",
	} {
		if got := rule(fmt.Sprintf(message, marker)); strings.Contains(got, marker) {
			t.Errorf("rule(%q) = %q, which holds what was quoted", message, got)
		}
	}
}

func TestAnUnknownPropertyIsPlacedButNotNamed(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for body, pointer := range map[string]string{
		`{"event_type":"custom.a","entity_kind":"x","` + marker + `":1}`:                 "",
		`{"event_type":"custom.a","entity_kind":"x","a.` + marker + `":1}`:               "",
		`{"event_type":"custom.a","entity_kind":"x","entity_kind.` + marker + `":1}`:     "",
		`{"event_type":"custom.a","entity_kind":"x","EVENT_TYPE":"custom.b"}`:            "",
		`{"event_type":"custom.a","entity_kind":"x","organization_id":"` + marker + `"}`: "",
	} {
		fault := w.post("/v1/events", body).wantFault(pointer, "")
		if got, want := fault.Rule, "has a property that is not allowed"; got != want {
			t.Errorf("rule = %q, want %q", got, want)
		}
	}
	// After a name with a dot huma's places are wrong, so that fault is the last.
	w.post("/v1/events/batch", `{"events":[`+custom+`,{"event_type":"custom.a","entity_kind":"x","`+marker+`.a.b":1},
		{"event_type":7,"entity_kind":"x"}]}`).wantFault("/events/1", "")
}
