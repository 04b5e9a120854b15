package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/term"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

// passwordFlag is shared by the commands that give a user a password.
type passwordFlag struct {
	PasswordFile string `placeholder:"FILE" help:"File with the password; - reads standard input. Asked for on a terminal when left out."`
}

// passwordHash reads the new password and returns what is kept of it.
func (p passwordFlag) passwordHash(ctx context.Context, con console) (string, error) {
	text, err := p.read(con)
	if err != nil {
		return "", err
	}
	return db.HashPassword(ctx, strings.TrimRight(string(text), "\r\n"))
}

// read reads the password from where the flag says, else asks for it without
// showing it.
func (p passwordFlag) read(con console) ([]byte, error) {
	if p.PasswordFile == "" {
		terminal, ok := con.in.(*os.File)
		if !ok || !term.IsTerminal(int(terminal.Fd())) {
			return nil, bus.Invalid("--password-file", "is required when standard input is no terminal")
		}
		return con.askTwice(terminal)
	}
	arg := "@" + p.PasswordFile
	if p.PasswordFile == "-" {
		arg = "-"
	}
	text, err := con.readArgument(arg)
	if err != nil {
		return nil, fmt.Errorf("read --password-file: %w", err)
	}
	return text, nil
}

// askTwice asks on a terminal for a password that is not shown: a slip of the
// finger would lock its owner out.
func (con console) askTwice(terminal *os.File) ([]byte, error) {
	ask := func(prompt string) ([]byte, error) {
		if _, err := fmt.Fprint(con.err, prompt); err != nil {
			return nil, err
		}
		text, err := term.ReadPassword(int(terminal.Fd()))
		fmt.Fprintln(con.err) //nolint:errcheck // ends the line that was not shown
		return text, err
	}
	first, err := ask("Password (8 to 200 characters): ")
	if err != nil {
		return nil, err
	}
	second, err := ask("The same again: ")
	if err == nil && !bytes.Equal(first, second) {
		err = bus.Invalid("password", "must be typed the same twice")
	}
	return first, err
}

type userCmd struct {
	Create      userCreateCmd      `cmd:"" help:"Give a person a place in an organization, and a password when they are new."`
	List        userListCmd        `cmd:"" help:"List people and their roles."`
	SetRole     userSetRoleCmd     `cmd:"" help:"Change what a person may do in an organization."`
	SetPassword userSetPasswordCmd `cmd:"" help:"Give a person another password; all their sessions end."`
	Revoke      userRevokeCmd      `cmd:"" help:"End a person's place in an organization."`
}

// emailFlag names the person a command is about.
type emailFlag struct {
	Email string `required:"" placeholder:"EMAIL" help:"E-mail address of the person."`
}

// roleFlag is what the person may do.
type roleFlag struct {
	Role db.Role `required:"" enum:"viewer,agent,manager,admin" placeholder:"ROLE" help:"What the person may do: ${enum}."`
}

// What the commands say when there is nobody to act on.
const (
	noSuchOrganization = "no such organization; see deskcomm organization list"
	noSuchMember       = "no such person in the organization; see deskcomm user list"
	noSuchUser         = "no such person; see deskcomm user list"
)

type userCreateCmd struct {
	orgFlag
	emailFlag
	roleFlag
	Name string `help:"Name of a new person."`
	passwordFlag
	jsonFlag
}

// Run gives a person a place in an organization. The password of one who exists
// stays and is not asked for.
func (u userCreateCmd) Run(ctx context.Context, con console, c *Common) error {
	return c.withDB(ctx, con, func(store *db.DB) error {
		member := db.NewMember{OrgID: u.Organization, Email: u.Email, Role: u.Role, Name: u.Name}
		exists, err := store.HasOrganization(ctx, u.Organization)
		if err != nil {
			return err
		}
		if !exists {
			return &refusal{says: noSuchOrganization, err: bus.ErrNotFound}
		}
		_, err = store.Credentials(ctx, u.Email)
		if errors.Is(err, bus.ErrNotFound) {
			member.PasswordHash, err = u.passwordHash(ctx, con)
		}
		if err != nil {
			return err
		}
		id, created, err := store.AddMember(ctx, cliActor(), member)
		if err != nil {
			return inWords(err, noSuchOrganization)
		}
		note := "The person existed already; the password is unchanged."
		if created {
			note = "The person is new."
		}
		return con.print(u.JSON, map[string]any{"user_id": id, "organization_id": u.Organization, "role": u.Role, "created": created}, nil,
			[][]string{{"user_id", id.String()}, {"", note}})
	})
}

