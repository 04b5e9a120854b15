package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/deskcomm/deskcomm/web/problem"
)

func TestABodyMustBeJSONOfTheRightSize(t *testing.T) {
	t.Parallel()
	w := setup(t)
	fill := func(size int) string { // a valid event of that many bytes
		const frame = `{"event_type":"custom.a","entity_kind":"x","payload":{"a":""}}`
		return strings.Replace(frame, `""`, `"`+strings.Repeat("a", size-len(frame))+`"`, 1)
	}
	batch := func(size int) string { // of ten events, none above the limit of one
		events := strings.Repeat(fill(900_000)+",", 9)
		return `{"events":[` + events + fill(size-len(`{"events":[]}`)-len(events)) + `]}`
	}
	const events, batches = "/v1/events", "/v1/events/batch"
	for name, tt := range map[string]struct {
		path, body string
		status     int
		code       problem.Code
	}{
		"at the limit":                         {events, fill(1 << 20), http.StatusCreated, ""},
		"above the limit":                      {events, fill(1<<20 + 1), http.StatusRequestEntityTooLarge, problem.CodeTooLarge},
		"batch at its limit":                   {batches, batch(8 << 20), http.StatusCreated, ""},
		"batch with one event above its limit": {batches, `{"events":[` + fill(1<<20+100) + `]}`, http.StatusUnprocessableEntity, problem.CodeInvalid},
		"batch above it":                       {batches, batch(8<<20 + 1), http.StatusRequestEntityTooLarge, problem.CodeTooLarge},
		"cut off":                              {events, custom[:30], http.StatusBadRequest, problem.CodeInvalidJSON},
		"two values":                           {events, custom + custom, http.StatusBadRequest, problem.CodeInvalidJSON},
		"byte order mark":                      {events, "\ufeff" + custom, http.StatusBadRequest, problem.CodeInvalidJSON},
		"not UTF-8":                            {events, strings.Replace(custom, "order", "\xff", 1), http.StatusBadRequest, problem.CodeInvalidJSON},
		"raw NUL":                              {events, custom + "\x00", http.StatusUnprocessableEntity, problem.CodeInvalid},
		"raw NUL in a string":                  {events, strings.Replace(custom, "shipped", "\x00", 1), http.StatusUnprocessableEntity, problem.CodeInvalid},
		"list":                                 {events, "[" + custom + "]", http.StatusUnprocessableEntity, problem.CodeInvalid},
		"null":                                 {events, "null", http.StatusUnprocessableEntity, problem.CodeInvalid},
		"nothing":                              {events, "", http.StatusUnprocessableEntity, problem.CodeInvalid},
		"spaces":                               {events, "  ", http.StatusBadRequest, problem.CodeInvalidJSON},
		"nested to the limit":                  {events, nested(maxDepth - 1), http.StatusCreated, ""},
		"nested beyond it":                     {events, nested(maxDepth), http.StatusUnprocessableEntity, problem.CodeInvalid},
		"nested beyond reason":                 {events, nested(200_000), http.StatusBadRequest, problem.CodeInvalidJSON},
		"number of 400 digits":                 {events, `{"event_type":"custom.a","entity_kind":"x","payload":{"n":1e400}}`, http.StatusCreated, ""},
		"number of 401 digits":                 {events, `{"event_type":"custom.a","entity_kind":"x","payload":{"n":-1E+401}}`, http.StatusUnprocessableEntity, problem.CodeInvalid},
		"null where optional":                  {events, `{"event_type":"custom.a","entity_kind":"x","entity_id":null,"payload":null,"metadata":null}`, http.StatusCreated, ""},
	} {
		t.Log(name)
		a := w.post(tt.path, tt.body)
		if tt.code == "" {
			a.want(tt.status)
			continue
		}
		if p, _ := a.problem(tt.status); p.Code != tt.code {
			t.Errorf("%s: code = %s, want %s", name, p.Code, tt.code)
		}
	}
	p, _ := w.post(events, fill(2<<20)).problem(http.StatusRequestEntityTooLarge)
	if !strings.Contains(p.Detail, "1048576") {
		t.Errorf("detail = %q, want it to name the limit", p.Detail)
	}
}

// nested is an event whose payload nests that deep, itself included.
func nested(depth int) string {
	return `{"event_type":"custom.a","entity_kind":"x","payload":{"a":` + strings.Repeat("[", depth-1) + strings.Repeat("]", depth-1) + `}}`
}

