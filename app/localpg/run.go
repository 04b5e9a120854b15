package localpg

import (
	"context"
	"time"
)

const (
	ownerPoll    = 250 * time.Millisecond // how soon an owner's end is noticed
	firstBackoff = 100 * time.Millisecond
	lastBackoff  = 30 * time.Second
	logCheck     = time.Minute
	steadyAfter  = time.Minute // up for this long: the next fault starts the backoff anew
)

// Run keeps the server alive until ctx ends or Close is called, then returns
// nil; it does not stop the server. It starts Postgres again when it ends
// unexpectedly, and takes over from an owner that has gone.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()

	backoff := firstBackoff
	for {
		up := time.Now()
		if s.untilDown(ctx); ctx.Err() != nil {
			return nil
		}
		if time.Since(up) > steadyAfter {
			backoff = firstBackoff
		}
		err := s.raise(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			s.logger.ErrorContext(ctx, "start private postgres again", "error", err)
		}
		pause(ctx, backoff)
		backoff = min(2*backoff, lastBackoff)
	}
}

// untilDown blocks until the owned Postgres has ended or, when it is another's,
// until that owner has gone. It then holds the lock.
func (s *Server) untilDown(ctx context.Context) {
	s.mu.Lock()
	owner, child := s.lock != nil, s.child
	s.mu.Unlock()
	if !owner {
		_ = poll(ctx, ownerPoll, func() (bool, error) { return s.takeLock(ctx), nil })
		return
	}
	if child == nil {
		return
	}
	ticker := time.NewTicker(logCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-child.done:
			s.logger.WarnContext(ctx, "private postgres ended", "pid", child.pid, "error", child.err)
			return
		case <-ticker.C:
			if err := trimLog(s.site.file(logFile), maxLog); err != nil {
				s.logger.WarnContext(ctx, "trim the log of the private postgres", "error", err)
			}
		}
	}
}

// takeLock reports whether the lock is now this process's.
func (s *Server) takeLock(ctx context.Context) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return false
	}
	lock, err := tryLock(s.site.file(lockFile))
	if err != nil {
		return false
	}
	s.lock = lock
	s.logger.InfoContext(ctx, "owner of the private postgres has gone, taking over")
	return true
}

// raise brings the server up again.
func (s *Server) raise(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return nil
	}
	s.child = nil
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return s.attach(ctx)
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// poll calls done at once and then at every interval, until it reports true or
// an error or ctx ends.
func poll(ctx context.Context, every time.Duration, done func() (bool, error)) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}
