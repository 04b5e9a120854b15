package api

import (
	"bytes"
	"encoding/json"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write golden files")

func TestOpenAPIGolden(t *testing.T) {
	t.Parallel()
	s := Mount(chi.NewRouter(), Options{Logger: slog.New(slog.DiscardHandler)})
	got, err := json.MarshalIndent(s.api.OpenAPI(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	path := filepath.Join("testdata", "openapi.json")
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the API differs from its golden file; run the test with -update and look at the change:\n%s", cmp.Diff(string(want), string(got)))
	}
}
