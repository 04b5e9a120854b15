// Command withpg runs a command with TEST_DATABASE_URL set to a private Postgres
// that is thrown away afterwards:
//
//	withpg go test ./...
//
// With -durable before the command it writes to the disk as a real one does, for
// measurements. When TEST_DATABASE_URL is set already it only runs the command.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/deskcomm/deskcomm/app/localpg"
)

const urlVariable = "TEST_DATABASE_URL"

// usageCode is the exit code for a missing command, as in deskcomm itself.
const usageCode = 2

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "withpg:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// run returns the exit code of the command, after Postgres has ended.
func run(args []string) (code int, err error) {
	durable := len(args) > 0 && args[0] == "-durable"
	if durable {
		args = args[1:]
	}
	if len(args) == 0 {
		return usageCode, errors.New("no command given")
	}
	// A Ctrl-C reaches the command too, which then ends: Postgres has to stay
	// until it has. Other signals are passed on.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)

	env := os.Environ()
	if os.Getenv(urlVariable) == "" {
		url, stop, startErr := startPostgres(durable)
		if startErr != nil {
			return 0, startErr
		}
		defer func() { err = errors.Join(err, stop()) }()
		env = append(env, urlVariable+"="+url)
	}
	return runCommand(args, env, signals)
}

// startPostgres starts a server in a temporary folder, which stop removes.
func startPostgres(durable bool) (url string, stop func() error, err error) {
	dir, err := os.MkdirTemp("", "deskcomm-test-")
	if err != nil {
		return "", nil, err
	}
	remove := func() error { return os.RemoveAll(dir) }
	if err := os.Chmod(dir, 0o755); err != nil { // under root Postgres is another user
		return "", nil, errors.Join(err, remove())
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	server, err := localpg.Open(context.Background(), localpg.Options{DataDir: filepath.Join(dir, "data"), Logger: logger, Durable: durable})
	if err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return server.URL(), func() error { return errors.Join(server.Close(), remove()) }, nil
}

func runCommand(args, env []string, signals <-chan os.Signal) (int, error) {
	cmd := exec.CommandContext(context.Background(), args[0], args[1:]...)
	cmd.Env = env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			if s != os.Interrupt {
				_ = cmd.Process.Signal(s) // it may have ended by itself
			}
		case err := <-ended:
			return exitCode(err)
		}
	}
}

// exitCode gives the command's own code, or the shell's 128+n for a signal.
func exitCode(err error) (int, error) {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return 0, err
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}
