package db

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
)

// NewInstallation is what the first start of an installation needs.
type NewInstallation struct {
	Organization string
	Email        string
	Name         string // of the admin, for people; may be empty
	PasswordHash string // what HashPassword returned
	Scopes       []string
	SetupToken   string // the one-time link's; "" for the command line
	RequestID    string // of the request that asked, if one did
}

// Installed is what setting up gives back; the token is shown once.
type Installed struct {
	OrganizationID uuid.UUID `json:"organization_id"`
	UserID         uuid.UUID `json:"user_id"`
	APIToken       string    `json:"api_token"`
}

// lockInstallationSQL lets one setup at a time look whether it is the first.
const lockInstallationSQL = `select id from installation for update`

const hasUsersSQL = `select exists (select from users)`

const insertFirstAdminSQL = `
	with member as (
	    insert into user_organizations (organization_id, user_id, role, accepted_at)
	    values (@org_id, @user_id, 'admin', clock_timestamp())
	), closed as (
	    update installation set setup_token_hash = null, setup_expires_at = null
	)
	insert into platform_admins (user_id, reason) values (@user_id, 'first user of the installation')`

// SetUp makes the first organization, its admin, who also administers the
// platform, and an API token. It returns bus.ErrConflict when there is a user
// already, bus.ErrNotFound when in.SetupToken is not that of a valid link, and
// changes nothing then.
func (d *DB) SetUp(ctx context.Context, in NewInstallation) (Installed, error) {
	email, err := cleanEmail(in.Email)
	if err != nil {
		return Installed{}, err
	}
	var out Installed
	err = d.inTx(ctx, func(tx pgx.Tx) error {
		if err := lockSetup(ctx, tx, in.SetupToken); err != nil {
			return err
		}
		user, err := insertUser(ctx, tx, email, in.Name, in.PasswordHash)
		if err != nil {
			return err
		}
		actor := Actor{Kind: ActorCLI, Name: "setup"}
		if in.SetupToken != "" {
			actor = userActor(user, email, in.RequestID)
		}
		org, err := createOrganization(ctx, tx, actor, in.Organization)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, insertFirstAdminSQL, named{"org_id": org.ID, "user_id": user}); err != nil {
			return wrap("make user an admin", err)
		}
		t := &OrgTx{tx: tx, box: d.box, gauge: &d.gauge, org: org.ID, actor: actor}
		if err := t.audit(ctx, auditEntry{
			action: "user.created", resourceType: "user", resourceID: user,
			metadata: map[string]any{"role": RoleAdmin, "platform": PlatformFull},
		}); err != nil {
			return err
		}
		_, secret, err := t.CreateToken(ctx, NewToken{Name: "setup", Scopes: in.Scopes})
		out = Installed{OrganizationID: org.ID, UserID: user, APIToken: secret}
		return err
	})
	if err != nil {
		return Installed{}, translate(err)
	}
	return out, nil
}

// lockSetup takes the turn to set up and looks whether it is the first, and
// whether the link, if one was used, is valid.
func lockSetup(ctx context.Context, tx pgx.Tx, token string) error {
	var found bool
	if _, err := tx.Exec(ctx, lockInstallationSQL); err != nil {
		return wrap("set up", err)
	}
	if err := tx.QueryRow(ctx, hasUsersSQL).Scan(&found); err != nil {
		return wrap("set up", err)
	}
	if found {
		return fmt.Errorf("already set up: %w", bus.ErrConflict)
	}
	if token == "" {
		return nil
	}
	valid, err := checkSetup(ctx, tx, token)
	if err == nil && !valid {
		err = fmt.Errorf("setup link: %w", bus.ErrNotFound)
	}
	return err
}

// SetupLinkLife is how long a setup link is valid.
const SetupLinkLife = 15 * time.Minute

const openSetupSQL = `
	update installation
	   set setup_token_hash = @hash, setup_expires_at = clock_timestamp() + @life
	 where not exists (select from users)
	returning true`

// OpenSetup returns a new one-time setup token, or "" when the installation has
// a user already. An earlier token is void.
func (d *DB) OpenSetup(ctx context.Context) (string, error) {
	token := base64.RawURLEncoding.EncodeToString(randomBytes(16)) // short enough for a line of a terminal
	var opened bool
	err := scan(ctx, d.pool, openSetupSQL, named{"hash": hashToken(token), "life": SetupLinkLife}, &opened)
	if err = translate(err); err == bus.ErrNotFound { //nolint:errorlint // translate returns the sentinel bare
		return "", nil
	}
	return token, wrap("open setup", err)
}

const setupTokenSQL = `
	select setup_token_hash from installation where setup_expires_at > clock_timestamp() and not exists (select from users)`

// CheckSetup reports whether token opens the setup page now.
func (d *DB) CheckSetup(ctx context.Context, token string) (bool, error) {
	return checkSetup(ctx, d.pool, token)
}

func checkSetup(ctx context.Context, c conn, token string) (bool, error) {
	var hash []byte
	err := scan(ctx, c, setupTokenSQL, named{}, &hash)
	if err = translate(err); err == bus.ErrNotFound { //nolint:errorlint // translate returns the sentinel bare
		return false, nil
	}
	return subtle.ConstantTimeCompare(hash, hashToken(token)) == 1, wrap("check setup link", err)
}

// Fresh reports whether nobody has set the installation up yet.
func (d *DB) Fresh(ctx context.Context) (bool, error) {
	var found bool
	err := scan(ctx, d.pool, hasUsersSQL, named{}, &found)
	return !found, wrap("look for users", err)
}
