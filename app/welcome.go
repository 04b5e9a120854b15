package app

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// welcome prints where the server is and, as long as nobody has set it up, the
// link and the command that do.
func (s *server) welcome(ctx context.Context, out io.Writer, dataDir string) error {
	token, err := s.store.OpenSetup(ctx)
	if err != nil {
		return err
	}
	if token == "" {
		return nil
	}
	base := cmp.Or(strings.TrimSuffix(s.config.PublicURL, "/"), "http://"+reachable(s.listener.Addr()))
	_, err = io.WriteString(out, box([]string{
		"deskcomm " + s.version + " runs at " + base,
		"",
		"Nobody has set it up yet. Within 15 minutes open",
		base + "/admin/setup?token=" + token,
		"",
		"or at any time run",
		s.setupCommand(dataDir),
		"",
		"A new link is printed at every start until then.",
	}))
	return err
}

// setupCommand is what to type, wherever one stands.
func (s *server) setupCommand(dataDir string) string {
	program := "deskcomm"
	if os.Getpid() == 1 { // in a container, whose paths mean nothing outside
		program = "docker compose exec deskcomm deskcomm"
	} else if path, err := os.Executable(); err == nil {
		program = fromHere(path)
	}
	if s.where.server != nil && dataDir != defaultDataDir {
		program += " --data-dir " + absolute(dataDir)
	}
	return program + " setup --organization NAME --email EMAIL"
}

// fromHere shortens a path below the working directory, where the reader stands.
func fromHere(path string) string {
	here, err := os.Getwd()
	if err != nil {
		return path
	}
	short, err := filepath.Rel(here, path)
	if err != nil || strings.HasPrefix(short, "..") || !strings.ContainsRune(short, filepath.Separator) {
		return path
	}
	return short
}

// reachable replaces an address that means "everywhere" by one to visit.
func reachable(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return addr.String()
	}
	return fmt.Sprintf("localhost:%d", tcp.Port)
}

// box frames lines of text.
func box(lines []string) string {
	width := 0
	for _, l := range lines {
		width = max(width, utf8.RuneCountInString(l))
	}
	var b strings.Builder
	edge := strings.Repeat("─", width+2)
	fmt.Fprintf(&b, "┌%s┐\n", edge)
	for _, l := range lines {
		fmt.Fprintf(&b, "│ %s%s │\n", l, strings.Repeat(" ", width-utf8.RuneCountInString(l)))
	}
	fmt.Fprintf(&b, "└%s┘\n", edge)
	return b.String()
}
