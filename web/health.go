package web

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"

	"github.com/deskcomm/deskcomm/db"
)

// probeTime is how long the checks behind a probe may take together.
const probeTime = 3 * time.Second

// health answers probes.
type health struct {
	db     *db.DB
	ready  func(ctx context.Context) error
	logger *slog.Logger
}

// verdict is the answer to a probe.
type verdict struct {
	Status string   `json:"status"` // ok or unavailable
	Failed []string `json:"failed,omitempty"`
}

// live says that the process answers; whether it can work is for readiness.
func (h health) live(w http.ResponseWriter, _ *http.Request) { answer(w, verdict{Status: "ok"}) }

// readiness says whether requests and events can be handled now, and which check
// failed if not. Why it failed is for the log.
func (h health) readiness(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), probeTime)
	defer cancel()
	v := verdict{Status: "ok"}
	check := func(name string, err error) bool {
		if err != nil {
			v.Status, v.Failed = "unavailable", append(v.Failed, name)
			h.logger.WarnContext(ctx, "not ready", "check", name, "error", err)
		}
		return err == nil
	}
	if check("database", h.db.Ping(ctx)) {
		check("schema", h.db.CheckSchema(ctx))
	}
	if h.ready != nil {
		check("loops", h.ready(ctx))
	}
	answer(w, v)
}

func answer(w http.ResponseWriter, v verdict) {
	w.Header().Set("Content-Type", "application/json")
	if v.Failed != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	json.NewEncoder(w).Encode(v) //nolint:errcheck // the client is gone then
}
