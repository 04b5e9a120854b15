// Package app is the composition root: it reads the configuration, builds the
// stores, handlers and loops, and runs the program's commands.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

// Exit codes of the program.
const (
	exitDone    = 0
	exitFailed  = 1
	exitUsage   = 2 // wrong flags, wrong variables, input that breaks a rule
	exitRefused = 3 // the state does not allow it: set up already, not found, conflict
)

// cli is every command, flag and variable of the program.
type cli struct {
	Serve        serveCmd        `cmd:"" help:"Run the server: API, receivers, relay, handlers, jobs."`
	Setup        setupCmd        `cmd:"" help:"Create the first organization, its admin and an API token."`
	Organization organizationCmd `cmd:"" help:"Create, list, suspend and reactivate organizations."`
	User         userCmd         `cmd:"" help:"Create and list people who log in; set their roles and passwords."`
	Token        tokenCmd        `cmd:"" help:"Create, list and revoke API tokens."`
	Migrate      migrateCmd      `cmd:"" help:"Change the database schema."`
	Emit         emitCmd         `cmd:"" help:"Emit one event."`
	Enqueue      enqueueCmd      `cmd:"" help:"Enqueue a job: a command for now or for a day to come."`
	Jobs         jobsCmd         `cmd:"" help:"Cancel jobs."`
	Schedules    schedulesCmd    `cmd:"" help:"Create, list, change, pause, resume and delete stored schedules."`
	Events       eventsCmd       `cmd:"" help:"List and show events."`
	DLQ          dlqCmd          `cmd:"" name:"dlq" help:"List, replay and discard dead deliveries."`
	Lanes        lanesCmd        `cmd:"" help:"List and steer what is delivered in order."`
	Consumers    consumersCmd    `cmd:"" help:"List, pause and resume consumers; give them events of the past."`
	Webhooks     webhooksCmd     `cmd:"" help:"Try out webhooks."`
	Bench        benchCmd        `cmd:"" help:"Measure this installation, in a database of its own."`
	Secrets      secretsCmd      `cmd:"" help:"Make the secrets that containers share."`
	Healthcheck  healthcheckCmd  `cmd:"" help:"Exit 0 when the running server is ready."`
	Version      versionCmd      `cmd:"" help:"Print the version."`

	Common
}

// console is where a command reads and writes.
type console struct {
	in      io.Reader
	out     io.Writer
	err     io.Writer
	version string
}

// errNoData is the refusal to start a second, empty database by accident.
var errNoData = errors.New("there is no deskcomm data directory here; run deskcomm serve or deskcomm setup first, or set DATABASE_URL")

// refusal is a refusal by state in the words of the command.
type refusal struct {
	says string
	err  error
}

func (r *refusal) Error() string { return r.says }
func (r *refusal) Unwrap() error { return r.err }

// inWords replaces what a store says of something that is not there.
func inWords(err error, notFound string) error {
	if errors.Is(err, bus.ErrNotFound) {
		return &refusal{says: notFound, err: err}
	}
	return err
}

// idMapper reads ids and says what one is.
type idMapper struct{}

func (idMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("id", &text); err != nil {
		return errors.New("needs an id")
	}
	id, err := uuid.Parse(text)
	if err != nil {
		return errors.New("must be an id, a UUID")
	}
	target.Set(reflect.ValueOf(id))
	return nil
}

// Main runs the command that args name until it ends or ctx does, and returns
// the exit code.
func Main(ctx context.Context, version string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	c := &cli{}
	con := console{in: stdin, out: stdout, err: stderr, version: version}
	exit := -1
	switch {
	case len(args) == 0 || args[0] == "help":
		args = []string{"--help"}
	case args[0] == "--version":
		args = []string{"version"}
	}
	parser, err := kong.New(c,
		kong.Name("deskcomm"),
		kong.Description("The event platform of a WhatsApp CRM: one binary, one Postgres."),
		kong.Writers(stdout, stderr),
		kong.Vars{"scopes": strings.Join(db.Scopes(), ", ")},
		kong.Exit(func(code int) { exit = code }),
		kong.Resolvers(secretFiles{}),
		kong.TypeMapper(reflect.TypeFor[uuid.UUID](), idMapper{}),
		kong.Bind(con, &c.Common),
		kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if err != nil {
		return con.fail(err, exitFailed)
	}
	if err := checkEnvironment(parser.Model.Node); err != nil {
		return con.fail(err, exitUsage)
	}
	command, err := parser.Parse(args)
	if exit >= 0 { // --help has printed and asked to end
		return exit
	}
	if err != nil {
		return con.fail(err, exitUsage)
	}
	if err := command.Run(); err != nil {
		return con.fail(err, exitCode(err))
	}
	return exitDone
}

// fail tells a person what went wrong and returns code.
func (con console) fail(err error, code int) int {
	fmt.Fprintln(con.err, "deskcomm:", plainly(err)) //nolint:errcheck // there is nobody left to tell
	return code
}

// plainly replaces what the driver says, over several lines, of a server that does
// not let us in.
func plainly(err error) string {
	switch {
	case db.RefusedLogin(err):
		return "DATABASE_URL: Postgres does not accept this user and password. A database keeps the password it was made with: " +
			"either give it this one (alter role ... password ...), or put the old one into DATABASE_URL or the file of DATABASE_URL_FILE. " +
			"With Docker see docs/OPERATIONS.md, \"Password in the volume differs\""
	case db.RefusedName(err):
		return "DATABASE_URL: Postgres has no database of this name; make it (create database ...) or correct the name"
	default:
		return err.Error()
	}
}

func exitCode(err error) int {
	if _, ok := errors.AsType[*bus.FieldError](err); ok {
		return exitUsage
	}
	if _, ok := errors.AsType[*db.BlockedError](err); ok {
		return exitRefused
	}
	for _, refusal := range []error{bus.ErrConflict, bus.ErrNotFound, errNoData} {
		if errors.Is(err, refusal) {
			return exitRefused
		}
	}
	return exitFailed
}
