package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/app/localpg"
	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

type setupCmd struct {
	Organization string `required:"" placeholder:"NAME" help:"Name of the first organization."`
	Email        string `required:"" placeholder:"EMAIL" help:"E-mail address of its admin."`
	passwordFlag
	jsonFlag
}

// Run creates the first organization, its admin and an API token with every
// scope. It is the only command beside serve that makes a database.
func (s setupCmd) Run(ctx context.Context, con console, c *Common) (err error) {
	hash, err := s.passwordHash(ctx, con)
	if err != nil {
		return err
	}
	logger := c.quiet().logger(con.err)
	if c.DatabaseURL == "" && !localpg.Exists(c.DataDir) {
		fmt.Fprintln(con.err, "making a new installation in", absolute(c.DataDir)) //nolint:errcheck // a courtesy
	}
	where, err := c.provide(ctx, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, where.close()) }()
	if err := where.migrate(ctx, logger); err != nil {
		return err
	}
	store, err := db.Open(ctx, where.url, db.Options{MaxConns: 2})
	if err != nil {
		return err
	}
	defer store.Close()
	done, err := store.SetUp(ctx, db.NewInstallation{
		Organization: s.Organization, Email: s.Email, PasswordHash: hash, Scopes: db.Scopes(),
	})
	if errors.Is(err, bus.ErrConflict) {
		return &refusal{says: "already set up; deskcomm token create makes another token, deskcomm organization list shows the ids", err: err}
	}
	if err != nil {
		return err
	}
	return con.print(s.JSON, done, nil, [][]string{
		{"organization_id", done.OrganizationID.String()},
		{"user_id", done.UserID.String()},
		{"api_token", done.APIToken},
		{"", "The token has every scope and is not shown again."},
	})
}

