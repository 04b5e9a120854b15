package db

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net/mail"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
)

// NewInstallation is what the first start of an installation needs.
type NewInstallation struct {
	Organization string
	Email        string
	PasswordHash string // argon2id, in its encoded form
	Scopes       []string
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

const insertUserSQL = `
	insert into users (email, password_hash) values (@email, @password_hash) returning id`

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
// already, and changes nothing then.
func (d *DB) SetUp(ctx context.Context, in NewInstallation) (Installed, error) {
	if addr, err := mail.ParseAddress(in.Email); err != nil || addr.Address != in.Email || len(in.Email) > 254 {
		return Installed{}, bus.Invalid("email", "must be an e-mail address of at most 254 characters")
	}
	var out Installed
	actor := Actor{Kind: ActorCLI, Name: "setup"}
	err := d.inTx(ctx, func(tx pgx.Tx) error {
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
		org, err := createOrganization(ctx, tx, actor, in.Organization)
		if err != nil {
			return err
		}
		out.OrganizationID = org.ID
		if err := tx.QueryRow(ctx, insertUserSQL, named{"email": in.Email, "password_hash": in.PasswordHash}).Scan(&out.UserID); err != nil {
			return wrap("create user", err)
		}
		if _, err := tx.Exec(ctx, insertFirstAdminSQL, named{"org_id": org.ID, "user_id": out.UserID}); err != nil {
			return wrap("make user an admin", err)
		}
		t := &OrgTx{tx: tx, box: d.box, org: org.ID, actor: actor}
		_, out.APIToken, err = t.CreateToken(ctx, NewToken{Name: "setup", Scopes: in.Scopes})
		return err
	})
	return out, err
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
	token := base64.RawURLEncoding.EncodeToString(randomBytes(32))
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
	var hash []byte
	err := scan(ctx, d.pool, setupTokenSQL, named{}, &hash)
	if err = translate(err); err == bus.ErrNotFound { //nolint:errorlint // translate returns the sentinel bare
		return false, nil
	}
	return subtle.ConstantTimeCompare(hash, hashToken(token)) == 1, wrap("check setup link", err)
}
