// Package inbound receives what other systems post: it authenticates the exact
// bytes, stores them, and answers. What they mean is decided below.
package inbound

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/waha"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/web/problem"
)

// MaxBody is the largest post that is taken, in bytes: gateways embed thumbnails.
const MaxBody = 20 << 20

type receiver struct {
	store  *db.DB
	logger *slog.Logger
}

// New returns the receivers. They see the whole path of a request.
func New(store *db.DB, logger *slog.Logger) http.Handler {
	r := &receiver{store: store, logger: logger}
	mux := chi.NewRouter()
	mux.Post("/v1/webhooks/waha/{token}", r.waha)
	mux.NotFound(func(w http.ResponseWriter, r *http.Request) { problem.Write(w, r, problem.NotFound()) })
	mux.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		problem.Write(w, r, problem.New(http.StatusMethodNotAllowed, problem.CodeMethodNotAllowed, "receivers take POST").
			WithHeader("Allow", http.MethodPost))
	})
	return mux
}

// waha takes one post of a WhatsApp gateway. Everything that is authentic is
// answered 2xx, wanted or not: the gateway would only repeat it.
func (r *receiver) waha(w http.ResponseWriter, req *http.Request) {
	channel, err := r.store.InboundChannel(req.Context(), chi.URLParam(req, "token"))
	if err != nil {
		r.fail(w, req, err)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, MaxBody))
	if err != nil {
		refuseBody(w, req, err)
		return
	}
	signed, err := authentic(channel.Secret, waha.SignatureOf(req.Header.Get), body)
	if err != nil {
		problem.Write(w, req, wrongSignature())
		return
	}
	envelope, err := waha.ParseEnvelope(body)
	if err != nil {
		problem.Write(w, req, unreadable(err))
		return
	}
	result, err := r.store.Ingest(req.Context(), channel, db.InboundPost{
		Envelope: envelope, RequestID: req.Header.Get("X-Webhook-Request-Id"), Headers: storedHeaders(req.Header),
		OurRequestID: problem.RequestID(req.Context()), Body: body, SignatureValid: signed,
	})
	if err != nil {
		r.fail(w, req, err)
		return
	}
	r.report(req, channel, result)
	answer(w, result)
}

// authentic checks a post. A channel without a secret takes what is not signed;
// a signature that nobody can check is refused.
func authentic(secret string, sig waha.Signature, body []byte) (signed bool, err error) {
	err = waha.Verify(secret, sig, body)
	if errors.Is(err, waha.ErrUnsigned) && secret == "" {
		return false, nil
	}
	return err == nil, err
}

func wrongSignature() *problem.Problem {
	p := problem.New(http.StatusUnauthorized, "invalid_signature", "the signature does not match the body")
	p.Errors = []problem.Fault{problem.InParameter("X-Webhook-Hmac",
		"must be the HMAC-SHA-512 of the raw body in hex, made with the webhook secret of the channel")}
	return p
}

// unreadable explains a body that has no envelope.
func unreadable(err error) *problem.Problem {
	contract, ok := errors.AsType[*waha.ContractError](err)
	if !ok {
		return problem.InvalidJSON("must be JSON")
	}
	p := problem.New(http.StatusBadRequest, problem.CodeInvalid, "the body is not the envelope of a gateway event")
	p.Errors = faults(contract.Fields)
	return p
}

func faults(fields []waha.FieldError) []problem.Fault {
	list := make([]problem.Fault, len(fields))
	for i, f := range fields {
		list[i] = problem.InBody(f.Pointer, f.Rule)
	}
	return list
}

// report logs what a person may have to look into.
func (r *receiver) report(req *http.Request, channel db.InboundChannel, result db.InboundResult) {
	level := slog.LevelDebug
	switch result.Status {
	case db.InboundMalformed:
		level = slog.LevelWarn
	case db.InboundError:
		level = slog.LevelError
	}
	r.logger.Log(req.Context(), level, "gateway post taken", "org_id", channel.OrgID, "channel_session_id", channel.ID,
		"outcome", result.Status, "reason", result.Reason, "request_id", problem.RequestID(req.Context()))
}

func answer(w http.ResponseWriter, result db.InboundResult) {
	body := map[string]any{"accepted": true, "status": result.Status}
	switch result.Status {
	case db.InboundMalformed:
		body["errors"] = faults(result.Fields)
	case db.InboundError: // its reason is for the log
	default:
		if result.Reason != "" {
			body["reason"] = result.Reason
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	json.NewEncoder(w).Encode(body) //nolint:errcheck // the gateway reads the status only
}

// storedHeaders keeps the headers of a post without what gives access.
func storedHeaders(h http.Header) map[string]string {
	kept := make(map[string]string, len(h))
	for name, values := range h {
		switch name {
		case "Authorization", "Cookie", "X-Api-Key", "Proxy-Authorization":
			continue
		}
		kept[strings.ToLower(name)] = strings.ToValidUTF8(strings.Join(values, ", "), "\uFFFD")
	}
	return kept
}

func refuseBody(w http.ResponseWriter, req *http.Request, err error) {
	p, known := problem.From(err)
	if !known {
		p = problem.New(http.StatusBadRequest, problem.CodeBadRequest, "the body ended early")
	}
	problem.Write(w, req, p)
}

// fail answers what could not be stored with a status that makes the gateway
// repeat it.
func (r *receiver) fail(w http.ResponseWriter, req *http.Request, err error) {
	p, known := problem.From(err)
	if !known || errors.Is(err, bus.ErrUnavailable) {
		r.logger.ErrorContext(req.Context(), "take gateway post", "error", err, "request_id", problem.RequestID(req.Context()))
	}
	if errors.Is(err, bus.ErrNotFound) {
		p = problem.NotFound()
		p.Errors = []problem.Fault{problem.InParameter("token", "must be the path token of a channel that is not deleted")}
	}
	problem.Write(w, req, p)
}
