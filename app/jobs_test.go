package app

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var jobRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([^`]+)`")

// What runs by the clock and what operators read about it are the same list.
func TestJobsAreThoseOfTheOperationsManual(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/OPERATIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Jobs\n")
	section, _, _ = strings.Cut(section, "\n## ")
	type job struct{ Name, Spec string }
	var documented, run []job
	for _, row := range jobRow.FindAllStringSubmatch(section, -1) {
		documented = append(documented, job{row[1], row[2]})
	}
	for _, j := range (&server{}).jobs() {
		run = append(run, job{j.Name, j.Spec})
	}
	if diff := cmp.Diff(run, documented); diff != "" {
		t.Errorf("jobs in docs/OPERATIONS.md (-program +manual):\n%s", diff)
	}
}

func TestTheRoleCronFiresSchedules(t *testing.T) {
	t.Parallel()
	var names []string
	for _, l := range (&server{config: ServerConfig{Roles: []string{"cron"}}}).loops() {
		names = append(names, l.name)
	}
	if diff := cmp.Diff([]string{"handlers", "cron", "schedules"}, names); diff != "" {
		t.Errorf("loops of the role (-want +got):\n%s", diff)
	}
}
