package app

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// What the files of the container say of the program is compared with the program;
// what they mean together is checked by .ci/composecheck.

func repoFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// onlyMatch returns the group of a pattern that has to match once.
func onlyMatch(t *testing.T, text, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1)
	if len(found) != 1 {
		t.Fatalf("%d matches of %s, want one", len(found), pattern)
	}
	return found[0][1]
}

// withoutComments drops what stands behind a # at the start of a line or behind a
// blank.
func withoutComments(text string) string {
	return regexp.MustCompile(`(?m)(^|\s)#.*$`).ReplaceAllString(text, "")
}

func TestImageIsBuiltLikeTheBinary(t *testing.T) {
	t.Parallel()
	dockerfile, makefile := repoFile(t, "Dockerfile"), repoFile(t, "Makefile")
	minor := onlyMatch(t, repoFile(t, "go.mod"), `(?m)^go (\d+\.\d+)`)
	if got := onlyMatch(t, dockerfile, `FROM \S+ golang:(\d+\.\d+)-`); got != minor {
		t.Errorf("the image is built with Go %s, go.mod asks for %s", got, minor)
	}
	// The same but for how each writes the version and where it puts the binary.
	const build = `go build (-trimpath .*) -o \S+ \.\n`
	want := strings.ReplaceAll(onlyMatch(t, makefile, build), "$(VERSION)", "$VERSION")
	if got := onlyMatch(t, dockerfile, build); got != want {
		t.Errorf("the image is built with %s, make build with %s", got, want)
	}
	for _, text := range []string{dockerfile, makefile} {
		if !regexp.MustCompile(`CGO_ENABLED=0 [^\n]*(\\\n\s*)?go build -trimpath`).MatchString(text) {
			t.Error("a binary is built with cgo, which an image without a C library cannot run")
		}
	}
}

func TestImageHasAllThatTheProgramIsBuiltFrom(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(context.Background(), "go", "list", "-deps", "-f",
		`{{with .Module}}{{if .Main}}{{$.ImportPath}}{{end}}{{end}}{{range .EmbedFiles}} {{$.ImportPath}}/{{.}}{{end}}`, "..")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	ignored := strings.Split(repoFile(t, ".dockerignore"), "\n")
	if !slices.Contains(ignored, "*") {
		t.Error(".dockerignore lets in what it does not name")
	}
	const module = "github.com/deskcomm/deskcomm"
	for path := range strings.FieldsSeq(string(out)) {
		within, ours := strings.CutPrefix(path, module)
		if !ours {
			continue
		}
		top, _, _ := strings.Cut(strings.TrimPrefix(within, "/"), "/")
		if top != "" && !slices.Contains(ignored, "!"+top) || strings.Contains(path, "/testdata/") {
			t.Errorf("%s is left out by .dockerignore", path)
		}
	}
}

func TestImageRunsAsANumberedUserWithoutAShell(t *testing.T) {
	t.Parallel()
	text := withoutComments(repoFile(t, "Dockerfile"))
	user := onlyMatch(t, text, `(?m)^USER (\S+)$`)
	if !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(user) {
		t.Errorf("USER %s, want numbers that are not root's", user)
	}
	for _, folder := range []string{"/data", "/secrets"} {
		if owner := onlyMatch(t, text, `--chown=(\S+) /out/empty `+folder+`\n`); owner != user {
			t.Errorf("a new volume at %s belongs to %s, not to %s", folder, owner, user)
		}
	}
	for _, command := range []string{"ENTRYPOINT", "CMD", "HEALTHCHECK"} {
		if line := onlyMatch(t, text, `(?m)^(`+command+` .*)$`); !strings.HasSuffix(line, `"]`) {
			t.Errorf("%s needs a shell, which the image has not", line)
		}
	}
}

func TestContainersSetOnlyWhatTheProgramReads(t *testing.T) {
	t.Parallel()
	parser, err := kong.New(&cli{}, kong.Vars{"scopes": ""}, kong.Writers(&bytes.Buffer{}, &bytes.Buffer{}), kong.BindTo(t.Context(), (*context.Context)(nil)))
	if err != nil {
		t.Fatal(err)
	}
	known := knownVariables(parser.Model.Node)
	// Those that compose itself reads, out of the shell or .env.
	forCompose := []string{"DOMAIN", "HTTP_PORT", "VERSION"}
	set := regexp.MustCompile(`\b(?:DESKCOMM|DATABASE)_[A-Z_]+\b`)
	read := regexp.MustCompile(`\$\{(\w+)[^}]*\}`)
	for _, file := range []string{"Dockerfile", "docker-compose.yml", "docker-compose.tls.yml"} {
		text := withoutComments(repoFile(t, file))
		for _, name := range set.FindAllString(read.ReplaceAllString(text, ""), -1) {
			if !slices.Contains(known, name) {
				t.Errorf("%s sets %s, which deskcomm refuses", file, name)
			}
		}
		for _, found := range read.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(forCompose, found[1]) {
				t.Errorf("%s reads %s, which the list above lacks", file, found[1])
			}
		}
	}
	for _, name := range forCompose {
		if slices.Contains(known, name) {
			t.Errorf("%s means one thing to compose and another to deskcomm", name)
		}
	}
}

func TestImagesArePinned(t *testing.T) {
	t.Parallel()
	for file, pattern := range map[string]string{
		"Dockerfile":             `(?m)^FROM (?:--platform=\S+ )?(\S+)`,
		"docker-compose.yml":     `(?m)^\s+image: (\S+)`,
		"docker-compose.tls.yml": `(?m)^\s+image: (\S+)`,
	} {
		images := regexp.MustCompile(pattern).FindAllStringSubmatch(withoutComments(repoFile(t, file)), -1)
		if len(images) == 0 {
			t.Errorf("%s has no image", file)
		}
		for _, found := range images {
			image := found[1]
			_, tag, _ := strings.Cut(image, ":")
			if image != "scratch" && image != "deskcomm:local" && !regexp.MustCompile(`^\d+(\.\d+)?`).MatchString(tag) {
				t.Errorf("%s takes %s, want a numbered version", file, image)
			}
		}
	}
}
