package db_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// helperVariable turns the test binary into a process that a test can kill. It
// holds a toldTask.
const helperVariable = "DB_TEST_DRAIN"

// toldTask is what a helper process drains.
type toldTask struct {
	URL, Name  string
	Type, Made bus.Type
}

func (task toldTask) effector(log *db.DB) effector {
	return effector{name: task.Name, types: []bus.Type{task.Type}, made: task.Made, log: log}
}

// drainUntilTold says what it has claimed, and has the effect of it when a line
// comes, until its input ends.
func drainUntilTold(text string) error {
	var task toldTask
	if err := json.Unmarshal([]byte(text), &task); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	log, err := db.Open(ctx, task.URL, db.Options{})
	if err != nil {
		return err
	}
	defer log.Close()
	lines := make(chan struct{})
	go func() {
		defer cancel()
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- struct{}{}
		}
	}()
	h := task.effector(log)
	h.before = func(ctx context.Context, d *bus.Delivery) error {
		if err := json.NewEncoder(os.Stdout).Encode(d); err != nil {
			return err
		}
		select {
		case <-lines:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	drainer := bus.Drainer{Log: log, Handlers: []bus.Handler{h}, Poll: 20 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
	return drainer.Run(ctx)
}

// drainProcess is a running helper process.
type drainProcess struct {
	*testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

func startDrain(t *testing.T, task toldTask) *drainProcess {
	t.Helper()
	text, err := json.Marshal(task)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0]) //nolint:gosec // this very program
	cmd.Env = append(os.Environ(), helperVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &drainProcess{T: t, cmd: cmd, in: in, out: json.NewDecoder(out)}
	t.Cleanup(func() {
		in.Close() //nolint:errcheck,gosec // makes it end
		cmd.Wait() //nolint:errcheck,gosec // a killed one says so
	})
	return p
}

// claimed waits until the process has a delivery in hand.
func (p *drainProcess) claimed() bus.Delivery {
	p.Helper()
	var d bus.Delivery
	if err := p.out.Decode(&d); err != nil {
		p.Fatalf("the helper process says nothing more: %v", err)
	}
	return d
}

// A process is killed between its claim and the effect. Another one has the effect
// once; the dead one's word counts for nothing while the other still works.
func TestInvariant7KilledProcessIsTakenOverAndItsTokenRefusedWhileTheOtherWorks(t *testing.T) {
	t.Parallel()
	w := setup(t)
	for round := range rounds {
		task := toldTask{URL: w.url, Name: roleName("crm"), Type: ownType(), Made: ownType()}
		h := task.effector(w.db)
		w.register(h)
		event := w.emit(task.Type)
		w.relay()
		before := w.logRow(event)

		victim := startDrain(t, task)
		first := victim.claimed()
		if err := victim.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := victim.cmd.Wait(); err == nil {
			t.Fatalf("round %d: the process has ended by itself", round)
		}
		if n := w.effects(h, event); first.Event.ID != event || n != 0 {
			t.Fatalf("round %d: killed with %s in hand and %d effects, want the event and none", round, first.Event.ID, n)
		}
		w.later(time.Hour) // its lease runs out

		heir := startDrain(t, task)
		second := heir.claimed()
		if second.Event.ID != event || second.ID != first.ID || second.Token <= first.Token || !second.Suspect {
			t.Errorf("round %d: taken over as %+v, want the same delivery under a larger token than %d, and suspect", round, second, first.Token)
		}
		for _, verdict := range []bus.Verdict{bus.VerdictDone, bus.VerdictRetry, bus.VerdictDead} {
			if lost := w.settle(first, verdict, "late"); !cmp.Equal(lost, []bus.Lease{first.Lease()}) {
				t.Errorf("round %d: %s under the dead one's token lost %v, want it refused", round, verdict, lost)
			}
		}
		if err := h.effect(t.Context(), &first); err == nil {
			t.Errorf("round %d: an effect under the dead one's token was accepted", round)
		}
		if got, want := w.states(event), map[string]string{task.Name: "processing 0/8"}; !cmp.Equal(got, want) {
			t.Errorf("round %d: while the other works: %v, want %v", round, got, want)
		}
		if _, err := fmt.Fprintln(heir.in); err != nil {
			t.Fatal(err)
		}
		dbtest.Eventually(t, "the other is done", func() bool { return w.states(event)[task.Name] == "done 1/8" })
		if lost := w.settle(first, bus.VerdictRetry, "late"); len(lost) != 1 {
			t.Errorf("round %d: a verdict under the dead one's token was accepted after the end", round)
		}
		if n := w.effects(h, event); n != 1 {
			t.Errorf("round %d: %d effects, want 1", round, n)
		}
		if got := w.logRow(event); got != before {
			t.Errorf("round %d: the row in the log was %q and is %q", round, before, got)
		}
	}
}
