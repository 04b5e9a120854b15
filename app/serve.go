package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"time"
	_ "time/tzdata" // a container or a small machine may have no zones of its own

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/urlpolicy"
	"github.com/deskcomm/deskcomm/crons"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/handlers"
	"github.com/deskcomm/deskcomm/web"
	"github.com/deskcomm/deskcomm/web/inbound"
)

type serveCmd struct{ ServerConfig }

// Run builds the server, runs it until ctx ends and takes everything down again,
// in the order in which it depends on each other.
func (s serveCmd) Run(ctx context.Context, con console, c *Common) (err error) {
	if err := s.check(); err != nil {
		return err
	}
	tuneCollector()
	ready := false
	defer func() {
		if ctx.Err() != nil && !ready && err != nil {
			err = errors.New("stopped before it was ready")
		}
	}()
	policy, err := urlpolicy.New(s.AllowPrivateHosts)
	if err != nil {
		return fmt.Errorf("DESKCOMM_ALLOW_PRIVATE_HOSTS: %w", err)
	}
	logger := c.logger(con.err)
	// net/http prints to it what a receiver says unasked, which may be anything.
	log.SetOutput(io.Discard)
	// A port in use is found before anything is made or started.
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Addr)
	if err != nil {
		return fmt.Errorf("DESKCOMM_ADDR: %w; end what listens there or choose another address", err)
	}
	defer listener.Close() //nolint:errcheck // closed by the server when it has run
	key, err := masterKey(s.MasterKey, c.DataDir)
	if err != nil {
		return err
	}
	where, err := c.provide(ctx, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, where.close()) }()
	defer where.keep(ctx)()

	srv := &server{
		config: s.ServerConfig, logger: logger, where: where, listener: listener, policy: policy, version: con.version,
		pulse: pulse{stale: s.Lease}, registered: newRegistration(),
		emitted: make(chan struct{}), relayWake: make(chan struct{}, 1), drainWake: make(chan struct{}, 1),
	}
	if err := srv.prepare(ctx, key); err != nil {
		return err
	}
	defer srv.store.Close()
	if srv.config.has("api") {
		if err := srv.welcome(ctx, con.out, c.DataDir); err != nil {
			return err
		}
	}
	ready = true
	return srv.run(ctx)
}

// server is everything that one process runs.
type server struct {
	config   ServerConfig
	logger   *slog.Logger
	where    database
	listener net.Listener
	policy   urlpolicy.Policy
	version  string

	store      *db.DB
	handlers   []bus.Handler
	registered *registration
	pulse      pulse
	emitted    chan struct{} // taken by a worker that is idle, see hasEmitted
	relayWake  chan struct{}
	drainWake  chan struct{}
}

// hasEmitted is called after a commit that emitted. A worker that has nothing to
// do relays by itself and claims in the same transaction, which is the shortest
// way for one event; else the relay does while the worker claims.
func (s *server) hasEmitted() {
	select {
	case s.emitted <- struct{}{}:
	default:
		nudge(s.relayWake)
	}
}

// prepare brings the database to where the loops can start.
func (s *server) prepare(ctx context.Context, key []byte) error {
	store, err := s.where.open(ctx, s.logger, db.Options{
		MasterKey: key, Lease: s.config.Lease,
		Emitted: s.hasEmitted,
		Due:     func() { nudge(s.drainWake) },
	})
	if err != nil {
		return err
	}
	s.store = store
	s.handlers = handlers.All(handlers.Deps{
		DB: store, Policy: s.policy, Ladder: s.config.RetryLadder, Version: s.version,
	})
	steps := []func(context.Context) error{
		func(ctx context.Context) error { return s.where.migrate(ctx, s.logger) },
		store.CheckSchema,
		store.ClaimMasterKey,
		store.EnsurePartitions,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			store.Close()
			return err
		}
	}
	// Before the first request: what is emitted before a reader is known is not for
	// it. A failure ends nothing: events are taken, and wait.
	s.register(ctx)
	return nil
}

// jobs is what runs by the clock.
func (s *server) jobs() []crons.Job {
	return []crons.Job{
		{Name: "process-pending-webhooks", Spec: "* * * * *", Run: s.store.RetryInbound},
		{Name: "ensure-event-partitions", Spec: "20 0 * * *", Run: s.store.EnsurePartitions},
		{Name: "prune-expired", Spec: "7 * * * *", Run: s.store.PruneExpired},
	}
}

// httpServer has every limit set: the defaults of the library are none.
func (s *server) httpServer() *http.Server {
	proxies, _ := s.config.proxies() // checked at the start
	handler := web.New(web.Options{
		DB: s.store, Policy: s.policy, Logger: s.logger, PublicURL: s.config.PublicURL, Proxies: proxies,
		Inbound: inbound.New(s.store, s.logger), ProbesOnly: !s.config.has("api"),
		Checks: map[string]func(context.Context) error{"handlers": s.registered.check, "loops": s.pulse.check},
	})
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       60 * time.Second,
		WriteTimeout:      60 * time.Second,
		IdleTimeout:       120 * time.Second,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.logger.Handler(), slog.LevelDebug),
	}
}

// nudge wakes a loop that is waiting; one that is busy looks again anyway.
func nudge(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
