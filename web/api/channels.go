package api

import (
	"context"
	"net/http"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db"
)

func (s *Server) channelRoutes() {
	const path, tag = "/v1/channel-sessions", "Channels"
	scopes := []string{"channels:manage"}
	registerCreate(s, route{
		id: "create-channel-session", path: path, tag: tag, scopes: scopes,
		summary: "Add a WhatsApp number", about: "The answer is the only time that its tokens are shown.",
	}, nil, createChannel)
	register(s, route{
		id: "list-channel-sessions", method: http.MethodGet, path: path, tag: tag, scopes: scopes,
		summary: "List channel sessions, oldest first",
	}, listChannels)
	register(s, route{
		id: "show-channel-session", method: http.MethodGet, path: path + "/{id}", tag: tag, scopes: scopes,
		summary: "Show one channel session",
	}, showChannel)
	registerDelete(s, route{
		id: "delete-channel-session", path: path + "/{id}", tag: tag, scopes: scopes,
		summary: "Archive a channel session", about: "Nothing is received through it any more; its conversations stay.",
	}, func(ctx context.Context, t *db.OrgTx, in *Resource) error { return t.DeleteChannel(ctx, in.ID) })
}

// newChannel describes a channel session to make.
type newChannel struct {
	_ struct{} `additionalProperties:"false"`

	Name          string `json:"name" doc:"The name of the gateway's session: 1 to 54 letters, digits, - or _."`
	Kind          string `json:"kind,omitempty" enum:"waha" doc:"The gateway."`
	PhoneNumber   string `json:"phone_number,omitempty" doc:"E.164, when it is known." example:"+5511987654321"`
	WebhookSecret string `json:"webhook_secret,omitempty" writeOnly:"true" doc:"What the gateway signs its posts with: 8 to 200 bytes. It is never shown again."`
}

// Channel is a WhatsApp number held by a gateway session.
type Channel struct {
	ID          uuid.UUID `json:"id" format:"uuid"`
	Name        string    `json:"name"`
	Kind        string    `json:"kind" enum:"waha"`
	PhoneNumber *string   `json:"phone_number"`
	Status      string    `json:"status" doc:"The session's status as the gateway last told it."`
	HasSecret   bool      `json:"has_webhook_secret"`
	CreatedAt   instant   `json:"created_at"`
}

func channelOf(c db.Channel) Channel {
	return Channel{
		ID: c.ID, Name: c.Name, Kind: c.Kind, PhoneNumber: c.PhoneNumber, Status: c.Status, HasSecret: c.HasSecret,
		CreatedAt: instant(c.CreatedAt),
	}
}

// madeChannel is a channel with its tokens, which are shown once.
type madeChannel struct {
	Channel
	WebhookPathToken string `json:"webhook_path_token" doc:"The secret part of webhook_url."`
	WebhookURL       string `json:"webhook_url" doc:"What the gateway posts to."`
	InstanceToken    string `json:"instance_token" doc:"Authenticates instance webhooks."`
}

func createChannel(ctx context.Context, t *db.OrgTx, n *newChannel) (madeChannel, error) {
	c, tokens, err := t.CreateChannel(ctx, db.NewChannel{
		Name: n.Name, Kind: n.Kind, PhoneNumber: n.PhoneNumber, WebhookSecret: n.WebhookSecret,
	})
	return madeChannel{
		Channel: channelOf(c), WebhookPathToken: tokens.WebhookPath, InstanceToken: tokens.Instance,
		WebhookURL: callerOf(ctx).baseURL + "/v1/webhooks/waha/" + tokens.WebhookPath,
	}, err
}

func listChannels(ctx context.Context, t *db.OrgTx, in *Page) (list[Channel], error) {
	const name = "chan"
	p, err := in.after(name)
	if err != nil {
		return list[Channel]{}, err
	}
	rows, err := t.Channels(ctx, p)
	return listOf(rows, in.Limit, channelOf, byID(name, func(c db.Channel) uuid.UUID { return c.ID })), err
}

func showChannel(ctx context.Context, t *db.OrgTx, in *Resource) (Channel, error) {
	c, err := t.Channel(ctx, in.ID)
	return channelOf(c), err
}
