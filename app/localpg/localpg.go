package localpg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

const (
	// startTimeout bounds Open. It is long because a crash recovery replays the
	// write-ahead log before the first connection is let in.
	startTimeout = 5 * time.Minute
	pollInterval = 50 * time.Millisecond
)

// Options say which Postgres to run and how.
type Options struct {
	DataDir string       // deskcomm's data directory, made when missing
	Logger  *slog.Logger // nil discards
	Durable bool         // false switches fsync off: only for data that may be lost

	stateDir string // where clusters go that cannot be in DataDir; empty: the system's place
}

// Server is a running private Postgres, owned or adopted by this process.
type Server struct {
	site    site
	logger  *slog.Logger
	durable bool
	life    context.Context // ends with Close, which aborts a restart in progress
	end     context.CancelFunc

	mu     sync.Mutex // serialises starting, taking over and closing
	lock   *os.File   // held while this process owns the server, else nil
	child  *process   // the postmaster while owned; nil after a start that went wrong
	socket string     // set by the first attach only, as url: it must survive a restart and a takeover
	url    string
}

// Open returns the private Postgres of a data directory once it takes
// connections to the database deskcomm. It makes the cluster when there is none,
// and adopts the server when another process runs it. It returns ErrNoBinaries
// when no suitable Postgres is installed.
func Open(ctx context.Context, opts Options) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()

	place, err := openSite(opts.DataDir, opts.stateDir)
	if err != nil {
		return nil, fmt.Errorf("open data directory %s: %w", opts.DataDir, err)
	}
	s := &Server{
		site:    place,
		logger:  cmp.Or(opts.Logger, slog.New(slog.DiscardHandler)),
		durable: opts.Durable,
	}
	s.life, s.end = context.WithCancel(context.WithoutCancel(ctx))
	if err := s.attach(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open private Postgres of %s: %w", place.data, err), s.Close())
	}
	return s, nil
}

// Exists reports whether a data directory has a private cluster. It starts and
// creates nothing.
func Exists(dataDir string) bool {
	place, err := findSite(dataDir)
	if err != nil {
		return false
	}
	home, err := place.home()
	if err != nil || home == "" {
		return false
	}
	_, major := clusterIn(home)
	return major != 0
}

// URL is the connection string of the database deskcomm as its superuser. It
// holds the password and stays the same over restarts.
func (s *Server) URL() string { return s.url }

// Close stops Postgres when this process owns it and leaves an adopted one
// alone. It blocks until Postgres has ended and is safe to call twice.
func (s *Server) Close() error {
	s.end()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return nil
	}
	var err error
	if s.child != nil {
		err = s.child.stop()
		s.child = nil
		s.logger.Info("private postgres stopped", "data_dir", s.site.data)
	}
	err = errors.Join(err, s.lock.Close())
	s.lock = nil
	return err
}

// attach makes this process the owner, or finds the owner's server, whichever
// comes first. The caller holds the mutex or is Open.
func (s *Server) attach(ctx context.Context) error {
	var last error
	err := poll(ctx, pollInterval, func() (bool, error) {
		if s.lock == nil {
			lock, err := tryLock(s.site.file(lockFile))
			if err != nil && !errors.Is(err, errLocked) {
				return false, err
			}
			s.lock = lock
		}
		if s.lock != nil {
			return true, s.own(ctx)
		}
		last = s.adopt(ctx)
		return last == nil, permanent(last)
	})
	if err != nil && ctx.Err() != nil && last != nil {
		return fmt.Errorf("wait for the process that owns it: %w (%w)", err, last)
	}
	return err
}

// own brings the server up under this process, which holds the lock.
func (s *Server) own(ctx context.Context) error {
	c, err := s.prepare(ctx)
	if err != nil {
		return err
	}
	if err := stopLeftover(ctx, c.dir, s.logger); err != nil {
		return fmt.Errorf("stop the server of an earlier owner: %w", err)
	}
	child, err := launch(ctx, c)
	if err != nil {
		return err
	}
	s.child = child
	s.found(c.socket, c.url(database))
	s.logger.InfoContext(ctx, "private postgres started", "version", c.major, "cluster", c.dir, "pid", child.pid)
	return nil
}

// adopt connects to the server that another process owns.
func (s *Server) adopt(ctx context.Context) error {
	home, err := s.site.home()
	if err != nil {
		return err
	}
	dir, major := clusterIn(home)
	if major == 0 {
		return errNotReady
	}
	file, err := readPostmaster(dir)
	if err != nil {
		return err
	}
	if !file.ready {
		return errNotReady
	}
	password, err := s.site.password()
	if err != nil {
		return err
	}
	if err := trustSocketDir(file.socket, dir); err != nil {
		return err
	}
	url := socketURL(cmp.Or(s.socket, file.socket), password, database)
	if err := ping(ctx, url); err != nil {
		return err
	}
	s.found(file.socket, url)
	s.logger.InfoContext(ctx, "private postgres adopted", "version", major, "cluster", dir, "pid", file.pid)
	return nil
}

// found keeps where the server was found first. URL may be read at any time, so
// a later attach, which finds it there again, writes nothing.
func (s *Server) found(socket, url string) {
	if s.url == "" {
		s.socket, s.url = socket, url
	}
}
