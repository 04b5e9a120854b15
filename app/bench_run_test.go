package app_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

func TestBenchMeasuresEveryScenario(t *testing.T) {
	t.Parallel()
	in := onPrivate(t)
	in.env = append(in.env, "DATABASE_URL="+dbtest.Fresh(t))
	out, stderr, code := in.run("", "bench", "--events", "300", "--fan-out", "100", "--organizations", "3", "--for", "1s", "--rate", "50", "--json")
	if code != 0 {
		t.Fatalf("bench = exit %d: %s", code, stderr)
	}
	want := map[string]bool{
		"insert rows_per_s": true, "relay events_per_s": true, "drain jobs_per_s": true, "latency p50_ms": true, "latency p99_ms": true,
		"fanout publish_events_per_s": true, "fanout drain_deliveries_per_s": true, "fanout live_deliveries_per_s": true, "webhook posts_per_s": true,
	}
	for line := range strings.Lines(out) {
		var r struct {
			Peer, Scenario, Params, Sync, Metric string
			Value                                float64
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if r.Peer != "deskcomm" || r.Sync == "" || r.Params == "" || r.Value < 0 || r.Value == 0 && r.Scenario != "latency" {
			t.Errorf("printed %s", line)
		}
		delete(want, r.Scenario+" "+r.Metric)
	}
	if len(want) > 0 {
		t.Errorf("not measured: %v", want)
	}
}

func TestBenchRefusesWhatItCannotMeasure(t *testing.T) {
	t.Parallel()
	in := onPrivate(t)
	in.env = append(in.env, "DATABASE_URL="+dbtest.Fresh(t))
	for says, args := range map[string][]string{
		"scenario: must be one of insert,": {"--scenario", "outsert"},
		"--events: must be between":        {"--events", "0"},
		"--for: must be between":           {"--for", "2h"},
		"--rate: must be between":          {"--rate=-1"},
	} {
		_, stderr, code := in.run("", append([]string{"bench"}, args...)...)
		if code != 2 || !strings.Contains(stderr, says) {
			t.Errorf("bench %v = exit %d, %q, want 2 and %q", args, code, stderr, says)
		}
	}
}
