//go:build lint

package app_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const modulePath = "github.com/deskcomm/deskcomm/"

const (
	pgxPath = "github.com/jackc/pgx/v5"
	goose   = "github.com/pressly/goose/v3"
	cron    = "github.com/robfig/cron/v3"
	huma    = "github.com/danielgtaylor/huma/v2"
	chi     = "github.com/go-chi/chi/v5"
	kong    = "github.com/alecthomas/kong"
	templ   = "github.com/a-h/templ"
	otelSDK = "go.opentelemetry.io/otel/sdk"
)

// imports lists, by where the importing package is, what the arrow
// main → app → {web, handlers, crons} → db → bus lets it import and what not. A
// path without a dot is a package of this module.
var imports = map[string]struct{ allowed, forbidden []string }{
	".": {
		allowed:   []string{"app"},
		forbidden: []string{cron, goose, huma, chi, kong, templ, otelSDK, "testing"},
	},
	"app": {
		allowed:   []string{"web", "handlers", "crons", "db", "bus", pgxPath, kong, otelSDK},
		forbidden: []string{cron, goose, huma, chi, templ, "db/dbtest", "bus/bustest", "testing"},
	},
	"web": {
		allowed:   []string{"db", "bus", "net/http", chi},
		forbidden: []string{"app", "handlers", "crons", pgxPath, pgxPath + "/pgxpool", goose, huma, kong, templ, otelSDK, "db/dbtest", "testing"},
	},
	"web/api": {
		allowed:   []string{huma, chi},
		forbidden: []string{pgxPath, templ, "testing"},
	},
	"web/admin": {
		allowed:   []string{templ, chi},
		forbidden: []string{huma},
	},
	"web/problem": {
		forbidden: []string{huma},
	},
	"handlers": { // an area
		allowed:   []string{"db", "bus", "net/http", "handlers/outhttp"},
		forbidden: []string{"app", "web", "crons", "handlers", "handlers/webhook", pgxPath, cron, huma, chi, kong, templ, otelSDK, "testing"},
	},
	"handlers/outhttp": {
		forbidden: []string{"handlers/webhook"},
	},
	"crons": {
		allowed:   []string{"db", "bus", cron},
		forbidden: []string{"app", "web", "handlers", pgxPath, otelSDK, "testing"},
	},
	"db": {
		allowed:   []string{"bus", pgxPath, goose},
		forbidden: []string{"app", "web", "handlers", "crons", cron, chi, otelSDK, "testing"},
	},
	"db/dbtest": {
		allowed: []string{"testing", pgxPath},
	},
	"bus": {
		allowed: []string{"bus/errs", "net/url", "github.com/google/uuid", "golang.org/x/sync/errgroup"},
		forbidden: []string{
			"app", "web", "handlers", "crons", "db", pgxPath, chi, otelSDK, "golang.org/x/sys/unix", "testing",
		},
	},
	"bus/bustest": {
		allowed: []string{"testing", "testing/synctest"},
	},
}

func TestLintRefusesForbiddenImports(t *testing.T) {
	t.Parallel()
	linter, err := filepath.Abs("../.cache/bin/golangci-lint")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(linter); err != nil {
		t.Fatal("no linter: run make lint, which builds it")
	}
	module := newModule(t)
	var want []string
	for place, paths := range imports {
		for n, imported := range paths.allowed {
			writePackage(t, module, path.Join(place, fmt.Sprintf("allowed%d", n)), imported)
		}
		for n, imported := range paths.forbidden {
			dir := path.Join(place, fmt.Sprintf("forbidden%d", n))
			writePackage(t, module, dir, imported)
			want = append(want, dir+": "+fullPath(imported))
		}
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, refused(t, linter, module)); diff != "" {
		t.Errorf("imports that the linter refuses (-want +got):\n%s", diff)
	}
}

// newModule makes a module with our rules and requirements and a stub of every
// package that is imported and ours, or that we do not require yet.
func newModule(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var goMod string
	for _, name := range []string{".golangci.yml", "go.sum", "go.mod"} {
		content, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, name), string(content))
		goMod = string(content) // the last one
	}
	for _, name := range []string{
		"app", "web", "handlers/outhttp", "handlers/webhook", "crons", "db", "db/dbtest", "bus", "bus/bustest", "bus/errs",
	} {
		writeFile(t, filepath.Join(dir, name, "stub.go"), "package "+path.Base(name)+"\n")
	}
	// The list of all handlers may import every area.
	writeFile(t, filepath.Join(dir, "handlers", "stub.go"),
		fmt.Sprintf("package handlers\n\nimport (\n\t_ %q\n\t_ %q\n)\n", modulePath+"handlers/outhttp", modulePath+"handlers/webhook"))
	required := bytes.NewBufferString(goMod)
	for _, name := range []string{otelSDK} {
		stub := path.Join("stubs", path.Base(name))
		writeFile(t, filepath.Join(dir, stub, "stub.go"), "package "+path.Base(name)+"\n")
		writeFile(t, filepath.Join(dir, stub, "go.mod"), "module "+name+"\n")
		fmt.Fprintf(required, "\nrequire %s v0.0.0\nreplace %s => ./%s\n", name, name, stub)
	}
	writeFile(t, filepath.Join(dir, "go.mod"), required.String())
	return dir
}

// writePackage writes a package with one import. Only main.go may import app from
// the root, so there it is that file.
func writePackage(t *testing.T, module, dir, imported string) {
	t.Helper()
	name, file := path.Base(dir), "file.go"
	if imported == "app" && path.Dir(dir) == "." {
		dir, name, file = ".", "main", "main.go"
	}
	writeFile(t, filepath.Join(module, dir, file), fmt.Sprintf("package %s\n\nimport _ %q\n", name, fullPath(imported)))
}

func writeFile(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func fullPath(imported string) string {
	first, _, _ := strings.Cut(imported, "/")
	if strings.Contains(first, ".") || first == "net" || first == "testing" {
		return imported
	}
	return modulePath + imported
}

// refused runs depguard and returns "folder: import" for each finding.
func refused(t *testing.T, linter, module string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), linter, "run", "--enable-only=depguard", "--allow-parallel-runners",
		"--output.json.path=stdout", "--output.text.path=stderr", "--show-stats=false", "./...")
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "GOLANGCI_LINT_CACHE="+t.TempDir())
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output() // fails by design: there are findings
	var report struct {
		Issues []struct {
			FromLinter, Text string
			Pos              struct{ Filename string }
		}
	}
	if jsonErr := json.Unmarshal(out, &report); jsonErr != nil {
		t.Fatalf("read the linter's report: %v (it ended with %v)\n%s", jsonErr, err, stderr.String())
	}
	var found []string
	for _, issue := range report.Issues {
		if issue.FromLinter != "depguard" {
			t.Fatalf("%s: %s", issue.Pos.Filename, issue.Text)
		}
		_, imported, _ := strings.Cut(issue.Text, "'")
		imported, _, _ = strings.Cut(imported, "'")
		found = append(found, path.Dir(filepath.ToSlash(issue.Pos.Filename))+": "+imported)
	}
	slices.Sort(found)
	return slices.Compact(found)
}
