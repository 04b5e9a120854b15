package localpg

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

const (
	socketPort = "5432" // only part of the socket's file name
	socketName = ".s.PGSQL." + socketPort
	// maxSocketPath stays below sockaddr_un's 104 bytes of the BSDs and macOS and
	// the 108 of Linux, both with a closing zero.
	maxSocketPath = 100
)

// openSocketDir returns a folder for the socket that only the account may enter:
// in home when the path is fit for a socket, else a short one in the system's
// temporary folder.
func (s site) openSocketDir(home string, a account) (string, error) {
	short := "deskcomm-" + s.key()
	for _, dir := range []string{
		filepath.Join(home, "run"),
		filepath.Join(os.TempDir(), short),
		filepath.Join("/tmp", short), // TMPDIR itself can be long, or closed to the account
	} {
		// A client takes a comma in the path for the end of the first of many hosts.
		fits := len(filepath.Join(dir, socketName)) <= maxSocketPath && !strings.Contains(dir, ",")
		if fits && a.blockedAt(filepath.Dir(dir)) == "" {
			return dir, makePrivate(dir, home, a)
		}
	}
	return "", errors.New("no folder is fit for the socket: set TMPDIR to a short path without a comma")
}

// makePrivate makes a folder of mode 0700 for the account. One that exists
// outside home must be the account's: in a shared folder anybody can be first.
func makePrivate(dir, home string, a account) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrExist) {
		err = nil
		if filepath.Dir(dir) != home {
			err = checkPrivate(dir, a.uid())
		}
	}
	if err != nil {
		return err
	}
	return errors.Join(a.own(dir), os.Chmod(dir, 0o700))
}

// checkPrivate refuses a folder that is a link or not uid's. Root's own passes:
// it is ours, from an attempt killed before the folder changed hands.
func checkPrivate(dir string, uid int) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	owner, ok := ownerOf(dir)
	if !info.IsDir() || !ok || (owner != uid && owner != os.Geteuid()) {
		return fmt.Errorf("%s is not a folder of the user that runs Postgres: remove it", dir)
	}
	return nil
}

// trustSocketDir checks, before a password is sent, that the socket's folder is
// of the user who owns the cluster.
func trustSocketDir(dir, cluster string) error {
	uid, ok := ownerOf(cluster)
	if !ok {
		return errNotReady
	}
	err := checkPrivate(dir, uid)
	if errors.Is(err, fs.ErrNotExist) {
		return errNotReady
	}
	return err
}

// socketURL is a connection string through a socket. The port is spelled out
// since the client would else take it from the environment.
func socketURL(dir, password, name string) string {
	query := url.Values{"host": {dir}, "port": {socketPort}, "sslmode": {"disable"}}.Encode()
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(role, password),
		Path:     "/" + name,
		RawQuery: strings.ReplaceAll(query, "+", "%20"), // pgx, like libpq, keeps a plus as it is
	}
	return u.String()
}
