package web

import (
	_ "embed"
	"log/slog"
	"net/http"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/web/problem"
)

//go:embed setup.html
var setupHTML []byte

//go:embed setup_gone.html
var setupGoneHTML []byte

// setupPage tells who holds the one-time link how to finish the installation. A
// link that is wrong or used is answered by a page too: people follow it, not
// programs.
func setupPage(store *db.DB, logger *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		valid, err := store.CheckSetup(r.Context(), r.URL.Query().Get("token"))
		if err != nil {
			p, _ := problem.From(err)
			logger.ErrorContext(r.Context(), "check setup link", "request_id", problem.RequestID(r.Context()), "error", err)
			problem.Write(w, r, p)
			return
		}
		page, status := setupHTML, http.StatusOK
		if !valid {
			page, status = setupGoneHTML, http.StatusNotFound
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.WriteHeader(status)
		w.Write(page) //nolint:errcheck // the client is gone then
	}
}
