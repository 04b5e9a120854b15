package app

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/term"
)

// Common are the settings of every command.
type Common struct {
	DatabaseURL       string `env:"DATABASE_URL" secret:"" placeholder:"URL" help:"Postgres to use; empty runs a private one in the data directory."`
	DatabaseDirectURL string `env:"DATABASE_DIRECT_URL" secret:"" placeholder:"URL" help:"The same database without a transaction pooler between, for migrations."`
	DataDir           string `env:"DESKCOMM_DATA_DIR" default:"./data" help:"Private Postgres, generated secrets, local storage."`
	LogLevel          string `env:"DESKCOMM_LOG_LEVEL" enum:"debug,info,warn,error" default:"info" help:"Least level that is logged: ${enum}."`
	LogFormat         string `env:"DESKCOMM_LOG_FORMAT" enum:"auto,text,json" default:"auto" help:"Form of log lines: ${enum}; auto is text on a terminal."`
}

const defaultDataDir = "./data" // the default of DataDir

// ServerConfig are the settings of serve.
type ServerConfig struct {
	Addr              string          `env:"DESKCOMM_ADDR" default:"127.0.0.1:8080" help:"Address the API listens on."`
	PublicURL         string          `env:"DESKCOMM_PUBLIC_URL" name:"public-url" placeholder:"URL" help:"Address people and gateways reach the server at; from the request when empty."`
	TrustedProxies    []string        `env:"DESKCOMM_TRUSTED_PROXIES" sep:"," placeholder:"NETWORK" help:"Addresses or CIDR of reverse proxies whose X-Forwarded-For and X-Forwarded-Proto are believed."`
	MasterKey         string          `env:"DESKCOMM_MASTER_KEY" secret:"" placeholder:"KEY" help:"Encrypts secrets at rest, 32 bytes in base64; generated into the data directory when empty."`
	AllowPrivateHosts []string        `env:"DESKCOMM_ALLOW_PRIVATE_HOSTS" sep:"," placeholder:"HOST" help:"Private hosts, host:port or CIDR that webhooks may reach."`
	RetryLadder       []time.Duration `env:"DESKCOMM_RETRY_LADDER" sep:"," placeholder:"WAIT" help:"Waits that replace every retry ladder, for laboratories."`
	Lease             time.Duration   `env:"DESKCOMM_LEASE" default:"30s" help:"How long a claimed delivery is held before another process may take it."`
	Roles             []string        `env:"DESKCOMM_ROLES" sep:"," enum:"api,relay,worker,cron" default:"api,relay,worker,cron" help:"What this process does: ${enum}."`
}

// check finds every fault that the flag parser cannot.
func (c ServerConfig) check() error {
	var faults []error
	if c.Lease < time.Second || c.Lease > time.Hour {
		faults = append(faults, errors.New("DESKCOMM_LEASE: must be between 1s and 1h"))
	}
	for i, wait := range c.RetryLadder {
		if wait < 0 || wait > 7*24*time.Hour {
			faults = append(faults, fmt.Errorf("DESKCOMM_RETRY_LADDER: wait %d must be between 0s and 168h", i+1))
		}
	}
	if c.MasterKey != "" {
		if _, err := decodeKey(c.MasterKey); err != nil {
			faults = append(faults, fmt.Errorf("DESKCOMM_MASTER_KEY: %w", err))
		}
	}
	if c.PublicURL != "" && !strings.HasPrefix(c.PublicURL, "http://") && !strings.HasPrefix(c.PublicURL, "https://") {
		faults = append(faults, errors.New("DESKCOMM_PUBLIC_URL: must begin with http:// or https://"))
	}
	if _, err := c.proxies(); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// proxies reads the networks of TrustedProxies.
func (c ServerConfig) proxies() ([]netip.Prefix, error) {
	list := make([]netip.Prefix, len(c.TrustedProxies))
	for i, text := range c.TrustedProxies {
		prefix, err := netip.ParsePrefix(text)
		if addr, bare := netip.ParseAddr(text); bare == nil {
			prefix, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil {
			return nil, fmt.Errorf("DESKCOMM_TRUSTED_PROXIES: entry %d must be an IP address or a network such as 10.0.0.0/8", i+1)
		}
		list[i] = prefix
	}
	return list, nil
}

func (c ServerConfig) has(role string) bool { return slices.Contains(c.Roles, role) }

// quiet leaves out what only the log of a server needs.
func (c Common) quiet() Common {
	if c.LogLevel == "info" {
		c.LogLevel = "warn"
	}
	return c
}

// logger writes to w in the configured form.
func (c Common) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		level = slog.LevelInfo
	}
	opts := &slog.HandlerOptions{Level: level}
	format := c.LogFormat
	if format == "auto" {
		format = "json"
		if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			format = "text"
		}
	}
	if format == "text" {
		return slog.New(newSeldom(slog.NewTextHandler(w, opts)))
	}
	return slog.New(newSeldom(slog.NewJSONHandler(w, opts)))
}

// secretFiles lets each secret also come from the file that its variable with
// _FILE appended names.
type secretFiles struct{}

func (secretFiles) Validate(*kong.Application) error { return nil }

func (secretFiles) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if !isSecret(flag) {
		return nil, nil //nolint:nilnil // kong's form of "not from here"
	}
	for _, name := range flag.Envs {
		path := os.Getenv(name + "_FILE")
		if path == "" {
			continue
		}
		if os.Getenv(name) != "" {
			return nil, fmt.Errorf("%s and %s_FILE are both set", name, name)
		}
		text, err := os.ReadFile(filepath.Clean(path))
		if err != nil {
			return nil, fmt.Errorf("%s_FILE: %w", name, err)
		}
		return strings.TrimSpace(string(text)), nil
	}
	return nil, nil //nolint:nilnil // kong's form of "not from here"
}

func isSecret(flag *kong.Flag) bool { return flag.Tag != nil && flag.Tag.Has("secret") }

// checkEnvironment refuses a DESKCOMM_ variable that nothing reads: a typing
// mistake in a setting must not pass in silence.
func checkEnvironment(root *kong.Node) error {
	known := knownVariables(root)
	var faults []error
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, "DESKCOMM_") || slices.Contains(known, name) {
			continue
		}
		nearest := slices.MinFunc(known, func(a, b string) int {
			return cmp.Compare(editDistance(name, a), editDistance(name, b))
		})
		faults = append(faults, fmt.Errorf("%s is not a setting of deskcomm; did you mean %s?", name, nearest))
	}
	return errors.Join(faults...)
}

// knownVariables lists the variables that some command reads.
func knownVariables(node *kong.Node) []string {
	var names []string
	for _, flag := range node.Flags {
		for _, name := range flag.Envs {
			names = append(names, name)
			if isSecret(flag) {
				names = append(names, name+"_FILE")
			}
		}
	}
	for _, child := range node.Children {
		names = append(names, knownVariables(child)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// editDistance is the number of letters to add, drop or change to get from a to
// b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
