package localpg

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// The files of a data directory that belong to the private Postgres.
const (
	lockFile     = "postgres.lock"
	passwordFile = "postgres.password"
	locationFile = "postgres.location"
	logFile      = "postgres.log"
	insideFolder = "postgres"
)

var errLocked = errors.New("another process holds the lock")

// site is one data directory.
type site struct {
	data     string // absolute, symbolic links resolved: two names of a folder are one site
	stateDir string // where the clusters go that cannot be inside
}

// openSite makes the data directory when it is missing: 0700, and its missing
// parents 0755, since the user of Postgres may have to pass through them.
func openSite(dataDir, stateDir string) (site, error) {
	if dataDir == "" {
		return site{}, errors.New("no path given")
	}
	path, err := filepath.Abs(dataDir)
	if err != nil {
		return site{}, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return site{}, err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return site{}, err
	}
	place, err := findSite(path)
	place.stateDir = stateDir
	return place, err
}

func findSite(dataDir string) (site, error) {
	path, err := filepath.Abs(dataDir)
	if err != nil {
		return site{}, err
	}
	path, err = filepath.EvalSymlinks(path)
	return site{data: path}, err
}

func (s site) file(name string) string { return filepath.Join(s.data, name) }

// key names the site where only a short name fits.
func (s site) key() string {
	sum := sha256.Sum256([]byte(s.data))
	return hex.EncodeToString(sum[:8])
}

// home returns the folder that holds the cluster, or "" when none was chosen.
func (s site) home() (string, error) {
	raw, err := os.ReadFile(s.file(locationFile))
	if err == nil {
		path := strings.TrimSpace(string(raw))
		if !filepath.IsAbs(path) {
			return "", fmt.Errorf("%s: want one absolute path", s.file(locationFile))
		}
		return path, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	inside := s.file(insideFolder)
	if _, err := os.Stat(inside); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		return "", err
	}
	return inside, nil
}

// clusterIn returns the cluster of the newest major version in home. A folder
// gets its number only when it is complete, so its name is proof enough; its
// inside may be closed to the one who asks.
func clusterIn(home string) (dir string, major int) {
	entries, err := os.ReadDir(home)
	if home == "" || err != nil {
		return "", 0
	}
	for _, entry := range entries {
		n, err := strconv.Atoi(entry.Name())
		if err == nil && entry.IsDir() && n > major {
			dir, major = filepath.Join(home, entry.Name()), n
		}
	}
	return dir, major
}

// password reads the password of the cluster's role.
func (s site) password() (string, error) {
	raw, err := os.ReadFile(s.file(passwordFile))
	if err != nil {
		return "", err
	}
	password := strings.TrimSpace(string(raw))
	if password == "" {
		return "", fmt.Errorf("%s is empty: put it back from a backup", s.file(passwordFile))
	}
	return password, nil
}

// newPassword returns the password for a cluster to be made: an earlier one when
// there is one, since an attempt before this may have been killed.
func (s site) newPassword() (string, error) {
	password, err := s.password()
	if !errors.Is(err, fs.ErrNotExist) {
		return password, err
	}
	password = rand.Text()
	return password, writeFile(s.file(passwordFile), password+"\n")
}

// writeFile writes a file of mode 0600 whole or not at all.
func writeFile(path, content string) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // gone already when all went well
	_, err = tmp.WriteString(content)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// tryLock takes the lock without waiting. Closing the file frees it.
func tryLock(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return file, nil
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errLocked
	}
	return nil, errors.Join(err, file.Close())
}
