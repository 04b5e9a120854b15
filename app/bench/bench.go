// Package bench measures the bus in a database of its own: how fast events are
// emitted, relayed, claimed and settled, and how long one waits.
package bench

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

// Result is one measured number.
type Result struct {
	Peer     string  `json:"peer"` // always deskcomm
	Scenario string  `json:"scenario"`
	Params   string  `json:"params"`
	Sync     string  `json:"sync"` // synchronous_commit of the server
	Metric   string  `json:"metric"`
	Value    float64 `json:"value"`
}

// Options say what to measure and how much of it.
type Options struct {
	URL           string // of a database that is the bench's own and has the schema
	Events        int    // of a backlog to drain
	FanOut        int    // events for three consumers each
	Organizations int
	Backlog       int           // deliveries that wait while claims and relays are measured
	Payload       int           // bytes of JSON
	Span          time.Duration // of what is measured by time
	Rate          int           // events a second when latency is measured
	Logger        *slog.Logger
}

// scenarios are what can be measured, in the order in which all are.
func scenarios() []scenario {
	return []scenario{
		{"insert", (*run).insert},
		{"relay", (*run).relay},
		{"drain", (*run).drain},
		{"latency", (*run).latency},
		{"fanout", (*run).fanOut},
		{"webhook", (*run).webhook},
		{"fairness", (*run).fairness},
		{"backlog", (*run).backlog},
	}
}

type scenario struct {
	name    string
	measure func(*run, context.Context) error
}

// Scenarios lists the names of what can be measured.
func Scenarios() []string {
	var names []string
	for _, s := range scenarios() {
		names = append(names, s.name)
	}
	return names
}

// Check refuses names that nothing is measured by.
func Check(names []string) error {
	for _, name := range names {
		if !slices.Contains(Scenarios(), name) {
			return bus.Invalid("scenario", "must be one of "+strings.Join(Scenarios(), ", "))
		}
	}
	return nil
}

// Run measures scenarios, all when none is named, and hands each number to emit.
func Run(ctx context.Context, o Options, names []string, emit func(Result) error) error {
	if err := Check(names); err != nil {
		return err
	}
	r := &run{Options: o, emit: emit}
	if err := r.open(ctx); err != nil {
		return err
	}
	defer r.close()
	for _, s := range scenarios() {
		if len(names) > 0 && !slices.Contains(names, s.name) {
			continue
		}
		r.scenario = s.name
		if err := s.measure(r, ctx); err != nil {
			return fmt.Errorf("measure %s: %w", s.name, err)
		}
	}
	return nil
}

// run is the state of one Run.
type run struct {
	Options
	emit     func(Result) error
	scenario string
	sync     string
	pool     *pgxpool.Pool
	store    *db.DB
	orgs     []uuid.UUID
	emitted  chan struct{}
	relayDue chan struct{}
	drainDue chan struct{}
}

// typ is what every event of a bench is.
const typ = bus.Type("custom.bench")

var consumers = []string{"bench-a-worker", "bench-b-worker", "bench-c-worker"} //nolint:gochecknoglobals // a constant that the language has no form for

func (r *run) open(ctx context.Context) (err error) {
	key := make([]byte, 32) // of secrets that live as long as the database
	_, _ = rand.Read(key)   // never fails
	r.emitted, r.relayDue, r.drainDue = make(chan struct{}), make(chan struct{}, 1), make(chan struct{}, 1)
	emitted := func() { // as the server does
		select {
		case r.emitted <- struct{}{}:
		default:
			nudge(r.relayDue)
		}
	}
	if r.store, err = db.Open(ctx, r.URL, db.Options{MasterKey: key, Emitted: emitted, Due: func() { nudge(r.drainDue) }}); err != nil {
		return err
	}
	if r.pool, err = pgxpool.New(ctx, r.URL); err != nil {
		return fmt.Errorf("open pool: %w", err)
	}
	if err := r.store.EnsurePartitions(ctx); err != nil {
		return err
	}
	if err := r.pool.QueryRow(ctx, "show synchronous_commit").Scan(&r.sync); err != nil {
		return fmt.Errorf("ask for synchronous_commit: %w", err)
	}
	for i := range r.Organizations {
		org, err := r.store.CreateOrganization(ctx, actor(), fmt.Sprintf("Organization %d", i+1))
		if err != nil {
			return err
		}
		r.orgs = append(r.orgs, org.ID)
	}
	return nil
}

func (r *run) close() {
	if r.pool != nil {
		r.pool.Close()
	}
	if r.store != nil {
		r.store.Close()
	}
}

func actor() db.Actor { return db.Actor{Kind: db.ActorSystem, Name: "bench"} }

func nudge(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

func (r *run) report(params, metric string, value float64) error {
	return r.emit(Result{Peer: "deskcomm", Scenario: r.scenario, Params: params, Sync: r.sync, Metric: metric, Value: value})
}

// reset empties the bus and registers the first n consumers, with none before.
func (r *run) reset(ctx context.Context, n int) error {
	if err := r.exec(ctx, "truncate event_log, outbox, event_position, delivery, receipt, dead_delivery, attempt, consumers", "checkpoint"); err != nil {
		return err
	}
	list := make([]bus.Consumer, n)
	for i := range list {
		list[i] = consumer(consumers[i])
	}
	return r.store.RegisterConsumers(ctx, list)
}

// rest is what a server does by itself between bursts.
func (r *run) rest(ctx context.Context) error {
	return r.exec(ctx, "vacuum analyze event_log", "vacuum analyze outbox", "vacuum analyze event_position", "vacuum analyze delivery", "checkpoint")
}

func (r *run) exec(ctx context.Context, statements ...string) error {
	for _, s := range statements {
		if _, err := r.pool.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

func consumer(name string) bus.Consumer {
	return bus.Consumer{
		Name: name, Types: []bus.Type{typ}, Effect: bus.EffectAtLeastOnce, Retry: bus.DefaultRetry(), Concurrency: 2000, Timeout: time.Minute,
	}
}

// payload is the JSON of event n, about size bytes that cannot be squeezed much.
func payload(n int64, size int) json.RawMessage {
	body := map[string]any{"id": n, "type": "contact.updated", "tenant": n % 100, "object": "contact", "pad": ""}
	bare, _ := json.Marshal(body)
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	pad := make([]byte, max(size-len(bare), 0))
	x := uint64(n)*2654435761 + 88172645463325252 //nolint:gosec // n counts from 0
	for i := range pad {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		pad[i] = letters[x%36]
	}
	body["pad"] = string(pad)
	out, _ := json.Marshal(body)
	return out
}
