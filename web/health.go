package web

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/deskcomm/deskcomm/db"
)

// probeTime is how long the checks behind a probe may take together.
const probeTime = 3 * time.Second

// health answers probes.
type health struct {
	db     *db.DB
	checks map[string]func(ctx context.Context) error
	logger *slog.Logger
}

// ReasonError is an error of a check that anybody may read: it names parts of the
// program and nothing of the installation.
type ReasonError string

func (r ReasonError) Error() string { return string(r) }

// verdict is the answer to a probe.
type verdict struct {
	Status  string            `json:"status"` // ok or unavailable
	Failed  []string          `json:"failed,omitempty"`
	Reasons map[string]string `json:"reasons,omitempty"` // of the checks that failed, as far as anybody may know them
}

// live says that the process answers; whether it can work is for readiness.
func (h health) live(w http.ResponseWriter, _ *http.Request) { answer(w, verdict{Status: "ok"}) }

// readiness says whether requests and events can be handled now, and which check
// failed if not. Why it failed is said in words that give nothing of the
// installation away; the rest is for the log.
func (h health) readiness(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), probeTime)
	defer cancel()
	v := verdict{Status: "ok"}
	check := func(name string, err error) bool {
		if err != nil {
			v.fail(name, err)
			h.logger.WarnContext(ctx, "not ready", "check", name, "error", err)
		}
		return err == nil
	}
	if check("database", h.db.Check(ctx)) {
		check("schema", h.db.CheckSchema(ctx))
	}
	for _, name := range slices.Sorted(maps.Keys(h.checks)) {
		check(name, h.checks[name](ctx))
	}
	answer(w, v)
}

func (v *verdict) fail(name string, err error) {
	v.Status, v.Failed = "unavailable", append(v.Failed, name)
	words := db.Reason(err)
	if reason, ok := errors.AsType[ReasonError](err); ok {
		words = reason.Error()
	}
	if words == "" {
		return
	}
	if v.Reasons == nil {
		v.Reasons = make(map[string]string)
	}
	v.Reasons[name] = words
}

func answer(w http.ResponseWriter, v verdict) {
	w.Header().Set("Content-Type", "application/json")
	if v.Failed != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	json.NewEncoder(w).Encode(v) //nolint:errcheck // the client is gone then
}
