package app_test

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// portuguese finds letters that English has not, and words that a message to a
// person often has. é is left out: it stands for any letter that is not ASCII.
var portuguese = regexp.MustCompile(`(?i)[ãõçáàâêíóôú]|\b(uma|voce|nao|mensagem|mensagens|contato|usuario|senha|erro|falhou|obrigad[oa])\b`)

// What people read in Portuguese comes from catalogues and templates.
func TestNoPortugueseInGoFiles(t *testing.T) {
	t.Parallel()
	files := 0
	err := filepath.WalkDir("..", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "data" || strings.HasPrefix(entry.Name(), ".") && name != ".."):
			return filepath.SkipDir
		case !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, "_templ.go"):
			return nil
		}
		source, err := os.ReadFile(filepath.Clean(name))
		if err != nil {
			return err
		}
		files++
		for at, word := range foreignWords(name, source) {
			t.Errorf("%s: %q is Portuguese", at, word)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 50 {
		t.Errorf("only %d files were read", files)
	}
}

// foreignWords looks at comments and literals and returns what it finds by where
// it is.
func foreignWords(name string, source []byte) map[string]string {
	set := token.NewFileSet()
	file := set.AddFile(name, -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, scanner.ScanComments)
	found := map[string]string{}
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return found
		}
		if tok != token.COMMENT && tok != token.STRING && tok != token.CHAR {
			continue
		}
		if word := portuguese.FindString(text); word != "" {
			found[set.Position(pos).String()] = word
		}
	}
}

func TestPortugueseIsFoundInCommentsAndLiterals(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]int{
		"package p // a mensagem":            1,
		"package p; const c = `opção`":       1,
		"package p; const c = \"Você\"":      1,
		"package p; const c = 'ã'":           1,
		"package p; var senha int // secret": 0,
		"package p // nothing of the kind":   0,
	} {
		if got := len(foreignWords("p.go", []byte(source))); got != want {
			t.Errorf("%q: %d findings, want %d", source, got, want)
		}
	}
}
