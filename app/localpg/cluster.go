package localpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// cluster is all that is needed to start one Postgres.
type cluster struct {
	dir      string
	major    int
	bin      string // folder of initdb and postgres
	socket   string
	log      string
	password string
	account  account
	durable  bool
}

// prepare finds or makes everything that a start needs. The lock is held.
func (s *Server) prepare(ctx context.Context) (cluster, error) {
	home, err := s.site.home()
	if err != nil {
		return cluster{}, err
	}
	dir, major := clusterIn(home)
	acct, err := chooseAccount(dir)
	if err != nil {
		return cluster{}, err
	}
	home, err = s.site.settle(acct, s.logger)
	if err != nil {
		return cluster{}, err
	}
	found, err := systemSearch(acct).find(ctx, major)
	if err != nil {
		return cluster{}, err
	}
	c := cluster{
		dir: filepath.Join(home, strconv.Itoa(found.major)), major: found.major, bin: found.dir,
		socket: s.socket, log: s.site.file(logFile), account: acct, durable: s.durable,
	}
	if c.password, err = s.ensureCluster(ctx, c, major != 0); err != nil {
		return cluster{}, err
	}
	if c.socket == "" {
		c.socket, err = s.site.openSocketDir(home, acct)
	} else {
		err = makePrivate(c.socket, home, acct)
	}
	return c, err
}

// ensureCluster returns the password of the cluster, which it makes when there
// is none.
func (s *Server) ensureCluster(ctx context.Context, c cluster, exists bool) (string, error) {
	if exists {
		password, err := s.site.password()
		if errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("%s is missing but the cluster exists: put it back from a backup", s.site.file(passwordFile))
		}
		return password, errors.Join(err, c.account.ownTree(c.dir))
	}
	password, err := s.site.newPassword()
	if err != nil {
		return "", err
	}
	s.logger.InfoContext(ctx, "making a private postgres cluster", "version", c.major, "cluster", c.dir)
	if err := c.init(ctx, password); err != nil {
		return "", fmt.Errorf("make cluster %s: %w", c.dir, err)
	}
	return password, nil
}

// init makes the cluster in a folder beside its place and renames it when
// complete, so that a kill at any moment leaves nothing half-made.
func (c cluster) init(ctx context.Context, password string) error {
	home := filepath.Dir(c.dir)
	left, _ := filepath.Glob(filepath.Join(globEscape(home), ".init-*")) // the pattern is well formed
	for _, dir := range left {
		_ = os.RemoveAll(dir) // an initdb that outlived its parent may still write there
	}
	tmp, err := os.MkdirTemp(home, ".init-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // the next attempt removes it

	pwfile, data := filepath.Join(tmp, "password"), filepath.Join(tmp, "data")
	if err := os.WriteFile(pwfile, []byte(password+"\n"), 0o600); err != nil {
		return err
	}
	if err := errors.Join(c.account.own(tmp), c.account.own(pwfile)); err != nil {
		return err
	}
	if err := c.initdb(ctx, data, pwfile); err != nil {
		return err
	}
	if err := os.Rename(data, c.dir); err != nil {
		return err
	}
	return syncDir(home)
}

func (c cluster) initdb(ctx context.Context, data, pwfile string) error {
	args := []string{
		"--pgdata=" + data, "--username=" + role, "--pwfile=" + pwfile, "--auth=scram-sha-256",
		"--encoding=UTF8", "--locale=C", "--data-checksums", "--no-instructions",
	}
	if !c.durable {
		args = append(args, "--no-sync")
	}
	cmd := c.command(ctx, "initdb", args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) } // it then removes what it made
	cmd.WaitDelay = 10 * time.Second
	p, err := spawn(cmd)
	if err != nil {
		return fmt.Errorf("start initdb: %w", err)
	}
	<-p.done
	if p.err != nil {
		return fmt.Errorf("initdb: %w: %s", p.err, lastLines(out.String()))
	}
	return nil
}

// start starts the postmaster and does not wait for it to be ready.
func (c cluster) start(ctx context.Context) (*process, error) {
	log, err := os.OpenFile(c.log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // the child has its own
	args := []string{"-D", c.dir}
	for _, setting := range c.settings() {
		args = append(args, "-c", setting)
	}
	cmd := c.command(context.WithoutCancel(ctx), "postgres", args...) // only stop ends it
	cmd.Stdout, cmd.Stderr = log, log
	return spawn(cmd)
}

func (c cluster) settings() []string {
	settings := []string{
		"listen_addresses=",
		"unix_socket_directories=" + quoteList(c.socket),
		"unix_socket_permissions=0700",
		"port=" + socketPort,
		"max_connections=200",
		"cluster_name=deskcomm",
		"timezone=UTC",
		"log_timezone=UTC",
		"logging_collector=off",
		"log_destination=stderr",
		"log_min_messages=warning",
		// A failed statement and the values in it are the client's to report:
		// personal data stays out of this log.
		"log_min_error_statement=panic",
		"log_error_verbosity=terse",
	}
	if c.durable {
		return append(settings, "fsync=on", "full_page_writes=on", "synchronous_commit=on")
	}
	return append(settings, "fsync=off", "full_page_writes=off", "synchronous_commit=off")
}

// command prepares one of Postgres's programs: as its own user, in a folder that
// user can enter, with nothing inherited from our environment.
func (c cluster) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return cleanCommand(ctx, c.account, filepath.Join(c.bin, name), args...)
}

func (c cluster) url(name string) string { return socketURL(c.socket, c.password, name) }

// quoteList makes one element of a Postgres list of names out of a path that may
// hold commas, spaces or quotes.
func quoteList(path string) string { return `"` + strings.ReplaceAll(path, `"`, `""`) + `"` }

// globEscape makes filepath.Glob take a path literally.
func globEscape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
