package bus_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/bustest"
)

// happened is the type of every event of these tests.
const happened bus.Type = "custom.happened"

var errRefused = errors.New("refused")

// reader is a consumer of happened that retries once a minute, four times.
func reader(name string, change ...func(*bus.Consumer)) bus.Consumer {
	c := bus.Consumer{
		Name: name + "-worker", Types: []bus.Type{happened}, Effect: bus.EffectAtLeastOnce,
		Retry:       bus.Ladder([]time.Duration{time.Minute, time.Minute, time.Minute, time.Minute}),
		Concurrency: 1, Timeout: time.Hour,
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

func concurrency(n int) func(*bus.Consumer) { return func(c *bus.Consumer) { c.Concurrency = n } }

func retry(p bus.RetryPolicy) func(*bus.Consumer) { return func(c *bus.Consumer) { c.Retry = p } }

// handler gives a consumer a function.
type handler struct {
	consumer bus.Consumer
	handle   func(ctx context.Context, d *bus.Delivery) error
}

func (h handler) Consumer() bus.Consumer { return h.consumer }

func (h handler) Handle(ctx context.Context, d *bus.Delivery) error { return h.handle(ctx, d) }

func succeed(context.Context, *bus.Delivery) error { return nil }

// untilCancelled blocks until the context ends and returns its error.
func untilCancelled(ctx context.Context, _ *bus.Delivery) error {
	<-ctx.Done()
	return ctx.Err()
}

// after takes d for each delivery and succeeds, whether or not it is cancelled.
func after(d time.Duration) func(context.Context, *bus.Delivery) error {
	return func(context.Context, *bus.Delivery) error {
		<-time.After(d)
		return nil
	}
}

// rig is a drainer over an in-memory log, inside a bubble.
type rig struct {
	*testing.T
	log     *bustest.Log
	drainer *bus.Drainer
	wake    chan struct{}
	lines   logbook
	began   time.Time
	cancel  context.CancelFunc
	ended   chan struct{}
	endedAt time.Duration // since the start
}

// inBubble runs test with a rig whose consumers are those of the handlers. The
// test calls start; what it started is stopped after it.
func inBubble(t *testing.T, test func(r *rig), handlers ...handler) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, log: bustest.NewLog(), wake: make(chan struct{}, 1), ended: make(chan struct{}), began: time.Now()}
		r.drainer = &bus.Drainer{
			Log: r.log, Poll: time.Second, Wake: r.wake, Grace: 25 * time.Second,
			Logger: slog.New(slog.NewTextHandler(&r.lines, &slog.HandlerOptions{Level: slog.LevelDebug})),
		}
		for _, h := range handlers {
			r.log.Register(h.consumer)
			r.drainer.Handlers = append(r.drainer.Handlers, h)
		}
		test(r)
		if r.cancel != nil {
			r.stop()
			<-r.ended
		}
	})
}

// start runs the drainer and returns when it has nothing left to do at this
// instant.
func (r *rig) start() {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	r.cancel = cancel
	go func() {
		defer close(r.ended)
		if err := r.drainer.Run(ctx); err != nil {
			r.Errorf("Run() = %v, want nil", err)
		}
		r.endedAt = r.at()
	}()
	synctest.Wait()
}

// stop begins a shutdown.
func (r *rig) stop() {
	r.cancel()
	synctest.Wait()
}

// at is the time since the start.
func (r *rig) at() time.Duration { return time.Since(r.began) }

func (r *rig) running() bool {
	synctest.Wait()
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

func (r *rig) wantCount(status string, want int) {
	r.Helper()
	if got := r.log.Count(status); got != want {
		r.Errorf("%d deliveries are %s after %s, want %d", got, status, r.at(), want)
	}
}

func (r *rig) wantLines(text string, want int) {
	r.Helper()
	if got := r.lines.count(text); got != want {
		r.Errorf("%d log lines have %q, want %d in:\n%s", got, text, want, r.lines.String())
	}
}

// logbook keeps what is logged.
type logbook struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logbook) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func (l *logbook) count(text string) int { return strings.Count(l.String(), text) }
