package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

const (
	maxLog  = 16 << 20 // bytes after which the log starts anew; see trimLog
	maxTail = 8 << 10
	// stillInUse is how Postgres says that children of a killed postmaster have
	// not ended yet. They do within seconds.
	stillInUse = "still in use"
)

// launch starts a cluster and returns when it takes connections to the database
// deskcomm. When it does not, nothing is left running.
func launch(ctx context.Context, c cluster) (*process, error) {
	var child *process
	err := poll(ctx, 10*pollInterval, func() (bool, error) {
		var err error
		child, err = launchOnce(ctx, c)
		if err != nil && strings.Contains(err.Error(), stillInUse) {
			return false, nil
		}
		return err == nil, err
	})
	return child, err
}

func launchOnce(ctx context.Context, c cluster) (*process, error) {
	before := fileSize(c.log)
	child, err := c.start(ctx)
	if err != nil {
		return nil, fmt.Errorf("start %s/postgres: %w", c.bin, err)
	}
	if err := untilReady(ctx, c, child); err != nil {
		err = errors.Join(err, child.stop())
		return nil, fmt.Errorf("start Postgres: %w; the end of %s:\n%s", err, c.log, logTail(c.log, before))
	}
	return child, nil
}

func untilReady(ctx context.Context, c cluster, child *process) error {
	var last error
	err := poll(ctx, pollInterval, func() (bool, error) {
		select {
		case <-child.done:
			return false, fmt.Errorf("it ended at once: %w", child.err)
		default:
		}
		// Asking earlier would leave a FATAL in the log of each start.
		if file, err := readPostmaster(c.dir); err != nil || file.pid != child.pid || !file.ready {
			last = errNotReady
			return false, permanent(err)
		}
		last = ping(ctx, c.url("postgres"))
		return last == nil, permanent(last)
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return createDatabase(ctx, c)
}

// trimLog moves the content of a log larger than limit to <path>.1 and empties
// it, so that the two bound the space used. The file itself stays, since Postgres
// has it open for appending; a line written in between is lost.
func trimLog(path string, limit int64) error {
	if fileSize(path) <= limit {
		return nil
	}
	log, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // nothing is buffered
	old, err := os.OpenFile(path+".1", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(old, log)
	if err := errors.Join(err, old.Close()); err != nil {
		return err
	}
	return log.Truncate(0)
}

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// logTail returns the last lines that were added after offset.
func logTail(path string, offset int64) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close() //nolint:errcheck // only read
	size := fileSize(path)
	if offset > size {
		offset = 0 // it was put aside
	}
	raw, _ := io.ReadAll(io.NewSectionReader(file, max(offset, size-maxTail), maxTail)) // a part is better than none
	return lastLines(string(raw))
}

// lastLines returns at most the last 15 lines of a text.
func lastLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}
