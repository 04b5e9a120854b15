package localpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// minMajor is the oldest Postgres that the schema is tested on.
const minMajor = 15

// ErrNoBinaries says that no Postgres server of a usable version is installed.
// The error that wraps it names the command that installs one.
var ErrNoBinaries = errors.New("no usable Postgres server programs (initdb, postgres) found")

var versionPattern = regexp.MustCompile(`^postgres \(PostgreSQL\) (\d+)`)

// binaries is a folder with initdb and postgres of one version.
type binaries struct {
	dir   string
	major int
}

// search says where to look for binaries.
type search struct {
	account account
	folders []string // in order of preference
	globs   []string // patterns of further folders
}

// systemSearch looks in PATH, where pg_config points, and where packages put
// what they keep out of PATH.
func systemSearch(a account) search {
	return search{
		account: a,
		folders: filepath.SplitList(os.Getenv("PATH")),
		globs: []string{
			"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
			"/usr/pgsql-*/bin",          // PGDG's RPMs
			"/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin",
			"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
			"/opt/homebrew/bin", "/usr/local/bin",
		},
	}
}

// find returns the binaries that fit existing data of major, or the newest when
// major is 0.
func (s search) find(ctx context.Context, major int) (binaries, error) {
	var found []binaries
	for _, dir := range s.candidates(ctx) {
		if b, ok := s.inspect(ctx, dir); ok {
			found = append(found, b)
		}
	}
	var best binaries
	for _, b := range found {
		if b.major >= minMajor && b.major > best.major && (major == 0 || b.major == major) {
			best = b
		}
	}
	if best.major != 0 {
		return best, nil
	}
	return binaries{}, missing(found, major)
}

// missing explains what was looked for and what to do.
func missing(found []binaries, major int) error {
	wanted := fmt.Sprintf("version %d or newer is needed", minMajor)
	if major != 0 {
		wanted = fmt.Sprintf("the existing data needs version %d", major)
	}
	if len(found) > 0 {
		var have []string
		for _, b := range found {
			have = append(have, fmt.Sprintf("%d in %s", b.major, b.dir))
		}
		wanted += ", installed is " + strings.Join(have, ", ")
	}
	return fmt.Errorf("%w: %s; install it with: %s", ErrNoBinaries, wanted, installCommand(exec.LookPath, major))
}

// installCommand names the command of the first package manager found.
func installCommand(lookPath func(string) (string, error), major int) string {
	version := ""
	if major != 0 {
		version = strconv.Itoa(major)
	}
	for _, manager := range []struct{ program, command string }{
		{"apt-get", strings.TrimSuffix("apt-get install postgresql-"+version, "-")},
		{"dnf", "dnf install postgresql" + version + "-server"},
		{"apk", "apk add postgresql" + version},
		{"pacman", "pacman -S postgresql"},
		{"brew", "brew install postgresql@" + cmp.Or(version, "17")},
	} {
		if _, err := lookPath(manager.program); err != nil {
			continue
		}
		if manager.program == "brew" || os.Geteuid() == 0 {
			return manager.command
		}
		return "sudo " + manager.command
	}
	return "your system's package manager (package postgresql)"
}

// candidates lists existing folders with both programs, each once.
func (s search) candidates(ctx context.Context) []string {
	var dirs []string
	for _, dir := range s.folders {
		if filepath.IsAbs(dir) { // the others depend on where we were started
			dirs = append(dirs, dir)
		}
	}
	for _, pattern := range s.globs {
		matches, _ := filepath.Glob(pattern) // the patterns are well formed
		dirs = append(dirs, matches...)
	}
	for _, dir := range dirs {
		if out, ok := s.output(ctx, filepath.Join(dir, "pg_config"), "--bindir"); ok {
			dirs = append(dirs, strings.TrimSpace(out))
			break
		}
	}
	var usable []string
	for _, dir := range dirs {
		if !slices.Contains(usable, dir) && isProgram(dir, "initdb") && isProgram(dir, "postgres") {
			usable = append(usable, dir)
		}
	}
	return usable
}

// inspect asks the postgres of a folder for its version, as the user who will
// run it: one who may not go there gets no answer.
func (s search) inspect(ctx context.Context, dir string) (binaries, bool) {
	out, _ := s.output(ctx, filepath.Join(dir, "postgres"), "--version")
	match := versionPattern.FindStringSubmatch(out)
	if match == nil {
		return binaries{}, false
	}
	major, err := strconv.Atoi(match[1])
	return binaries{dir: dir, major: major}, err == nil
}

func (s search) output(ctx context.Context, path, arg string) (string, bool) {
	if !isProgram(filepath.Dir(path), filepath.Base(path)) {
		return "", false
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := cleanCommand(ctx, s.account, path, arg).Output()
	return string(out), err == nil
}

func isProgram(dir, name string) bool {
	info, err := os.Stat(filepath.Join(dir, name))
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
