package admin

import (
	"strings"
	"time"

	"github.com/deskcomm/deskcomm/db"
)

type deadListView struct {
	frame

	Count string
	Alert string
	Empty string // what to say when there are no rows
	Zone  string

	Organizations         []option
	Organization          string // what "organization" says in the URL
	EventType, EntityKind suggestedView
	Consumers             []option
	Consumer              string
	Since, Until          string

	Rows             []deadRow
	MayAct           bool
	ShowOrganization bool
	Back             string // the filter as a query string
	ClearURL         string // "" when nothing is filtered
	NextURL          string
	FirstURL         string
	NewsURL          string // "" when the page does not ask for news
}

// suggestedView is a text field with suggestions.
type suggestedView struct {
	Name, Label, Value, ListID string
	Suggestions                []string
}

type deadRow struct {
	ID, URL                                string
	Organization                           string
	Type, Entity                           string
	Consumer, Destination                  string
	Error, Attempts                        string
	Status                                 badgeView
	MayAct                                 bool // only on what is dead: to repeat what is uncertain asks for more care
	Died                                   moment
	SelectLabel, ReplayLabel, DiscardLabel string
	ReplayURL, DiscardURL                  string
}

type newsView struct{ Text, URL string }

// at prints an instant in the zone of what is looked at.
func (v *visit) at(t time.Time) moment { return v.moment(t, v.now, v.scope.zone) }

func (v *visit) zoneNote() string { return v.text("TimesIn", "Zone", v.scope.zone.String()) }

func (v *visit) deadListView(f frame, wanted filter, list deadList) deadListView {
	view := deadListView{
		frame: f, Alert: list.alert, Zone: v.zoneNote(), Empty: v.L.NothingDead,
		Organizations: v.organizationOptions(list.organizations), Organization: v.scope.param,
		EventType: suggestedView{
			Name: "event_type", Label: v.L.EventType, Value: wanted.EventType, ListID: "event-types", Suggestions: list.names.Types,
		},
		EntityKind: suggestedView{
			Name: "entity_kind", Label: v.L.EntityKind, Value: wanted.EntityKind, ListID: "entity-kinds", Suggestions: list.names.Kinds,
		},
		Consumers: v.consumerOptions(list.names.Consumers, wanted.Consumer), Consumer: wanted.Consumer,
		Since: wanted.Since, Until: wanted.Until,
		MayAct: v.scope.mayAct, ShowOrganization: v.scope.all(), Back: wanted.query(),
	}
	if list.total > 0 {
		view.Count = v.count("DeadCount", list.total, "Count", v.capped(list.total, db.CountCap))
	}
	if wanted.narrows() {
		view.ClearURL, view.Empty = v.scope.url("/admin/dlq"), v.L.NothingMatches
	}
	switch {
	case list.alert != "":
		view.Empty = ""
	case wanted.Before != "":
		view.Empty = v.L.NothingOnPage
	}
	if wanted.Before != "" {
		first := wanted
		first.Before = ""
		view.FirstURL = v.scope.url("/admin/dlq", first.pairs()...)
	}
	rows := list.rows
	if len(rows) > pageSize {
		rows = rows[:pageSize]
		next := wanted
		next.Before = cursorOf(rows[pageSize-1])
		view.NextURL = v.scope.url("/admin/dlq", next.pairs()...)
	}
	if !v.scope.platform && wanted.Before == "" && list.alert == "" {
		pairs := wanted.pairs()
		if len(rows) > 0 {
			pairs = append(pairs, "after", cursorOf(rows[0]))
		}
		view.NewsURL = v.scope.url("/admin/dlq/news", pairs...)
	}
	for _, d := range rows {
		view.Rows = append(view.Rows, v.deadRow(d, wanted))
	}
	return view
}

func (v *visit) deadRow(d db.DeadDelivery, wanted filter) deadRow {
	own := v.scope
	if own.all() {
		own.param = d.OrgID.String()
	}
	act := []string{"id", d.ID.String(), "back", wanted.query()}
	label := string(d.Type) + ", " + where(d.Consumer, d.DestinationURL)
	return deadRow{
		ID: d.ID.String(), URL: own.url("/admin/dlq/" + d.ID.String()), Organization: d.Organization,
		Type: string(d.Type), Entity: entity(d.EntityKind, d.EntityID), Consumer: d.Consumer, Destination: deref(d.DestinationURL),
		Error: short(maskText(d.LastError)), Attempts: v.count("AttemptCount", d.Attempts), Died: v.at(d.DiedAt),
		SelectLabel: v.L.Select + ": " + label, ReplayLabel: v.L.Replay + ": " + label, DiscardLabel: v.L.Discard + ": " + label,
		Status: v.badge(d.State), MayAct: d.State == "dead",
		ReplayURL: v.scope.url("/admin/dlq/replay", act...), DiscardURL: v.scope.url("/admin/dlq/discard", act...),
	}
}

