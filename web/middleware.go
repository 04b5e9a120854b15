package web

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/web/problem"
)

var requestIDPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// requestID keeps the client's X-Request-Id, or makes one, and gives it back.
func requestID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-Request-Id")
		if !requestIDPattern.MatchString(id) {
			id = uuid.NewString()
		}
		w.Header().Set("X-Request-Id", id)
		next.ServeHTTP(w, r.WithContext(problem.WithRequestID(r.Context(), id)))
	})
}

// believe takes the address and the scheme of a client from what a proxy says of
// them, if the proxy is one of those named; what anybody else says is dropped. Of
// a list of addresses the last is the proxy's own finding.
func believe(proxies []netip.Prefix) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			peer, err := netip.ParseAddrPort(r.RemoteAddr)
			trusted := err == nil && slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(peer.Addr().Unmap()) })
			if !trusted {
				r.Header.Del("X-Forwarded-For")
				r.Header.Del("X-Forwarded-Proto")
			} else if said := r.Header.Values("X-Forwarded-For"); len(said) > 0 {
				list := strings.Split(said[len(said)-1], ",")
				if client, err := netip.ParseAddr(strings.TrimSpace(list[len(list)-1])); err == nil {
					r.RemoteAddr = netip.AddrPortFrom(client, 0).String()
				}
			}
			next.ServeHTTP(w, r)
		})
	}
}

// accessLog writes one line for each request, at debug: a healthy hour shows
// nothing at info. It names the route and not the path, which may hold a token.
func accessLog(logger *slog.Logger) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
			start := time.Now()
			next.ServeHTTP(seen, r)
			route := chi.RouteContext(r.Context()).RoutePattern()
			switch route {
			case "/livez", "/readyz", "/healthz":
				return
			}
			logger.DebugContext(r.Context(), "request",
				"method", r.Method, "route", route, "status", cmp.Or(seen.Status(), http.StatusOK), "bytes", seen.BytesWritten(),
				"duration_ms", time.Since(start).Milliseconds(), "request_id", problem.RequestID(r.Context()))
		})
	}
}

// recoverPanics turns a panic into an answer and a log line with its stack.
func recoverPanics(logger *slog.Logger) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
			defer func() {
				cause := recover()
				if cause == nil {
					return
				}
				if cause == http.ErrAbortHandler { //nolint:errorlint // net/http compares it the same way
					panic(cause)
				}
				if r.Context().Err() == nil { // else the client left while huma was writing
					logger.ErrorContext(r.Context(), "request panicked",
						"request_id", problem.RequestID(r.Context()), "error", cause, "stack", string(debug.Stack()))
				}
				if seen.Status() == 0 {
					problem.Write(seen, r, problem.Internal())
				}
			}()
			next.ServeHTTP(seen, r)
		})
	}
}

// maxBody bounds what any handler can be sent; those that read bodies have lower
// limits of their own.
const maxBody = 32 << 20

func limitBody(next http.Handler) http.Handler { return http.MaxBytesHandler(next, maxBody) }

// securityHeaders are for answers that no browser renders; a page replaces what
// it must.
func securityHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Cache-Control", "no-store")
		header.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}

// apart lets a handler that is a router itself route from the start: it would go
// on with this router's state otherwise.
func apart(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), chi.RouteCtxKey, (*chi.Context)(nil))))
	})
}

func notFound(w http.ResponseWriter, r *http.Request) { problem.Write(w, r, problem.NotFound()) }

// methodNotAllowed says which methods the path has.
func methodNotAllowed(routes chi.Routes) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var allowed []string
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			if routes.Match(chi.NewRouteContext(), method, r.URL.Path) {
				allowed = append(allowed, method)
			}
		}
		problem.Write(w, r, problem.New(http.StatusMethodNotAllowed, problem.CodeMethodNotAllowed, "this path has other methods; see Allow").
			WithHeader("Allow", strings.Join(allowed, ", ")))
	}
}
