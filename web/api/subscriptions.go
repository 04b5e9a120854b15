package api

import (
	"context"
	"errors"
	"net/http"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/bus/urlpolicy"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/web/problem"
)

func (s *Server) subscriptionRoutes() {
	const path, tag = "/v1/webhook-subscriptions", "Webhooks"
	manage, read := []string{"webhooks:manage"}, []string{"webhooks:read", "webhooks:manage"}
	registerCreate(s, route{
		id: "create-webhook-subscription", path: path, tag: tag, scopes: manage,
		summary: "Subscribe to events", about: "The subscription receives what is emitted from now on.",
	}, nil, s.createSubscription)
	register(s, route{
		id: "list-webhook-subscriptions", method: http.MethodGet, path: path, tag: tag, scopes: read,
		summary: "List webhook subscriptions, oldest first",
	}, listSubscriptions)
	register(s, route{
		id: "show-webhook-subscription", method: http.MethodGet, path: path + "/{id}", tag: tag, scopes: read,
		summary: "Show one webhook subscription",
	}, showSubscription)
	registerDelete(s, route{
		id: "delete-webhook-subscription", path: path + "/{id}", tag: tag, scopes: manage,
		summary: "End a webhook subscription", about: "What waits for it is discarded; its dead deliveries stay listed.",
	}, func(ctx context.Context, t *db.OrgTx, in *Resource) error { return t.DeleteSubscription(ctx, in.ID) })
}

// newSubscription describes a subscription to make.
type newSubscription struct {
	_ struct{} `additionalProperties:"false"`

	URL        string   `json:"url" doc:"Where events are posted: https, a public host, at most 2000 characters."`
	EventTypes []string `json:"event_types" doc:"1 to 100 of: a type of the catalogue, custom.<name>, <entity>.* or *."`
	Secret     string   `json:"secret,omitempty" writeOnly:"true" doc:"Signs what is sent: 8 to 200 bytes. It is never shown again."`
	Ordering   string   `json:"ordering,omitempty" enum:"none,key,strict" default:"none" doc:"In which order events are delivered; it stays as it is. none: any, many at a time. key: those with the same metadata.order_key, or else about the same entity, one at a time in the order of seq. strict: all one at a time in the order of seq. What is tried again keeps what comes after it waiting."`
	Format     string   `json:"format,omitempty" enum:"native" doc:"The form of what is sent."`
}

// subscription is a webhook subscription.
type subscription struct {
	ID                  uuid.UUID `json:"id" format:"uuid"`
	URL                 string    `json:"url"`
	EventTypes          []string  `json:"event_types"`
	HasSecret           bool      `json:"has_secret"`
	Enabled             bool      `json:"enabled" doc:"false holds its deliveries."`
	Ordering            string    `json:"ordering" enum:"none,key,strict"`
	Format              string    `json:"format" enum:"native"`
	ConsecutiveFailures int       `json:"consecutive_failures"`
	LastStatus          *int      `json:"last_status" doc:"The HTTP status of the last attempt."`
	LastError           *string   `json:"last_error"`
	LastDeliveredAt     *instant  `json:"last_delivered_at" nullable:"true"`
	CreatedAt           instant   `json:"created_at"`
}

func subscriptionOf(x db.Subscription) subscription {
	return subscription{
		ID: x.ID, URL: x.URL, EventTypes: x.EventTypes, HasSecret: x.HasSecret, Enabled: x.Enabled, Ordering: string(x.Ordering), Format: "native",
		ConsecutiveFailures: x.ConsecutiveFailures, LastStatus: x.LastStatus, LastError: x.LastError,
		LastDeliveredAt: optionalInstant(x.LastDeliveredAt), CreatedAt: instant(x.CreatedAt),
	}
}

func (s *Server) createSubscription(ctx context.Context, t *db.OrgTx, n *newSubscription) (subscription, error) {
	u, err := s.policy.CheckURL(n.URL)
	if refusal, ok := errors.AsType[*urlpolicy.Error](err); ok {
		fault := problem.InBody("/url", refusal.Rule)
		fault.Code = string(refusal.Code)
		return subscription{}, problem.Invalid(fault)
	}
	if err != nil {
		return subscription{}, err
	}
	made, err := t.CreateSubscription(ctx, db.NewSubscription{
		URL: u.String(), EventTypes: n.EventTypes, Secret: n.Secret, Ordering: bus.Ordering(n.Ordering),
	})
	return subscriptionOf(made), err
}

func listSubscriptions(ctx context.Context, t *db.OrgTx, in *Page) (list[subscription], error) {
	const name = "subs"
	p, err := in.after(name)
	if err != nil {
		return list[subscription]{}, err
	}
	rows, err := t.Subscriptions(ctx, p)
	return listOf(rows, in.Limit, subscriptionOf, byID(name, func(x db.Subscription) uuid.UUID { return x.ID })), err
}

func showSubscription(ctx context.Context, t *db.OrgTx, in *Resource) (subscription, error) {
	x, err := t.Subscription(ctx, in.ID)
	return subscriptionOf(x), err
}
