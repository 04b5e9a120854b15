package db_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/db/dbtest"
)

// Every constant of the package that ends in SQL is a statement that the
// migrated database accepts: a renamed column or a wrong type fails here under
// the constant's name.
func TestStatementsPrepare(t *testing.T) {
	t.Parallel()
	conn := dbtest.Conn(t, dbtest.URL(t))
	statements := statementConstants(t)
	if len(statements) < 40 {
		t.Fatalf("found %d statements, want all of the package's", len(statements))
	}
	for name, sql := range statements {
		rewritten, _, err := pgx.NamedArgs{}.RewriteQuery(t.Context(), nil, sql, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if _, err := conn.Prepare(t.Context(), name, rewritten); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// statementConstants evaluates the string constants whose names end in SQL, of
// other constants too.
func statementConstants(t *testing.T) map[string]string {
	t.Helper()
	exprs := make(map[string]ast.Expr)
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".go") || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), entry.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.CONST {
				continue
			}
			for _, spec := range gen.Specs {
				value, ok := spec.(*ast.ValueSpec)
				if !ok {
					continue
				}
				for i, name := range value.Names {
					if i < len(value.Values) {
						exprs[name.Name] = value.Values[i]
					}
				}
			}
		}
	}
	statements := make(map[string]string, len(exprs))
	for name, expr := range exprs {
		if strings.HasSuffix(name, "SQL") {
			statements[name] = constantText(t, exprs, expr)
		}
	}
	return statements
}

func constantText(t *testing.T, exprs map[string]ast.Expr, expr ast.Expr) string {
	t.Helper()
	switch e := expr.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		if err != nil {
			t.Fatal(err)
		}
		return text
	case *ast.BinaryExpr:
		return constantText(t, exprs, e.X) + constantText(t, exprs, e.Y)
	case *ast.Ident:
		return constantText(t, exprs, exprs[e.Name])
	default:
		t.Fatalf("a statement is built from %T", expr)
		return ""
	}
}
