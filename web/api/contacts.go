package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db"
)

func (s *Server) contactRoutes() {
	const path, tag = "/v1/contacts", "CRM"
	scopes := []string{"crm:read"}
	register(s, route{
		id: "list-contacts", method: http.MethodGet, path: path, tag: tag, scopes: scopes,
		summary: "List contacts, oldest first", about: "Contacts that were merged into others are left out.",
	}, listContacts)
	register(s, route{
		id: "show-contact", method: http.MethodGet, path: path + "/{id}", tag: tag, scopes: scopes,
		summary: "Show one contact",
	}, showContact)
}

// contact is a person the organization talks to.
type contact struct {
	ID             uuid.UUID `json:"id" format:"uuid"`
	Name           *string   `json:"name"`
	PhoneNumber    *string   `json:"phone_number" doc:"E.164."`
	WALID          *string   `json:"wa_lid" doc:"WhatsApp's opaque number for the person."`
	Email          *string   `json:"email"`
	Tags           []string  `json:"tags"`
	Source         string    `json:"source"`
	LastActivityAt *instant  `json:"last_activity_at" nullable:"true"`
	CreatedAt      instant   `json:"created_at"`
	UpdatedAt      instant   `json:"updated_at"`
}

func contactOf(c db.Contact) contact {
	return contact{
		ID: c.ID, Name: c.Name, PhoneNumber: c.PhoneNumber, WALID: c.WALID, Email: c.Email, Tags: c.Tags, Source: c.Source,
		LastActivityAt: optionalInstant(c.LastActivityAt), CreatedAt: instant(c.CreatedAt), UpdatedAt: instant(c.UpdatedAt),
	}
}

func listContacts(ctx context.Context, t *db.OrgTx, in *Page) (list[contact], error) {
	const name = "cont"
	p, err := in.after(name)
	if err != nil {
		return list[contact]{}, err
	}
	rows, err := t.Contacts(ctx, p)
	return listOf(rows, in.Limit, contactOf, byID(name, func(c db.Contact) uuid.UUID { return c.ID })), err
}

func showContact(ctx context.Context, t *db.OrgTx, in *Resource) (contact, error) {
	c, err := t.Contact(ctx, in.ID)
	return contactOf(c), err
}
