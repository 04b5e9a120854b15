package app

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/deskcomm/deskcomm/db"
)

// masterKey returns the configured key, else the one in the data directory,
// which the first start generates.
func masterKey(configured, dataDir string) ([]byte, error) {
	if configured != "" {
		key, err := decodeKey(configured)
		if err != nil {
			return nil, fmt.Errorf("DESKCOMM_MASTER_KEY: %w", err)
		}
		return key, nil
	}
	path := filepath.Join(dataDir, "master.key")
	text, err := os.ReadFile(path) //nolint:gosec // the operator's own directory
	if errors.Is(err, fs.ErrNotExist) {
		return generateKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("read master key: %w", err)
	}
	key, err := decodeKey(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

func decodeKey(text string) ([]byte, error) {
	for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
		if key, err := enc.DecodeString(text); err == nil && len(key) == db.MasterKeySize {
			return key, nil
		}
	}
	return nil, fmt.Errorf("must be %d bytes in base64 (openssl rand -base64 32)", db.MasterKeySize)
}

// generateKey makes a key and keeps it. Two processes that start at once agree
// on the one that was linked first.
func generateKey(path string) ([]byte, error) {
	key := make([]byte, db.MasterKeySize)
	rand.Read(key)
	if err := makeDataDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".master.key-") // made with mode 0600
	if err != nil {
		return nil, fmt.Errorf("keep master key: %w", err)
	}
	defer os.Remove(f.Name()) //nolint:errcheck // gone when all went well
	_, err = f.WriteString(base64.StdEncoding.EncodeToString(key) + "\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return nil, fmt.Errorf("keep master key: %w", err)
	}
	if err := os.Link(f.Name(), path); errors.Is(err, fs.ErrExist) {
		return masterKey("", filepath.Dir(path))
	} else if err != nil {
		return nil, fmt.Errorf("keep master key: %w", err)
	}
	return key, nil
}

// makeDataDir makes the data directory for its owner only, and parents that are
// missing for all: the user that Postgres runs as has to pass through them.
func makeDataDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // holds nothing but the data directory
		return fmt.Errorf("make parents of the data directory: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make data directory: %w", err)
	}
	return nil
}
