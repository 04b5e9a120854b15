package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const postmasterFile = "postmaster.pid"

// noSuchPID is above every system's limit for process ids.
const noSuchPID = 1<<31 - 1

// postmaster is what Postgres writes about itself into its cluster.
type postmaster struct {
	pid    int
	socket string // folder of the socket; empty while starting
	ready  bool   // says that it takes connections
}

// readPostmaster reads postmaster.pid: the process id in line 1, the socket's
// folder in line 5, the state in line 8. Without that file the server is not
// ready.
func readPostmaster(cluster string) (postmaster, error) {
	raw, err := os.ReadFile(filepath.Join(cluster, postmasterFile))
	if errors.Is(err, fs.ErrNotExist) {
		return postmaster{}, errNotReady
	}
	if err != nil {
		return postmaster{}, err
	}
	lines := strings.Split(string(raw), "\n")
	pid, err := strconv.Atoi(lines[0])
	if err != nil || pid <= 0 {
		return postmaster{}, errNotReady
	}
	lines = append(lines, make([]string, 8)...) // a starting server has written less
	return postmaster{pid: pid, socket: lines[4], ready: strings.TrimSpace(lines[7]) == "ready"}, nil
}

// stopLeftover ends a server that an earlier owner left and waits for it. The
// lock is held, so it can be nobody else's.
func stopLeftover(ctx context.Context, cluster string, logger *slog.Logger) error {
	p, err := readPostmaster(cluster)
	if errors.Is(err, errNotReady) {
		return nil
	}
	if err != nil {
		return err
	}
	if !isPostmaster(p.pid, cluster) {
		return retire(cluster, p.pid)
	}
	logger.InfoContext(ctx, "ending the postgres of an earlier owner", "pid", p.pid)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		_ = syscall.Kill(p.pid, signal) // it may have ended by itself
		if err = untilGone(ctx, p.pid, cluster); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return fmt.Errorf("process %d does not end: %w", p.pid, err)
}

func untilGone(ctx context.Context, pid int, cluster string) error {
	ctx, cancel := context.WithTimeout(ctx, fastPatience)
	defer cancel()
	return poll(ctx, pollInterval, func() (bool, error) { return !isPostmaster(pid, cluster), nil })
}

// retire makes a stale postmaster.pid harmless when a stranger has its process
// id now, as it happens in a container, where ids start anew: Postgres would
// refuse to start. The rest of the file stays, because Postgres finds in it the
// shared memory that children of a killed postmaster may still use.
func retire(cluster string, pid int) error {
	if !processExists(pid) {
		return nil
	}
	path := filepath.Join(cluster, postmasterFile)
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(raw), "\n")
	if err := writeFile(path, strconv.Itoa(noSuchPID)+"\n"+rest); err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("read the owner of " + path)
	}
	return os.Lchown(path, int(stat.Uid), int(stat.Gid))
}

// processExists reports whether Postgres would take pid for a living server.
func processExists(pid int) bool { return syscall.Kill(pid, 0) == nil }
