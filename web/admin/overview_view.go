package admin

import (
	"strings"

	"github.com/deskcomm/deskcomm/db"
)

type overviewView struct {
	frame

	URL      string // of the page itself, to ask again; "" when each look is audited
	Zone     string
	Paused   []string
	Cards    []cardView
	Events   []eventRow
	Webhooks []webhookRow
}

// cardView is one number of the overview.
type cardView struct {
	Label, Number, Note string
	URL                 string
	Tone                string // good, bad or "" for neither
}

type eventRow struct {
	ID, URL, Type, Entity string
	Created               moment
	Status                badgeView
}

type webhookRow struct {
	URL, Types, Note string
	Delivered        moment // empty when nothing was delivered yet
	Status           badgeView
}

func (v *visit) overviewView(f frame, o overview) overviewView {
	view := overviewView{frame: f, Zone: v.zoneNote(), Cards: v.overviewCards(o), Paused: v.pausedLines(o.paused)}
	if !v.scope.platform {
		view.URL = v.scope.url("/admin/")
	}
	for _, e := range o.events {
		view.Events = append(view.Events, eventRow{
			ID: e.ID.String(), URL: v.scope.url("/admin/events/" + e.ID.String()), Type: string(e.Type), Entity: entity(e.EntityKind, e.EntityID),
			Created: v.at(e.CreatedAt), Status: v.badge(e.Status),
		})
	}
	for _, s := range o.webhooks {
		view.Webhooks = append(view.Webhooks, v.webhookRow(s))
	}
	return view
}

// pausedLines say which consumers stand still, and to who administers the platform
// also why.
func (v *visit) pausedLines(paused []db.PausedConsumer) (lines []string) {
	for _, p := range paused {
		line := v.text("ConsumerPaused", "Consumer", p.Name, "Since", v.at(p.PausedAt).Text)
		if v.person.Platform != "" && p.PausedReason != "" {
			line += " " + v.text("ConsumerPausedWhy", "By", p.PausedBy, "Reason", p.PausedReason)
		}
		lines = append(lines, line)
	}
	return lines
}

func (v *visit) overviewCards(o overview) []cardView {
	dead := cardView{
		Label: v.L.Dead, Number: v.capped(o.Dead, db.CountCap), Note: v.L.DeadNone, URL: v.scope.url("/admin/dlq"), Tone: "good",
	}
	if o.Dead > 0 {
		dead.Tone, dead.Note = "bad", v.L.DeadSome
	}
	if o.OldestDeadDiedAt != nil {
		dead.Note = v.text("DeadOldest", "Ago", v.at(*o.OldestDeadDiedAt).Ago)
	}
	events := cardView{Label: v.L.EventsToday, Number: v.capped(o.EventsToday, db.CountCap), Note: v.L.NoEvents}
	if o.LastEventAt != nil {
		events.Note = v.text("LastEvent", "Ago", v.at(*o.LastEventAt).Ago)
	}
	webhooks := cardView{Label: v.L.Webhooks, Number: v.number(o.Webhooks), Note: v.L.WebhooksFine}
	if o.WebhooksFailing > 0 {
		webhooks.Tone, webhooks.Note = "bad", v.count("WebhooksFailing", o.WebhooksFailing)
	}
	channels := cardView{
		Label: v.L.Channels, Number: v.number(o.Channels), Note: v.count("ChannelsWorking", o.ChannelsWorking),
	}
	if o.ChannelsWaiting > 0 {
		channels.Tone, channels.Note = "bad", v.count("ChannelsWaiting", o.ChannelsWaiting)
	}
	return []cardView{dead, events, webhooks, channels}
}

func (v *visit) webhookRow(s db.Subscription) webhookRow {
	row := webhookRow{URL: s.URL, Types: strings.Join(s.EventTypes, ", ")}
	if s.LastDeliveredAt != nil {
		row.Delivered = v.at(*s.LastDeliveredAt)
	}
	switch {
	case !s.Enabled:
		row.Status = v.badge("held")
	case s.ConsecutiveFailures > 0:
		row.Status, row.Note = v.badge("failing"), v.count("ConsecutiveFailures", s.ConsecutiveFailures)
	case s.LastDeliveredAt != nil:
		row.Status = v.badge("delivering")
	default:
		row.Status = v.badge("waiting")
	}
	return row
}

type organizationsView struct {
	frame

	Paused        []string
	Organizations []organizationRow
}

type organizationRow struct {
	Name, URL     string
	Dead, DeadURL string
	Status        badgeView
}

func (v *visit) organizationsView(f frame, list []db.OrganizationDead, paused []db.PausedConsumer) organizationsView {
	view := organizationsView{frame: f, Paused: v.pausedLines(paused)}
	for _, o := range list {
		s := scope{param: o.ID.String()}
		view.Organizations = append(view.Organizations, organizationRow{
			Name: o.Name, URL: s.url("/admin/"), Dead: v.capped(o.Dead, db.OrganizationCountCap), DeadURL: s.url("/admin/dlq"), Status: v.badge(o.Status),
		})
	}
	return view
}