// maxShort is how much of an error a list shows, in characters.
const maxShort = 300

// short cuts a text for a list.
func short(s string) string {
	runes := []rune(strings.TrimSpace(s))
	if len(runes) <= maxShort {
		return string(runes)
	}
	return string(runes[:maxShort-1]) + "…"
}

// consumerOptions lists the consumers to filter by. One that is unknown, as in an
// old link, stays chosen.
func (v *visit) consumerOptions(names []string, chosen string) []option {
	if len(names) == 0 {
		return nil
	}
	list := []option{{Text: v.L.Any, Selected: chosen == ""}}
	known := chosen == ""
	for _, name := range names {
		list = append(list, option{Value: name, Text: name, Selected: name == chosen})
		known = known || name == chosen
	}
	if !known {
		list = append(list, option{Value: chosen, Text: chosen, Selected: true})
	}
	return list
}

// organizationOptions lists what the person can look at, if there is a choice: their
// own organizations, all for who administers the platform, and the one that is open.
func (v *visit) organizationOptions(own []db.Membership) []option {
	platform := v.person.Platform != db.PlatformNone
	if len(own) < 2 && !platform {
		return nil
	}
	var list []option
	if platform {
		list = append(list, option{Value: everywhere, Text: v.L.AllOrganizations, Selected: v.scope.all()})
	}
	known := v.scope.all()
	for _, o := range own {
		list = append(list, option{Value: o.OrgID.String(), Text: o.Organization, Selected: o.OrgID == v.scope.org})
		known = known || o.OrgID == v.scope.org
	}
	if !known {
		list = append(list, option{Value: v.scope.org.String(), Text: v.scope.name, Selected: true})
	}
	return list
}

// newsView tells how many deliveries have died since; nothing when none.
func (v *visit) newsView(f filter, n int) newsView {
	if n == 0 {
		return newsView{}
	}
	return newsView{
		Text: v.count("News", n, "Count", v.capped(n, db.CountCap)), URL: v.scope.url("/admin/dlq", f.pairs()...),
	}
}

type confirmView struct {
	frame

	Action              string // address that the form is posted to
	Lead, Button, Tone  string
	ReasonLabel, Reason string
	ReasonRequired      bool
	Alert               string
	Rows                []confirmRow
	Dead                bool // there is something left to decide about
	Organization        string
	Back, Cancel        string
}

type confirmRow struct {
	ID, Type, Entity, Where, Error string
	Died                           moment
	Warning                        string
}

// title is what a decision is called.
func (v *visit) title(act action) string {
	switch act {
	case replay:
		return v.L.Replay
	case confirmDone:
		return v.L.ConfirmDone
	default:
		return v.L.Discard
	}
}

func (v *visit) confirmView(f frame, act action, rows []db.DeadDelivery) confirmView {
	view := confirmView{frame: f, Action: "/admin/dlq/" + string(act), Button: v.title(act), Organization: v.scope.param}
	switch act {
	case replay:
		view.Lead, view.Tone, view.ReasonLabel = v.count("ReplayLead", len(rows)), "primary", v.L.ReasonOptional
	case confirmDone:
		view.Lead, view.Tone, view.ReasonLabel = v.count("ConfirmLead", len(rows)), "primary", v.L.ReasonOptional
	case discard:
		view.Lead, view.Tone, view.ReasonLabel = v.count("DiscardLead", len(rows)), "primary danger", v.L.ReasonRequired
		view.ReasonRequired = true
	}
	for _, d := range rows {
		row := confirmRow{
			ID: d.ID.String(), Type: string(d.Type), Entity: entity(d.EntityKind, d.EntityID), Where: where(d.Consumer, d.DestinationURL),
			Error: short(maskText(d.LastError)), Died: v.at(d.DiedAt),
		}
		switch {
		case d.State == "uncertain" && act == replay:
			row.Warning, view.Dead = v.L.MayHappenTwice, true
		case d.State == "uncertain", d.State == "dead" && act != confirmDone:
			view.Dead = true
		default:
			row.Warning = v.L.NotDeadAnyMore
		}
		view.Rows = append(view.Rows, row)
	}
	return view
}

// outcome says what became of the deliveries of one decision.
func (v *visit) outcome(act action, t tally) string {
	id := map[action]string{replay: "Replayed", discard: "Discarded", confirmDone: "Confirmed"}[act]
	var parts []string
	if t.done > 0 {
		parts = append(parts, v.count(id, t.done))
	}
	if t.gone > 0 {
		parts = append(parts, v.count("NotDone", t.gone))
	}
	return strings.Join(parts, " ")
}