// absolute names a directory for people, wherever they stand.
func absolute(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

type organizationCmd struct {
	Create     organizationCreateCmd     `cmd:"" help:"Create an organization."`
	List       organizationListCmd       `cmd:"" help:"List all organizations."`
	Suspend    organizationSuspendCmd    `cmd:"" help:"Stop handling an organization's events; they are kept."`
	Reactivate organizationReactivateCmd `cmd:"" help:"Handle a suspended organization's events again."`
}

type organizationCreateCmd struct {
	Name string `arg:"" help:"Name of the organization."`
	jsonFlag
}

// Run creates an organization.
func (o organizationCreateCmd) Run(ctx context.Context, con console, c *Common) error {
	return c.withDB(ctx, con, func(store *db.DB) error {
		org, err := store.CreateOrganization(ctx, cliActor(), o.Name)
		if err != nil {
			return err
		}
		return con.printOrganizations(o.JSON, org, org)
	})
}

type organizationListCmd struct{ jsonFlag }

// Run lists organizations.
func (o organizationListCmd) Run(ctx context.Context, con console, c *Common) error {
	return c.withDB(ctx, con, func(store *db.DB) error {
		list, err := store.Organizations(ctx)
		if err != nil {
			return err
		}
		return con.printOrganizations(o.JSON, map[string]any{"items": list}, list...)
	})
}

type organizationSuspendCmd struct {
	ID     uuid.UUID `arg:"" help:"Id of the organization."`
	Reason string    `help:"Why, for the audit log."`
	jsonFlag
}

// Run suspends an organization.
func (o organizationSuspendCmd) Run(ctx context.Context, con console, c *Common) error {
	return c.withDB(ctx, con, func(store *db.DB) error {
		org, err := store.SuspendOrganization(ctx, cliActor(), o.ID, o.Reason)
		if err != nil {
			return inWords(err, "no such organization; see deskcomm organization list")
		}
		return con.printOrganizations(o.JSON, org, org)
	})
}

type organizationReactivateCmd struct {
	ID uuid.UUID `arg:"" help:"Id of the organization."`
	jsonFlag
}

// Run reactivates an organization.
func (o organizationReactivateCmd) Run(ctx context.Context, con console, c *Common) error {
	return c.withDB(ctx, con, func(store *db.DB) error {
		org, err := store.ReactivateOrganization(ctx, cliActor(), o.ID)
		if err != nil {
			return inWords(err, "no such organization; see deskcomm organization list")
		}
		return con.printOrganizations(o.JSON, org, org)
	})
}

func (con console) printOrganizations(asJSON bool, v any, orgs ...db.Organization) error {
	rows := make([][]string, len(orgs))
	for i, org := range orgs {
		rows[i] = []string{org.ID.String(), org.Name, org.Status, org.CreatedAt.Format(time.RFC3339)}
	}
	return con.print(asJSON, v, []string{"ID", "NAME", "STATUS", "CREATED"}, rows)
}

type tokenCmd struct {
	Create tokenCreateCmd `cmd:"" help:"Create an API token; it is shown once."`
	List   tokenListCmd   `cmd:"" help:"List an organization's tokens."`
	Revoke tokenRevokeCmd `cmd:"" help:"End a token."`
}

type tokenCreateCmd struct {
	orgFlag
	Name      string   `required:"" help:"What the token is for."`
	Scope     []string `required:"" sep:"none" placeholder:"SCOPE" help:"What the token may do; give it once for each scope: ${scopes}."`
	ExpiresIn string   `placeholder:"90d" help:"When the token ends: a number and d, h or m. Never when empty."`
	jsonFlag
}

// Run creates a token.
func (k tokenCreateCmd) Run(ctx context.Context, con console, c *Common) error {
	expires, err := bus.ParseSpan("expires_in", k.ExpiresIn)
	if err != nil {
		return err
	}
	var token db.Token
	var secret string
	err = c.forOrg(ctx, con, k.Organization, func(t *db.OrgTx) (err error) {
		token, secret, err = t.CreateToken(ctx, db.NewToken{Name: k.Name, Scopes: k.Scope, ExpiresIn: expires})
		return err
	})
	if err != nil {
		return err
	}
	return con.print(k.JSON, map[string]any{"token_id": token.ID, "token": secret}, nil,
		[][]string{{"token_id", token.ID.String()}, {"token", secret}})
}

type tokenListCmd struct {
	orgFlag
	jsonFlag
}

// tokenLine is a token as the command line shows it.
type tokenLine struct {
	ID        uuid.UUID  `json:"token_id"`
	Name      string     `json:"name"`
	Prefix    string     `json:"prefix"`
	Scopes    []string   `json:"scopes"`
	ExpiresAt *time.Time `json:"expires_at"`
	RevokedAt *time.Time `json:"revoked_at"`
}

// Run lists tokens.
func (k tokenListCmd) Run(ctx context.Context, con console, c *Common) error {
	list := []tokenLine{}
	err := c.forOrg(ctx, con, k.Organization, func(t *db.OrgTx) error {
		page := db.Page{Limit: db.MaxPage}
		for {
			tokens, err := t.Tokens(ctx, page)
			if err != nil {
				return err
			}
			for _, token := range tokens {
				list = append(list, tokenLine{token.ID, token.Name, token.Prefix, token.Scopes, token.ExpiresAt, token.RevokedAt})
			}
			if len(tokens) < page.Limit {
				return nil
			}
			page.After = uuid.NullUUID{UUID: tokens[len(tokens)-1].ID, Valid: true}
		}
	})
	if err != nil {
		return err
	}
	rows := make([][]string, len(list))
	for i, l := range list {
		rows[i] = []string{l.ID.String(), l.Prefix, l.Name, strings.Join(l.Scopes, " "), timeOrDash(l.ExpiresAt), timeOrDash(l.RevokedAt)}
	}
	return con.print(k.JSON, map[string]any{"items": list}, []string{"ID", "PREFIX", "NAME", "SCOPES", "EXPIRES", "REVOKED"}, rows)
}

type tokenRevokeCmd struct {
	ID uuid.UUID `arg:"" help:"Id of the token."`
	orgFlag
}

// Run revokes a token.
func (k tokenRevokeCmd) Run(ctx context.Context, con console, c *Common) error {
	err := c.forOrg(ctx, con, k.Organization, func(t *db.OrgTx) error { return t.RevokeToken(ctx, k.ID) })
	return inWords(err, "no such token in the organization; see deskcomm token list")
}

func timeOrDash(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format(time.RFC3339)
}
