package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

// jsonFlag is shared by the commands that print data.
type jsonFlag struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// orgFlag names the organization a command acts for.
type orgFlag struct {
	Organization uuid.UUID `required:"" placeholder:"ID" help:"Id of the organization."`
}

// print writes v as JSON, or lines of columns for people.
func (con console) print(asJSON bool, v any, header []string, rows [][]string) error {
	if asJSON {
		enc := json.NewEncoder(con.out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(v)
	}
	w := tabwriter.NewWriter(con.out, 0, 0, 2, ' ', 0)
	if header != nil {
		rows = slices.Insert(rows, 0, header)
	}
	for _, row := range rows {
		if _, err := fmt.Fprintln(w, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return w.Flush()
}

// cliActor names the person at the keyboard in audit rows.
func cliActor() db.Actor {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	return db.Actor{Kind: db.ActorCLI, Name: name}
}

// forOrg runs fn on behalf of an organization that exists.
func (c Common) forOrg(ctx context.Context, con console, org uuid.UUID, fn func(t *db.OrgTx) error) error {
	return c.withDB(ctx, con, func(store *db.DB) error {
		exists, err := store.HasOrganization(ctx, org)
		if err != nil {
			return err
		}
		if !exists {
			return &refusal{says: "--organization: must be an organization that exists; see deskcomm organization list", err: bus.ErrNotFound}
		}
		return store.InOrg(ctx, org, cliActor(), fn)
	})
}

// readArgument returns what an argument stands for: "-" is standard input,
// "@file" a file, anything else itself.
func (con console) readArgument(arg string) ([]byte, error) {
	switch {
	case arg == "-":
		return readAll(con.in)
	case strings.HasPrefix(arg, "@"):
		return os.ReadFile(arg[1:]) //nolint:gosec // the caller's own file
	default:
		return []byte(arg), nil
	}
}

func readAll(r io.Reader) ([]byte, error) { return io.ReadAll(io.LimitReader(r, 16<<20)) }

type versionCmd struct{}

// Run prints the version.
func (versionCmd) Run(con console) error {
	_, err := fmt.Fprintln(con.out, "deskcomm", con.version)
	return err
}

type healthcheckCmd struct {
	Addr string `env:"DESKCOMM_ADDR" default:"127.0.0.1:8080" help:"Address the server listens on."`
}

// Run asks the server on this machine whether it is ready.
func (c healthcheckCmd) Run(ctx context.Context) error {
	host, port, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return bus.Invalid("DESKCOMM_ADDR", "must be host:port")
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	client := &http.Client{Transport: &http.Transport{Proxy: nil}}
	res, err := client.Do(req)
	if err != nil {
		return errors.New("the server does not answer")
	}
	defer res.Body.Close() //nolint:errcheck // only the status matters
	if res.StatusCode != http.StatusOK {
		return errors.New("the server is not ready: status " + strconv.Itoa(res.StatusCode))
	}
	return nil
}

type migrateCmd struct {
	Up     migrateUpCmd     `cmd:"" help:"Apply what is pending."`
	Down   migrateDownCmd   `cmd:"" help:"Take the newest file back. Its data is lost."`
	Status migrateStatusCmd `cmd:"" help:"List the files and whether they are applied."`
}

type (
	migrateUpCmd     struct{}
	migrateDownCmd   struct{}
	migrateStatusCmd struct{ jsonFlag }
)

func (c Common) withMigrator(ctx context.Context, con console, fn func(m *db.Migrator) error) (err error) {
	where, err := c.locate(ctx, c.quiet().logger(con.err))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, where.close()) }()
	m, err := db.NewMigrator(where.direct)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	return fn(m)
}

// Run applies pending files.
func (migrateUpCmd) Run(ctx context.Context, con console, c *Common) error {
	return c.withMigrator(ctx, con, func(m *db.Migrator) error {
		n, err := m.Up(ctx)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(con.out, "applied:", n)
		return err
	})
}

// Run takes one file back.
func (migrateDownCmd) Run(ctx context.Context, con console, c *Common) error {
	return c.withMigrator(ctx, con, func(m *db.Migrator) error {
		version, err := m.Down(ctx)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(con.out, "taken back:", version)
		return err
	})
}

// Run lists the files.
func (s migrateStatusCmd) Run(ctx context.Context, con console, c *Common) error {
	return c.withMigrator(ctx, con, func(m *db.Migrator) error {
		list, err := m.Status(ctx)
		if err != nil {
			return err
		}
		rows := make([][]string, len(list))
		for i, f := range list {
			rows[i] = []string{strconv.FormatInt(f.Version, 10), f.File, strconv.FormatBool(f.Applied)}
		}
		return con.print(s.JSON, map[string]any{"items": list}, []string{"VERSION", "FILE", "APPLIED"}, rows)
	})
}
