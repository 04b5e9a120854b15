package admin

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// catalogue is one language: each message's text by its plural form; one without
// forms has "other" alone.
type catalogue map[string]map[string]string

func readCatalogues(t *testing.T) map[string]catalogue {
	t.Helper()
	all := make(map[string]catalogue)
	for _, tag := range languages() {
		source, err := localeFiles.ReadFile("locales/" + tag.String() + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var messages map[string]json.RawMessage
		if err := json.Unmarshal(source, &messages); err != nil {
			t.Fatal(err)
		}
		list := make(catalogue)
		for id, raw := range messages {
			var text string
			if json.Unmarshal(raw, &text) == nil {
				list[id] = map[string]string{"other": text}
				continue
			}
			var forms map[string]string
			if err := json.Unmarshal(raw, &forms); err != nil {
				t.Fatalf("%s: %s is neither a text nor plural forms: %v", tag, id, err)
			}
			list[id] = forms
		}
		all[tag.String()] = list
	}
	return all
}

// sources parses the Go files of a directory, without the tests.
func sources(t *testing.T, dir string) []*ast.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	if len(files) == 0 {
		t.Fatalf("no source in %s", dir)
	}
	return files
}

func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

// usedIDs are the ids that the package's source names: those of the labels, those
// that it asks for, and the literals from which ids are chosen.
func usedIDs(t *testing.T) (asked, named map[string]bool) {
	t.Helper()
	asked, named = make(map[string]bool), make(map[string]bool)
	for field := range reflect.TypeFor[labels]().Fields() {
		asked[field.Name] = true
	}
	for _, file := range sources(t, ".") {
		ast.Inspect(file, func(n ast.Node) bool {
			if text, ok := n.(*ast.BasicLit); ok {
				if s, ok := literal(text); ok {
					named[s] = true
				}
			}
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			id, ok := literal(call.Args[0])
			switch {
			case !ok:
			case method.Sel.Name == "badge":
				asked["Status_"+id] = true
			case slices.Contains([]string{"text", "count", "has"}, method.Sel.Name):
				asked[id] = true
			}
			return true
		})
	}
	return asked, named
}

// statuses are the words that badges are made of, beside those that the source
// names: what the schema and the statements of package db can give.
func statuses(t *testing.T) []string {
	t.Helper()
	var list []string
	migrations, err := filepath.Glob("../../db/migrations/*.sql")
	if err != nil || len(migrations) == 0 {
		t.Fatalf("no migrations: %v", err)
	}
	columns := map[string]string{ // of which table and column the words of a check become badges
		"organizations": "status", "receipt": "outcome", "dead_delivery": "state", "attempt": "outcome",
	}
	seen := 0
	for _, name := range migrations {
		source, err := os.ReadFile(filepath.Clean(name))
		if err != nil {
			t.Fatal(err)
		}
		for table, column := range columns {
			_, body, found := strings.Cut(string(source), "create table "+table+" (")
			if !found {
				continue
			}
			body, _, _ = strings.Cut(body, "\n);")
			check := regexp.MustCompile(`check \(` + column + ` in \(([^)]*)\)`).FindStringSubmatch(body)
			if check == nil {
				t.Fatalf("%s.%s has no check", table, column)
			}
			seen++
			for word := range strings.SplitSeq(check[1], ",") {
				list = append(list, strings.Trim(word, " '"))
			}
		}
	}
	if seen != len(columns) {
		t.Fatalf("found %d tables, want %d", seen, len(columns))
	}
	// What the statements say beside the words of the schema.
	statements, err := os.ReadFile("../../db/queries.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range regexp.MustCompile(`(?:then|else) '([a-z]+)'|, '([a-z]+)'\)\s*\n\s*end as status`).FindAllStringSubmatch(string(statements), -1) {
		list = append(list, match[1]+match[2])
	}
	for _, must := range []string{"pending", "processing", "held", "dead", "done", "skipped", "discarded", "retry", "active", "archived"} {
		if !slices.Contains(list, must) {
			t.Errorf("the source was read badly: no status %s among %v", must, list)
		}
	}
	return slices.DeleteFunc(list, func(s string) bool { return s == "replayed" }) // a page says what became of it since
}

// causes are the codes that the error of a dead webhook delivery begins with.
func causes(t *testing.T) []string {
	t.Helper()
	list := []string{"redirect_not_followed"}
	for _, file := range sources(t, "../../handlers/outhttp") {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			kind, ok := spec.Type.(*ast.Ident)
			if ok && kind.Name == "Cause" {
				for _, value := range spec.Values {
					if text, ok := literal(value); ok {
						list = append(list, text)
					}
				}
			}
			return true
		})
	}
	if len(list) < 9 {
		t.Fatalf("found only the causes %v", list)
	}
	return list
}

func TestCataloguesHaveTheSameMessages(t *testing.T) {
	t.Parallel()
	all := readCatalogues(t)
	en := slices.Sorted(maps.Keys(all["en"]))
	for tag, list := range all {
		if diff := cmp.Diff(en, slices.Sorted(maps.Keys(list))); diff != "" {
			t.Errorf("%s differs from en (-en +%s): %s", tag, tag, diff)
		}
	}
}

