package db

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

// Scopes returns every scope a token may have.
func Scopes() []string {
	return []string{
		"events:read", "events:write", "events:emit_any", "dlq:read", "dlq:replay", "dlq:discard",
		"webhooks:read", "webhooks:manage", "channels:manage", "crm:read", "crm:write",
		"automations:manage", "audit:read", "lgpd:manage", "admin",
	}
}

// Token is an API token without its secret.
type Token struct {
	ID         uuid.UUID
	Name       string
	Prefix     string // the readable part of the token
	Scopes     []string
	ExpiresAt  *time.Time
	LastUsedAt *time.Time
	RevokedAt  *time.Time
	CreatedAt  time.Time
}

// NewToken describes a token to make. ExpiresIn of 0 is never.
type NewToken struct {
	Name      string
	Scopes    []string
	ExpiresIn time.Duration
}

func (n NewToken) check() error {
	if l := len([]rune(n.Name)); l < 2 || l > 100 {
		return bus.Invalid("name", "must have 2 to 100 characters")
	}
	if len(n.Scopes) == 0 {
		return bus.Invalid("scopes", "must name at least one scope")
	}
	for i, s := range n.Scopes {
		if !slices.Contains(Scopes(), s) {
			return bus.Invalid(fmt.Sprintf("scopes.%d", i), "must be one of "+strings.Join(Scopes(), ", "))
		}
	}
	const day = 24 * time.Hour
	if n.ExpiresIn != 0 && (n.ExpiresIn < time.Minute || n.ExpiresIn > 365*day) {
		return bus.Invalid("expires_in", "must be between one minute and 365 days")
	}
	return nil
}

const insertTokenSQL = `
	insert into api_tokens (organization_id, name, prefix, token_hash, scopes, expires_at)
	values (@org_id, @name, @prefix, @token_hash, @scopes, clock_timestamp() + nullif(@expires_in, interval '0'))
	returning id, name, prefix, scopes, expires_at, last_used_at, revoked_at, created_at`

// CreateToken makes a token and returns it together with its secret, which is
// not kept.
func (t *OrgTx) CreateToken(ctx context.Context, n NewToken) (Token, string, error) {
	if err := n.check(); err != nil {
		return Token{}, "", err
	}
	prefix := "dsk_" + hex.EncodeToString(randomBytes(4))
	secret := prefix + "_" + base64.RawURLEncoding.EncodeToString(randomBytes(32))
	token, err := one[Token](ctx, t.tx, insertTokenSQL, named{
		"org_id": t.org, "name": n.Name, "prefix": prefix, "token_hash": hashToken(secret),
		"scopes": n.Scopes, "expires_in": n.ExpiresIn,
	})
	if err != nil {
		return Token{}, "", wrap("create token", err)
	}
	return token, secret, t.audit(ctx, auditEntry{
		action: "token.created", resourceType: "api_token", resourceID: token.ID,
		metadata: map[string]any{"name": n.Name, "scopes": n.Scopes},
	})
}

const listTokensSQL = `
	select id, name, prefix, scopes, expires_at, last_used_at, revoked_at, created_at
	  from api_tokens
	 where organization_id = @org_id and (@after::uuid is null or id > @after)
	 order by id
	 limit @limit`

// Page asks for the rows after one, up to Limit of them.
type Page struct {
	After uuid.NullUUID
	Limit int
}

func (p Page) limit() int { return pageLimit(p.Limit) }

// pageLimit keeps a page between one row and MaxPage; no wish is 50.
func pageLimit(n int) int {
	if n <= 0 {
		return 50
	}
	return min(n, MaxPage)
}

// Tokens lists the organization's tokens, revoked ones included.
func (t *OrgTx) Tokens(ctx context.Context, p Page) ([]Token, error) {
	list, err := collect[Token](ctx, t.tx, listTokensSQL, named{"org_id": t.org, "after": p.After, "limit": p.limit()})
	return list, wrap("list tokens", err)
}

const revokeTokenSQL = `
	update api_tokens set revoked_at = coalesce(revoked_at, clock_timestamp())
	 where organization_id = @org_id and id = @id
	returning id, name, prefix, scopes, expires_at, last_used_at, revoked_at, created_at`

// RevokeToken ends a token; revoking it again changes nothing.
func (t *OrgTx) RevokeToken(ctx context.Context, id uuid.UUID) error {
	token, err := one[Token](ctx, t.tx, revokeTokenSQL, named{"org_id": t.org, "id": id})
	if err != nil {
		return wrap("revoke token", err)
	}
	return t.audit(ctx, auditEntry{action: "token.revoked", resourceType: "api_token", resourceID: id, metadata: map[string]any{"name": token.Name}})
}

// Principal is who a valid token speaks for.
type Principal struct {
	TokenID uuid.UUID
	OrgID   uuid.UUID
	Name    string
	Scopes  []string
}

// Has reports whether the principal's token has the scope.
func (p Principal) Has(scope string) bool { return slices.Contains(p.Scopes, scope) }

// Actor is the principal as audit rows name it.
func (p Principal) Actor(requestID string) Actor {
	return Actor{Kind: ActorToken, ID: uuid.NullUUID{UUID: p.TokenID, Valid: true}, Name: p.Name, RequestID: requestID}
}

var tokenPattern = regexp.MustCompile(`^dsk_[0-9a-f]{8}_[A-Za-z0-9_-]{43}$`)

// last_used_at is for people: once a minute is often enough.
const authenticateSQL = `
	with valid as (
	    select id, organization_id, name, scopes, last_used_at
	      from api_tokens
	     where token_hash = @token_hash
	       and revoked_at is null
	       and (expires_at is null or expires_at > clock_timestamp())
	), used as (
	    update api_tokens t set last_used_at = clock_timestamp()
	      from valid v
	     where t.id = v.id and (v.last_used_at is null or v.last_used_at < clock_timestamp() - interval '1 minute')
	)
	select id as token_id, organization_id as org_id, name, scopes from valid`

// Authenticate returns who a bearer token speaks for, or bus.ErrUnauthorized for
// one that is malformed, unknown, revoked or expired.
func (d *DB) Authenticate(ctx context.Context, token string) (Principal, error) {
	if !tokenPattern.MatchString(token) {
		return Principal{}, bus.ErrUnauthorized
	}
	p, err := one[Principal](ctx, d.pool, authenticateSQL, named{"token_hash": hashToken(token)})
	if err = translate(err); err == bus.ErrNotFound { //nolint:errorlint // translate returns the sentinel bare
		return Principal{}, bus.ErrUnauthorized
	}
	return p, wrap("check token", err)
}