type userListCmd struct {
	Organization uuid.NullUUID `placeholder:"ID" help:"Only people of this organization."`
	Limit        int           `default:"50" help:"At most this many."`
	jsonFlag
}

// memberLine is a person's place as the command line shows it.
type memberLine struct {
	UserID       uuid.UUID        `json:"user_id"`
	Email        string           `json:"email"`
	Name         string           `json:"name"`
	OrgID        uuid.NullUUID    `json:"organization_id"`
	Organization string           `json:"organization"`
	Role         db.Role          `json:"role"`
	Platform     db.PlatformScope `json:"platform"`
}

// Run lists people.
func (u userListCmd) Run(ctx context.Context, con console, c *Common) error {
	return c.withDB(ctx, con, func(store *db.DB) error {
		members, err := store.Members(ctx, db.MemberFilter{OrgID: u.Organization, Limit: u.Limit})
		if err != nil {
			return err
		}
		list, rows := make([]memberLine, len(members)), make([][]string, len(members))
		for i, m := range members {
			list[i] = memberLine{m.UserID, m.Email, m.Name, m.OrgID, m.Organization, m.Role, m.Platform}
			rows[i] = []string{m.Email, orDash(string(m.Role)), orDash(m.Organization), orDash(string(m.Platform)), m.UserID.String()}
		}
		return con.print(u.JSON, map[string]any{"items": list}, []string{"EMAIL", "ROLE", "ORGANIZATION", "PLATFORM", "USER ID"}, rows)
	})
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

type userSetRoleCmd struct {
	orgFlag
	emailFlag
	roleFlag
	jsonFlag
}

// Run changes a role.
func (u userSetRoleCmd) Run(ctx context.Context, con console, c *Common) error {
	return c.withDB(ctx, con, func(store *db.DB) error {
		id, err := store.SetRole(ctx, cliActor(), u.Organization, u.Email, u.Role)
		if err != nil {
			return inWords(err, noSuchMember)
		}
		return con.print(u.JSON, map[string]any{"user_id": id, "organization_id": u.Organization, "role": u.Role}, nil,
			[][]string{{"user_id", id.String()}, {"role", string(u.Role)}})
	})
}

type userSetPasswordCmd struct {
	emailFlag
	passwordFlag
	jsonFlag
}

// Run sets a password.
func (u userSetPasswordCmd) Run(ctx context.Context, con console, c *Common) error {
	return c.withDB(ctx, con, func(store *db.DB) error {
		if _, err := store.Credentials(ctx, u.Email); err != nil {
			return inWords(err, noSuchUser)
		}
		hash, err := u.passwordHash(ctx, con)
		if err != nil {
			return err
		}
		id, err := store.SetPassword(ctx, cliActor(), u.Email, hash)
		if err != nil {
			return inWords(err, noSuchUser)
		}
		return con.print(u.JSON, map[string]any{"user_id": id}, nil,
			[][]string{{"user_id", id.String()}, {"", "All sessions of the person have ended."}})
	})
}

type userRevokeCmd struct {
	orgFlag
	emailFlag
	jsonFlag
}

// Run ends a membership.
func (u userRevokeCmd) Run(ctx context.Context, con console, c *Common) error {
	return c.withDB(ctx, con, func(store *db.DB) error {
		id, err := store.RevokeMember(ctx, cliActor(), u.Organization, u.Email)
		if err != nil {
			return inWords(err, noSuchMember)
		}
		return con.print(u.JSON, map[string]any{"user_id": id, "organization_id": u.Organization}, nil, [][]string{{"user_id", id.String()}})
	})
}
