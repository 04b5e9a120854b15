package app

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/deskcomm/deskcomm/bus"
)

// The files that containers read: the server of the database its password, deskcomm
// the connection string with the same one.
const (
	passwordFile    = "postgres.password"
	databaseURLFile = "database.url"
)

type secretsCmd struct {
	Dir          string `required:"" placeholder:"DIR" help:"Folder to keep them in; made when missing."`
	DatabaseHost string `default:"postgres" placeholder:"HOST" help:"Host, or host:port, of the database."`
	DatabaseName string `default:"deskcomm" placeholder:"NAME" help:"Name of the database."`
	DatabaseUser string `default:"deskcomm" placeholder:"USER" help:"User of the database."`
}

// Run makes what is missing and never changes what is there, so it may run before
// every start, be killed at any moment, and run twice at once.
func (s secretsCmd) Run(con console) (err error) {
	defer func() {
		if errors.Is(err, fs.ErrPermission) {
			err = fmt.Errorf("--dir: %w; the folder must belong to user %d, as which this runs", err, os.Geteuid())
		}
	}()
	if err := makeDataDir(s.Dir); err != nil {
		return err
	}
	password, err := s.password()
	if err != nil {
		return err
	}
	if _, err := keepSecret(s.path(databaseURLFile), s.url(password)); err != nil {
		return err
	}
	if used, err := s.passwordInURL(); err != nil {
		return err
	} else if used != password {
		return &refusal{
			says: fmt.Sprintf("%s and %s hold different passwords; remove the one that the database does not know: it is made again from the other",
				s.path(passwordFile), s.path(databaseURLFile)),
			err: bus.ErrConflict,
		}
	}
	_, err = fmt.Fprintln(con.out, "the secrets are in", s.Dir)
	return err
}

// password returns the one that is kept, be it in the connection string alone, else
// a new one.
func (s secretsCmd) password() (string, error) {
	made, err := s.passwordInURL()
	if errors.Is(err, fs.ErrNotExist) {
		made, err = rand.Text(), nil // needs no quoting in a URL, in a shell or in SQL
	}
	if err != nil {
		return "", err
	}
	password, err := keepSecret(s.path(passwordFile), made)
	if err == nil && password == "" {
		err = fmt.Errorf("%s is empty; remove it, and it is made again", s.path(passwordFile))
	}
	return password, err
}

func (s secretsCmd) passwordInURL() (string, error) {
	text, err := readSecret(s.path(databaseURLFile))
	if err != nil {
		return "", err
	}
	if u, err := url.Parse(text); err == nil && u.User != nil {
		if password, ok := u.User.Password(); ok && password != "" {
			return password, nil
		}
	}
	return "", fmt.Errorf("%s: must be a connection string with a password, as in postgres://user:password@host:5432/database",
		s.path(databaseURLFile))
}

func (s secretsCmd) path(name string) string { return filepath.Join(s.Dir, name) }

func (s secretsCmd) url(password string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(s.DatabaseUser, password), Host: s.DatabaseHost, Path: "/" + s.DatabaseName}
	return u.String()
}

// keepSecret writes text to a file that is not there yet, whole or not at all and
// for its owner only, and returns what the file holds then: what was there stays, and
// another process may have been first.
func keepSecret(path, text string) (string, error) {
	if kept, err := readSecret(path); !errors.Is(err, fs.ErrNotExist) {
		return kept, err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-") // made with mode 0600
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp.Name()) //nolint:errcheck // nobody reads one that stays behind
	_, err = tmp.WriteString(text + "\n")
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return "", err
	}
	// Unlike a renaming, a link does not replace what another process made meanwhile.
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	if err := syncDir(filepath.Dir(path)); err != nil {
		return "", err
	}
	return readSecret(path)
}

// readSecret returns what a shell's $(< file) does, with which the start script of
// the Postgres image reads it: all but the newlines at the end.
func readSecret(path string) (string, error) {
	text, err := os.ReadFile(path) //nolint:gosec // the operator's own folder
	return strings.TrimRight(string(text), "\n"), err
}

// syncDir makes the names in a folder outlive a power cut.
func syncDir(path string) error {
	dir, err := os.Open(path) //nolint:gosec // the operator's own folder
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
