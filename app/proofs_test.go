package app

import (
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A proof that is named must be there, and the table must have all the checks.
func TestProofsThatThePageNamesExist(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/PROOFS.md")
	if err != nil {
		t.Fatal(err)
	}
	var tests []string
	declaration := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark)\w+)\(`)
	root := os.DirFS("..")
	err = fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(root, path)
		for _, m := range declaration.FindAllStringSubmatch(string(text), -1) {
			tests = append(tests, m[1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`((?:Test|Benchmark)\\w+)`").FindAllStringSubmatch(string(page), -1)
	if len(names) < 10 {
		t.Errorf("the page names %d tests, want one for each check", len(names))
	}
	for _, m := range names {
		if !slices.Contains(tests, m[1]) {
			t.Errorf("there is no %s", m[1])
		}
	}
	sum := 0
	for _, m := range regexp.MustCompile("(?m)^\\| `[a-z_]+` \\| (\\d+) \\|").FindAllStringSubmatch(string(page), -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	if sum != 29 {
		t.Errorf("the table has %d checks, want 29", sum)
	}
}
