package app

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/deskcomm/deskcomm/db"
)

type benchCmd struct {
	Run     benchRunCmd     `cmd:"" default:"withargs" help:"Measure how fast events are emitted, relayed and handled, in a database of its own."`
	Capture benchCaptureCmd `cmd:"" help:"Measure what the outbox costs the change that an event tells of, in a database of its own."`
}

// The statuses of a measurement. Only passed says that its figures are worth
// reading.
const (
	benchPassed  = "passed"
	benchBlocked = "blocked" // there was no database to measure on
	benchFailed  = "failed"  // something else than expected has happened
)

// benchResult is how a measurement ended and, when it passed, what it found.
type benchResult struct {
	Scenario  string    `json:"scenario"`
	Status    string    `json:"status"`
	Reason    string    `json:"reason,omitempty"`
	StartedAt time.Time `json:"started_at"`
}

// end judges err, which the command returns for its exit code.
func (r *benchResult) end(err error) error {
	r.Status = benchPassed
	if err == nil {
		return nil
	}
	r.Status, r.Reason = benchFailed, plainly(err)
	if _, ok := errors.AsType[*db.BlockedError](err); ok {
		r.Status = benchBlocked
	}
	return &refusal{says: fmt.Sprintf("bench %s: %s: %s", r.Scenario, r.Status, r.Reason), err: err}
}

// benchArm is the samples of one arm and what they come to, in milliseconds.
type benchArm struct {
	Name    string    `json:"name"`
	What    string    `json:"what"`
	Mean    float64   `json:"mean_ms"`
	P50     float64   `json:"p50_ms"`
	P95     float64   `json:"p95_ms"`
	Max     float64   `json:"max_ms"`
	Samples []float64 `json:"samples_ms"` // in the order in which they were taken
}

func newBenchArm(name, what string, samples []time.Duration) benchArm {
	arm := benchArm{Name: name, What: what, Samples: make([]float64, len(samples))}
	for i, s := range samples {
		arm.Samples[i] = float64(s) / float64(time.Millisecond)
		arm.Mean += arm.Samples[i] / float64(len(samples))
	}
	sorted := slices.Sorted(slices.Values(arm.Samples))
	arm.P50, arm.P95, arm.Max = nearestRank(sorted, 50), nearestRank(sorted, 95), nearestRank(sorted, 100)
	return arm
}

// nearestRank is the smallest sample that at least so many percent do not exceed.
func nearestRank(sorted []float64, percent float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(int(math.Ceil(percent/100*float64(len(sorted))))-1, 0)]
}

func (a benchArm) row() []string {
	row := []string{a.Name, strconv.Itoa(len(a.Samples))}
	for _, ms := range []float64{a.Mean, a.P50, a.P95, a.Max} {
		row = append(row, strconv.FormatFloat(ms, 'f', 4, 64))
	}
	return row
}

// capturePlan returns the plan of the measurement.
func capturePlan() db.CapturePlan { return db.CapturePlan{Warmups: 20, Batches: 5, PerBatch: 100} }

type benchCaptureCmd struct{ jsonFlag }

// captureResult is what the measurement of the capture prints.
type captureResult struct {
	benchResult
	Postgres          string     `json:"postgres,omitempty"`
	Fsync             string     `json:"fsync,omitempty"`
	SynchronousCommit string     `json:"synchronous_commit,omitempty"`
	Warmups           int        `json:"warmups_per_arm"`
	Batches           int        `json:"batches_per_arm"`
	PerBatch          int        `json:"samples_per_batch"`
	Arms              []benchArm `json:"arms"`
	Difference        float64    `json:"difference_of_means_ms"`
}

// Run measures and prints what it found, or why it found nothing.
func (b benchCaptureCmd) Run(ctx context.Context, con console, c *Common) error {
	plan := capturePlan()
	result := captureResult{
		benchResult: benchResult{Scenario: "capture", StartedAt: time.Now().UTC()},
		Warmups:     plan.Warmups, Batches: plan.Batches, PerBatch: plan.PerBatch, Arms: []benchArm{},
	}
	cost, err := c.measureCapture(ctx, con, plan)
	ended := result.end(err)
	if ended == nil {
		result.Postgres, result.Fsync, result.SynchronousCommit = cost.Postgres, cost.Fsync, cost.SynchronousCommit
		result.Arms = []benchArm{
			newBenchArm("without", "a contact and its event in event_log", cost.Without.Samples),
			newBenchArm("with", "a contact and its event in event_log and outbox", cost.With.Samples),
		}
		result.Difference = result.Arms[1].Mean - result.Arms[0].Mean
	}
	if err := b.print(con, result); err != nil {
		return err
	}
	return ended
}

func (c Common) measureCapture(ctx context.Context, con console, plan db.CapturePlan) (cost db.CaptureCost, err error) {
	where, err := c.locate(ctx, c.quiet().logger(con.err))
	if err != nil {
		return cost, &db.BlockedError{Reason: err.Error(), Err: err}
	}
	defer func() { err = errors.Join(err, where.close()) }()
	return db.MeasureCapture(ctx, where.direct, plan)
}

func (b benchCaptureCmd) print(con console, r captureResult) error {
	rows := make([][]string, 0, len(r.Arms))
	for _, arm := range r.Arms {
		rows = append(rows, arm.row())
	}
	if b.JSON || len(rows) == 0 {
		return con.print(b.JSON, r, nil, [][]string{{"status:", r.Status}})
	}
	err := con.print(false, r, []string{"OUTBOX", "SAMPLES", "MEAN ms", "P50 ms", "P95 ms", "MAX ms"}, rows)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(con.out, "difference of means: %+.4f ms\nPostgres %s, fsync %s, synchronous_commit %s\nstatus: %s\n",
		r.Difference, r.Postgres, r.Fsync, r.SynchronousCommit, r.Status)
	return err
}
