package localpg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
)

// watchScript waits on an inherited pipe. A line says that the child has ended
// by itself; the end of the pipe without one says that we died.
const watchScript = `read -r line <&3 && exit 0; kill -INT "$1"`

// watch gives a started child a fast shutdown when this process dies, on systems
// whose kernel does not. The caller must call release once the child has ended.
func watch(cmd *exec.Cmd) (release func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", cmd.Process.Pid, err)
	}
	defer r.Close() //nolint:errcheck // the watcher has its own
	watcher := cleanCommand(context.Background(), account{cred: cmd.SysProcAttr.Credential},
		"/bin/sh", "-c", watchScript, "sh", strconv.Itoa(cmd.Process.Pid))
	watcher.ExtraFiles = []*os.File{r} // its descriptor 3; ours of the other end is closed on exec
	if err := watcher.Start(); err != nil {
		return nil, fmt.Errorf("watch process %d: %w", cmd.Process.Pid, errors.Join(err, w.Close()))
	}
	return func() {
		_, _ = w.WriteString("ended\n") // a watcher that is gone has nothing to be told
		_ = w.Close()
		_ = watcher.Wait()
	}, nil
}
