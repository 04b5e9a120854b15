package admin

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"mime"
	"net/http"
	"path"

	"github.com/go-chi/chi/v5"
)

//go:embed static
var staticFiles embed.FS

// assets are the files that pages load. Their address holds a digest of them all,
// so that a browser may keep each for ever and never uses one of another build.
type assets struct {
	version string
	files   map[string][]byte
}

func newAssets() *assets {
	a := &assets{files: make(map[string][]byte)}
	digest := sha256.New()
	entries, err := staticFiles.ReadDir("static")
	if err != nil {
		panic(err) // embedded
	}
	for _, entry := range entries {
		content, err := fs.ReadFile(staticFiles, path.Join("static", entry.Name()))
		if err != nil {
			panic(err) // embedded
		}
		a.files[entry.Name()] = content
		digest.Write(content)
	}
	a.version = hex.EncodeToString(digest.Sum(nil))[:12]
	return a
}

// url is the address of a file.
func (a *assets) url(name string) string { return "/admin/static/" + a.version + "/" + name }

func (a *assets) serve(w http.ResponseWriter, r *http.Request) {
	name := chi.URLParam(r, "file")
	content, found := a.files[name]
	if !found || chi.URLParam(r, "version") != a.version {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	w.Write(content) //nolint:errcheck // the client is gone then
}