func TestABodyOfUnknownLengthHasTheSameLimit(t *testing.T) {
	t.Parallel()
	w := setup(t)
	r := httptest.NewRequestWithContext(problem.WithRequestID(t.Context(), "req-1"), http.MethodPost, "/v1/events",
		io.MultiReader(strings.NewReader(`{"a":"`), strings.NewReader(strings.Repeat("a", 1<<20))))
	r.Header.Set("Authorization", "Bearer "+w.token)
	rec := httptest.NewRecorder()
	w.handler.ServeHTTP(rec, r)
	answer{t: t, status: rec.Code, header: rec.Header(), text: rec.Body.String()}.problem(http.StatusRequestEntityTooLarge)
}

func TestABodyMustBeOfTypeJSON(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for contentType, status := range map[string]int{
		"application/json": http.StatusCreated, "application/json; charset=utf-8": http.StatusCreated, "APPLICATION/JSON": http.StatusCreated, "": http.StatusCreated,
		"application/x-www-form-urlencoded": http.StatusUnsupportedMediaType, "text/plain": http.StatusUnsupportedMediaType,
		"application/jsonp": http.StatusUnsupportedMediaType, "application/merge-patch+json": http.StatusUnsupportedMediaType,
		"multipart/form-data; boundary=x": http.StatusUnsupportedMediaType, ";": http.StatusUnsupportedMediaType,
	} {
		a := w.post("/v1/events", custom, "Content-Type", contentType).want(status)
		if status == http.StatusUnsupportedMediaType {
			a.problem(status)
		}
	}
}

func TestTextThatPostgresCannotHoldIsPlaced(t *testing.T) {
	t.Parallel()
	w := setup(t)
	event := func(rest string) string { return `{"event_type":"custom.a","entity_kind":"x"` + rest + `}` }
	for body, pointer := range map[string]string{
		event(`,"payload":{"a":"b\u0000"}`):                      "/payload",
		event(`,"payload":{"a\u0000":1}`):                        "/payload",
		event(`,"payload":{"a":{"b":["\ud800"]}}`):               "/payload",
		event(`,"payload":{"a":"\udc00\ud800"}`):                 "/payload",
		event(`,"payload":{"a":"\ud83dx"}`):                      "/payload",
		event(`,"metadata":{"a":"\u0000"}`):                      "/metadata",
		event(`,"x":"\u0000"`):                                   "",
		event(`,"\u0000":1`):                                     "",
		`{"event_type":"custom.\u0000","entity_kind":"x"}`:       "/event_type",
		`{"event_type":"custom.a","entity_kind":["a","\u0000"]}`: "/entity_kind",
		`"\u0000"`: "",
	} {
		w.post("/v1/events", body).wantFault(pointer, "")
	}
	for _, fine := range []string{`"\\u0000"`, `"\ud83d\ude00"`, `"\uD83D\uDE00"`, `"😀"`, `"\u0001"`, `"\""`, `"\\"`, `[1 , true,null ]`, `-1.5e+3`} {
		w.post("/v1/events", event(`, "payload" : {"a" : `+fine+` } `)).want(http.StatusCreated)
	}
	w.post("/v1/channel-sessions", `{"name":"a","webhook_secret":"\u00000000000000000000"}`).wantFault("/webhook_secret", "")
	w.post("/v1/tokens", `{"name":"ab","scopes":["admin","\u0000"]}`).wantFault("/scopes/1", "")
}

func FuzzScannerReadsAllValidJSON(f *testing.F) {
	for _, seed := range append(values, `{"a":[1,2,{"b":null}],"c":"\n\u00e9"}`, ` [ ] `, `{ }`, `"\ud83d\ude00"`, `1e5`, custom) {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !json.Valid(text) {
			return
		}
		s := scanner{text: text}
		if fault := s.run(nil); fault == nil && s.at != len(bytes.TrimRight(text, " \t\r\n")) {
			t.Errorf("stopped at %d of %q", s.at, text)
		}
	})
}

func TestABodyThatEndsEarlyIsRefused(t *testing.T) {
	t.Parallel()
	w := setup(t)
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.handler.ServeHTTP(rw, r.WithContext(problem.WithRequestID(r.Context(), "req-1")))
	}))
	t.Cleanup(srv.Close)
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() }) //nolint:errcheck // the test is over
	if _, err := fmt.Fprintf(conn, "POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\n%s", w.token, custom); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() //nolint:errcheck // only read from
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	answer{t: t, status: res.StatusCode, header: res.Header, text: string(text)}.problem(http.StatusBadRequest)
}
