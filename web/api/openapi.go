package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"

	"github.com/deskcomm/deskcomm/web/problem"
)

const description = `Bearer tokens; the organization comes from the token and never from a body.

Ids are strings, times RFC 3339 in UTC. Lists answer ` + "`items` and `next_cursor`" + `; a cursor is opaque and belongs to
the list that gave it. Every POST that creates takes an ` + "`Idempotency-Key`" + `: the same key and body get the first answer
again, with ` + "`Idempotency-Replayed: true`" + `. ` + "`X-Request-Id`" + ` is taken in and given back, and kept in the metadata of events.

Errors are RFC 9457 problems. They name what is wrong and never repeat a value; a pointer ends at the last name that this
document knows.`

// config describes the API as a whole. Huma's own pages are off: they load
// scripts from elsewhere, and $schema links show addresses behind a proxy.
func config() huma.Config {
	format := huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: unmarshal}
	c := huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info:    &huma.Info{Title: "deskcomm", Version: "1", Description: description},
			Tags: []*huma.Tag{
				{Name: "Events", Description: "Facts and commands: emit them, and see what became of them."},
				{Name: "Webhooks", Description: "Who is told of events by HTTP."},
				{Name: "Dead letters", Description: "Deliveries that wait for a person."},
				{Name: "Channels", Description: "WhatsApp numbers and their gateways."},
				{Name: "CRM", Description: "Contacts, conversations and messages."},
				{Name: "Tokens", Description: "API tokens of the organization."},
			},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"bearer": {Type: "http", Scheme: "bearer", Description: "An API token: `Authorization: Bearer dsk_…`."},
				},
			},
		},
		Formats:       map[string]huma.Format{"application/json": format, "json": format},
		DefaultFormat: "application/json",
	}
	c.AllowAdditionalPropertiesByDefault = true // answers may grow; the bodies of requests forbid it one by one
	return c
}

// unmarshal reads JSON. What huma validates keeps its numbers as text: a payload
// may hold one that no float can, and no field of a body is a number.
func unmarshal(data []byte, v any) error {
	if _, ok := v.(*any); !ok {
		return json.Unmarshal(data, v)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	return decoder.Decode(v)
}

// serveDescription serves the OpenAPI document to anybody.
func (s *Server) serveDescription(r chi.Router) {
	asJSON := sync.OnceValues(func() ([]byte, error) { return json.Marshal(s.api.OpenAPI()) })
	asYAML := sync.OnceValues(func() ([]byte, error) { return s.api.OpenAPI().YAML() })
	serve := func(contentType string, document func() ([]byte, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			text, err := document()
			if err != nil {
				problem.Write(w, r, s.problem(r.Context(), err))
				return
			}
			w.Header().Set("Content-Type", contentType)
			w.Write(text) //nolint:errcheck // the client is gone then
		}
	}
	r.Get("/openapi.json", serve("application/json", asJSON))
	r.Get("/openapi.yaml", serve("application/yaml", asYAML))
}
