package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/crons"
	"github.com/deskcomm/deskcomm/db"
)

const (
	poll = time.Second // the promise behind every wake-up
	// Requests and work in hand get this long together: with the last verdicts and
	// Postgres's own end it stays below the 30 s after which containers are killed.
	grace = 20 * time.Second
)

// loop is a part of the server that runs until its context ends.
type loop struct {
	name string
	run  func(ctx context.Context) error
}

// run starts every loop and ends them when ctx does: readiness first, then new
// requests, claiming and the clock at once, while requests and deliveries in hand
// get the grace. A loop that returns early ends the process: nothing dies unseen.
func (s *server) run(ctx context.Context) error {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, life := errgroup.WithContext(life)
	for _, l := range s.loops() {
		g.Go(func() error {
			err := l.run(life)
			if err == nil && life.Err() == nil {
				err = errors.New("ended by itself")
			}
			if err != nil {
				return fmt.Errorf("%s: %w", l.name, err)
			}
			return nil
		})
	}
	srv := s.httpServer()
	g.Go(func() error {
		if err := srv.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("http: %w", err)
		}
		return nil
	})
	s.logger.InfoContext(ctx, "ready", "addr", s.listener.Addr().String(), "version", s.version, "roles", s.config.Roles)
	g.Go(func() error {
		select {
		case <-ctx.Done():
		case <-life.Done():
		}
		s.pulse.stop()
		s.logger.InfoContext(ctx, "stopping")
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		stop()
		if err := srv.Shutdown(last); err != nil {
			s.logger.WarnContext(last, "requests cut off", "error", err)
			return srv.Close()
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return err
	}
	s.logger.InfoContext(context.WithoutCancel(ctx), "stopped")
	return nil
}

// loops lists what this process runs for its roles.
func (s *server) loops() []loop {
	list := []loop{{"handlers", s.keepRegistering}}
	if s.config.has("relay") {
		list = append(list, loop{"relay", s.whenRegistered(s.relay)})
	}
	if s.config.has("worker") {
		list = append(list, loop{"worker", s.whenRegistered(s.work)})
	}
	if s.config.has("cron") {
		list = append(list, loop{"cron", func(ctx context.Context) error { return crons.Run(ctx, s.logger, s.jobs()) }})
		schedules := &crons.Schedules{
			Fire:  func(ctx context.Context) (db.Firing, error) { return s.store.FireSchedule(ctx, crons.Next) },
			Until: s.store.UntilNextFire, Logger: s.logger,
		}
		list = append(list, loop{"schedules", schedules.Run})
	}
	return list
}

func (s *server) relay(ctx context.Context) error {
	relay := &bus.Relay{
		Step: s.pulse.watchStep("relay", s.store.Relay), Batch: db.RelayBatch, Poll: poll, Wake: s.relayWake,
		Drain: func() { nudge(s.drainWake) }, Logger: s.logger,
	}
	return relay.Run(ctx)
}

func (s *server) work(ctx context.Context) error {
	drainer := &bus.Drainer{
		Log: s.pulse.watchLog("worker", s.store), Handlers: s.handlers, Poll: poll, Wake: s.drainWake,
		Grace: grace, Logger: s.logger,
	}
	if s.config.has("relay") {
		drainer.Emitted = s.emitted
	}
	return drainer.Run(ctx)
}
