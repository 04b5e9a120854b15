package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

func (s *Server) tokenRoutes() {
	const path, tag = "/v1/tokens", "Tokens"
	scopes := []string{"admin"}
	registerCreate(s, route{
		id: "create-token", path: path, tag: tag, scopes: scopes,
		summary: "Make an API token", about: "The answer is the only time that the token is shown.",
	}, nil, createToken)
	register(s, route{
		id: "list-tokens", method: http.MethodGet, path: path, tag: tag, scopes: scopes,
		summary: "List API tokens, oldest first", about: "Revoked ones are listed too.",
	}, listTokens)
	registerDelete(s, route{
		id: "revoke-token", path: path + "/{id}", tag: tag, scopes: scopes,
		summary: "Revoke an API token", about: "Revoking it again changes nothing.",
	}, func(ctx context.Context, t *db.OrgTx, in *Resource) error { return t.RevokeToken(ctx, in.ID) })
}

// newToken describes a token to make.
type newToken struct {
	_ struct{} `additionalProperties:"false"`

	Name      string   `json:"name" doc:"What it is for: 2 to 100 characters."`
	Scopes    []string `json:"scopes" doc:"What it may do."`
	ExpiresIn string   `json:"expires_in,omitempty" doc:"When it ends: a whole number and d, h or m, from one minute to 365 days. Never when left out." example:"90d"`
}

// Token is an API token without its secret.
type Token struct {
	ID         uuid.UUID `json:"id" format:"uuid"`
	Name       string    `json:"name"`
	Prefix     string    `json:"prefix" doc:"The readable part of the token."`
	Scopes     []string  `json:"scopes"`
	ExpiresAt  *instant  `json:"expires_at" nullable:"true"`
	LastUsedAt *instant  `json:"last_used_at" nullable:"true" doc:"To the minute."`
	RevokedAt  *instant  `json:"revoked_at" nullable:"true"`
	CreatedAt  instant   `json:"created_at"`
}

func tokenOf(t db.Token) Token {
	return Token{
		ID: t.ID, Name: t.Name, Prefix: t.Prefix, Scopes: t.Scopes, ExpiresAt: optionalInstant(t.ExpiresAt),
		LastUsedAt: optionalInstant(t.LastUsedAt), RevokedAt: optionalInstant(t.RevokedAt), CreatedAt: instant(t.CreatedAt),
	}
}

// madeToken is a token with its secret, which is shown once.
type madeToken struct {
	Token
	Secret string `json:"token" doc:"What goes behind Bearer."`
}

func createToken(ctx context.Context, t *db.OrgTx, n *newToken) (madeToken, error) {
	expires, err := bus.ParseSpan("expires_in", n.ExpiresIn)
	if err != nil {
		return madeToken{}, err
	}
	made, secret, err := t.CreateToken(ctx, db.NewToken{Name: n.Name, Scopes: n.Scopes, ExpiresIn: expires})
	return madeToken{Token: tokenOf(made), Secret: secret}, err
}

func listTokens(ctx context.Context, t *db.OrgTx, in *Page) (list[Token], error) {
	const name = "tokn"
	p, err := in.after(name)
	if err != nil {
		return list[Token]{}, err
	}
	rows, err := t.Tokens(ctx, p)
	return listOf(rows, in.Limit, tokenOf, byID(name, func(t db.Token) uuid.UUID { return t.ID })), err
}