func TestCataloguesHaveEveryTextThatIsAskedFor(t *testing.T) {
	t.Parallel()
	asked, _ := usedIDs(t)
	for _, status := range statuses(t) {
		asked["Status_"+status] = true
	}
	for _, cause := range causes(t) {
		asked["Advice_"+cause] = true
	}
	for tag, list := range readCatalogues(t) {
		for id := range asked {
			if list[id] == nil {
				t.Errorf("%s has no text %s", tag, id)
			}
		}
	}
}

func TestCataloguesHaveNoTextThatNobodyAsksFor(t *testing.T) {
	t.Parallel()
	asked, named := usedIDs(t)
	status := statuses(t)
	cause := causes(t)
	for id := range readCatalogues(t)["en"] {
		prefix, rest, _ := strings.Cut(id, "_")
		switch {
		case asked[id], named[id]:
		case prefix == "Status" && slices.Contains(status, rest):
		case prefix == "Advice" && (slices.Contains(cause, rest) || regexp.MustCompile(`^http_([45]\d\d|[45]xx)$`).MatchString(rest)):
		case prefix == "Fault" && slices.Contains([]string{"name", "email", "password", "reason", "since", "until", "before", "id", "after", "organization"}, rest):
		default:
			t.Errorf("nobody asks for the text %s", id)
		}
	}
}

func TestLabelsHaveNoFieldThatNobodyPrints(t *testing.T) {
	t.Parallel()
	used := make(map[string]bool)
	for _, file := range sources(t, ".") {
		ast.Inspect(file, func(n ast.Node) bool {
			if outer, ok := n.(*ast.SelectorExpr); ok {
				if inner, ok := outer.X.(*ast.SelectorExpr); ok && inner.Sel.Name == "L" {
					used[outer.Sel.Name] = true
				}
			}
			return true
		})
	}
	for field := range reflect.TypeFor[labels]().Fields() {
		if !used[field.Name] {
			t.Errorf("nobody prints the label %s", field.Name)
		}
	}
}

var placeholder = regexp.MustCompile(`\{\{\.([A-Za-z]+)\}\}`)

func placeholders(text string) []string {
	var names []string
	for _, match := range placeholder.FindAllStringSubmatch(text, -1) {
		names = append(names, match[1])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func TestMessagesHaveTheSamePlaceholdersInAllFormsAndLanguages(t *testing.T) {
	t.Parallel()
	all := readCatalogues(t)
	for id, forms := range all["en"] {
		want := placeholders(forms["other"])
		for tag, list := range all {
			if diff := cmp.Diff(slices.Sorted(maps.Keys(forms)), slices.Sorted(maps.Keys(list[id]))); diff != "" {
				t.Errorf("%s: the forms of %s differ from en: %s", tag, id, diff)
			}
			for form, text := range list[id] {
				got := placeholders(text)
				// "this delivery" needs no number.
				if diff := cmp.Diff(want, got); diff != "" && (form != "one" || len(got) > 0) {
					t.Errorf("%s: %s, %s: placeholders differ from those of en: %s", tag, id, form, diff)
				}
				if left := placeholder.ReplaceAllString(text, ""); strings.ContainsAny(left, "{}") {
					t.Errorf("%s: %s, %s: half a placeholder: %s", tag, id, form, text)
				}
			}
		}
	}
}

func TestTextsArePlainAndComplete(t *testing.T) {
	t.Parallel()
	for tag, list := range readCatalogues(t) {
		for id, forms := range list {
			for form, text := range forms {
				if strings.TrimSpace(text) != text || text == "" || strings.ContainsAny(text, "<>&\n\t") || strings.Contains(text, "  ") {
					t.Errorf("%s: %s, %s holds markup, or space that nobody sees: %q", tag, id, form, text)
				}
			}
		}
	}
}

// The number that picks a form is not always the one that is printed; every form
// must exist for every number that can come.
func TestEveryPluralMessageSpeaksOfEachNumber(t *testing.T) {
	t.Parallel()
	texts, err := newLocales()
	if err != nil {
		t.Fatal(err)
	}
	all := readCatalogues(t)
	for _, l := range texts.list {
		for id, forms := range all[l.Tag] {
			if len(forms) == 1 {
				continue
			}
			for _, n := range []int{0, 1, 2, 11, 50, 1000, 10001, 250_000} {
				got := l.count(id, n, "Count", "#", "Type", "#", "Where", "#")
				form := "other"
				if n == 1 || n == 0 && l.Tag == "pt-BR" {
					form = "one"
				}
				want := strings.NewReplacer("{{.N}}", l.number(n), "{{.Count}}", "#", "{{.Type}}", "#", "{{.Where}}", "#").Replace(forms[form])
				if got != want {
					t.Errorf("%s: %s of %d = %q, want %q", l.Tag, id, n, got, want)
				}
			}
		}
	}
}
