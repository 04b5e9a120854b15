package localpg

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	systemStateDir = "/var/lib/deskcomm"
	ownerFile      = "data_dir" // in a home elsewhere: whose it is
)

// settle returns the folder for the cluster, making it when there is none yet:
// inside the data directory when the account can get there, else elsewhere.
func (s site) settle(a account, logger *slog.Logger) (string, error) {
	home, err := s.home()
	if err != nil {
		return "", err
	}
	inside := s.file(insideFolder)
	if home != "" && home != inside {
		return home, s.claimHome(home)
	}
	blocked := a.blockedAt(filepath.Dir(s.data))
	if blocked == "" {
		return inside, s.openInside(a)
	}
	if _, major := clusterIn(inside); major != 0 {
		return "", fmt.Errorf("user %s, who owns the cluster in %s, may not enter %s: allow it with chmod o+x, or move the data directory",
			a.name, inside, blocked)
	}
	home, err = s.elsewhere(a)
	if err != nil {
		return "", fmt.Errorf("user %s may not enter %s, and no other place was found: %w", a.name, blocked, err)
	}
	logger.Warn("private postgres cannot live in the data directory, its data goes elsewhere",
		"data_dir", s.data, "user", a.name, "closed_folder", blocked, "location", home)
	return home, nil
}

// openInside makes <data>/postgres. When Postgres is another user it must be
// able to pass through, but not to list or write: 0711.
func (s site) openInside(a account) error {
	inside := s.file(insideFolder)
	if err := os.Mkdir(inside, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if !a.other() {
		return nil
	}
	return errors.Join(os.Chmod(s.data, 0o711), os.Chmod(inside, 0o711))
}

// elsewhere makes a home outside the data directory and records it there.
func (s site) elsewhere(a account) (string, error) {
	state := cmp.Or(s.stateDir, systemStateDir)
	_ = os.MkdirAll(state, 0o711) // when it cannot be made, folder fails
	home, err := s.folder(a, filepath.Join(state, s.key()))
	if err != nil {
		var second error
		home, second = s.folder(a, filepath.Join(os.TempDir(), "deskcomm-data-"+s.key()))
		if second != nil {
			return "", errors.Join(err, second)
		}
	}
	return home, errors.Join(
		writeFile(s.file(locationFile), home+"\n"),
		writeFile(filepath.Join(home, ownerFile), s.data+"\n"),
	)
}

// folder makes path, or path-2 and so on when that is somebody else's, as after
// a data directory was moved away and a new one made in its place.
func (s site) folder(a account, path string) (string, error) {
	if blocked := a.blockedAt(filepath.Dir(path)); blocked != "" {
		return "", fmt.Errorf("user %s may not enter %s", a.name, blocked)
	}
	for n := 1; n <= 20; n++ {
		name := path
		if n > 1 {
			name += "-" + strconv.Itoa(n)
		}
		err := os.Mkdir(name, 0o711)
		if errors.Is(err, fs.ErrExist) && s.unused(name) {
			err = nil
		}
		if err == nil {
			return name, os.Chmod(name, 0o711)
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("%s and its next 19 names are taken", path)
}

// unused reports whether an existing folder is what a killed attempt of this
// site left: ours, no link, without a cluster, claimed by nobody else.
func (s site) unused(dir string) bool {
	info, err := os.Lstat(dir)
	uid, ok := ownerOf(dir)
	if err != nil || !info.IsDir() || !ok || uid != os.Geteuid() {
		return false
	}
	_, major := clusterIn(dir)
	owner, err := readOwner(dir)
	return major == 0 && err == nil && (owner == "" || owner == s.data)
}

// claimHome checks that a recorded home is there and is ours alone: a copied
// data directory must not run the original's cluster.
func (s site) claimHome(home string) error {
	if _, err := os.Stat(home); err != nil {
		return fmt.Errorf("the cluster recorded in %s is gone: %w", s.file(locationFile), err)
	}
	owner, err := readOwner(home)
	if err != nil || owner == s.data {
		return err
	}
	if owner != "" {
		other := site{data: owner}
		if theirs, err := other.home(); err == nil && theirs == home {
			return fmt.Errorf("the cluster in %s belongs to data directory %s; to start empty here remove %s",
				home, owner, s.file(locationFile))
		}
	}
	return writeFile(filepath.Join(home, ownerFile), s.data+"\n")
}

func readOwner(home string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(home, ownerFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return strings.TrimSpace(string(raw)), nil
}
