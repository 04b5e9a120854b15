package admin

import (
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db"
)

type deadView struct {
	frame

	ListURL               string
	Type                  string
	Status                badgeView
	Sentence              string // what failed
	Advice                string // what usually helps; "" when nothing is known
	Error                 string
	Decision              string // what a person decided, "" while nobody has
	MayAct                bool
	Uncertain             bool // nobody knows whether it has happened
	ReplayURL, DiscardURL string
	ConfirmURL            string
	Facts                 []fact
	Deliveries            deliveriesView
	Attempts              attemptsView
	Payload               payloadView
}

type eventView struct {
	frame

	OverviewURL string
	Type        string
	Status      badgeView
	Facts       []fact
	Deliveries  deliveriesView
	Attempts    attemptsView
	Payload     payloadView
}

// fact is one line of what is known; At is printed instead of Value when set.
type fact struct {
	Name, Value string
	At          moment
}

type deliveriesView struct {
	L    labels
	URL  string
	Live bool // something is still under way
	Rows []deliveryRow
}

type deliveryRow struct {
	ID, URL               string
	Consumer, Destination string
	Status                badgeView
	Attempts, Error       string
	Next                  moment
	Current               bool
}

type attemptsView struct {
	L    labels
	Rows []attemptRow
}

type attemptRow struct {
	Number, Took  string
	Consumer      string
	Status        badgeView
	Started       moment
	Error         string
	Response      string
	ResponseLabel string
}

type payloadView struct {
	L         labels
	Open      bool
	Note      string
	RevealURL string
	Text      string
}

func (v *visit) deadView(f frame, d deadDetail, reveal bool) deadView {
	self := "/admin/dlq/" + d.ID.String()
	act := []string{"id", d.ID.String()}
	status := d.statusNow()
	view := deadView{
		frame: f, ListURL: v.scope.url("/admin/dlq"), Type: string(d.Type), Status: v.badge(status),
		Sentence: v.count("WhatFailed", d.Attempts, "Type", string(d.Type), "Where", where(d.Consumer, d.DestinationURL)),
		Advice:   v.advice(d.LastError), Error: v.masked(d.LastError, reveal), Decision: v.decision(d.DeadDelivery),
		MayAct:     v.scope.mayAct && (d.State == "dead" || d.State == "uncertain"),
		Uncertain:  d.State == "uncertain",
		ConfirmURL: v.scope.url("/admin/dlq/confirm", act...),
		ReplayURL:  v.scope.url("/admin/dlq/replay", act...),
		DiscardURL: v.scope.url("/admin/dlq/discard", act...),
		Facts: []fact{
			{Name: v.L.DiedAt, At: v.at(d.DiedAt)},
			{Name: v.L.EmittedAt, At: v.at(d.EventCreatedAt)},
			{Name: v.L.Consumer, Value: d.Consumer},
			{Name: v.L.Entity, Value: entity(d.EntityKind, d.EntityID)},
			{Name: v.L.EventID, Value: d.EventID.String()},
			{Name: v.L.DeliveryID, Value: d.ID.String()},
			{Name: v.L.Organization, Value: d.Organization},
		},
		Deliveries: v.deliveriesView(d.others, self, d.ID),
		Attempts:   v.attemptsView(d.attempts, false, reveal),
		Payload:    v.payloadView(d.Payload, self, reveal),
	}
	if view.Uncertain {
		view.Sentence = v.text("WhatIsUncertain", "Type", string(d.Type), "Where", where(d.Consumer, d.DestinationURL))
		view.Advice = v.L.AdviceUncertain
	}
	return view
}

// statusNow is what the delivery is now, after it died and was perhaps replayed.
func (d deadDetail) statusNow() string {
	if d.State != "replayed" {
		return d.State
	}
	for _, other := range d.others {
		if other.ID == d.ID {
			return other.Status
		}
	}
	return "pending"
}

// decision says what a person decided about the delivery, if one did.
func (v *visit) decision(d db.DeadDelivery) string {
	if d.ResolvedAt == nil {
		return ""
	}
	id := "WasReplayed"
	switch d.State {
	case "discarded":
		id = "WasDiscarded"
	case "confirmed":
		id = "WasConfirmed"
	}
	text := v.text(id, "At", v.at(*d.ResolvedAt).Text)
	if d.Reason != nil {
		text += " " + v.text("BecauseOf", "Reason", *d.Reason)
	}
	return text
}

// advice says what usually helps against an error, by the code that it begins
// with.
func (v *visit) advice(text string) string {
	code, _, found := strings.Cut(text, ":")
	if !found {
		return ""
	}
	if digits, ok := strings.CutPrefix(code, "http_"); ok && len(digits) == 3 {
		for _, id := range []string{"Advice_http_" + digits, "Advice_http_" + digits[:1] + "xx"} {
			if v.has(id) {
				return v.text(id)
			}
		}
		return ""
	}
	if id := "Advice_" + code; v.has(id) {
		return v.text(id)
	}
	return ""
}

func (v *visit) eventView(f frame, d eventDetail, reveal bool) eventView {
	self := "/admin/events/" + d.ID.String()
	view := eventView{
		frame: f, OverviewURL: v.scope.url("/admin/"), Type: string(d.Type), Status: v.badge(d.Status),
		Facts: []fact{
			{Name: v.L.EmittedAt, At: v.at(d.CreatedAt)},
			{Name: v.L.Entity, Value: entity(d.EntityKind, d.EntityID)},
			{Name: v.L.EventID, Value: d.ID.String()},
		},
		Deliveries: v.deliveriesView(d.deliveries, self, uuid.Nil),
		Attempts:   v.attemptsView(d.attempts, true, reveal),
		Payload:    v.payloadView(d.Payload, self, reveal),
	}
	if d.Seq != nil {
		view.Facts = append(view.Facts, fact{Name: v.L.Sequence, Value: v.number(int(*d.Seq))})
	}
	view.Deliveries.Live = !v.scope.platform && (view.Deliveries.Live || d.Seq == nil)
	return view
}

func (v *visit) deliveriesView(rows []db.DeliveryRow, self string, current uuid.UUID) deliveriesView {
	view := deliveriesView{L: v.L, URL: v.scope.url(self)}
	for _, d := range rows {
		row := deliveryRow{
			ID: d.ID.String(), Consumer: d.Consumer, Destination: deref(d.URL), Status: v.badge(d.Status),
			Attempts: fmt.Sprintf("%d/%d", d.Attempts, d.MaxAttempts), Error: short(maskText(deref(d.LastError))), Current: d.ID == current,
		}
		if d.NextAttemptAt != nil {
			row.Next = v.at(*d.NextAttemptAt)
		}
		if d.Status == "dead" || d.Status == "uncertain" || d.Status == "discarded" {
			row.URL = v.scope.url("/admin/dlq/" + row.ID)
		}
		view.Live = view.Live || d.Status == "pending" || d.Status == "processing"
		view.Rows = append(view.Rows, row)
	}
	// A look across organizations is audited, each time: such a page stays still.
	view.Live = view.Live && !v.scope.platform
	return view
}

func (v *visit) attemptsView(rows []db.AttemptRow, named, reveal bool) attemptsView {
	view := attemptsView{L: v.L}
	for _, a := range rows {
		row := attemptRow{
			Number: v.text("AttemptNumber", "N", v.number(a.Number)), Status: v.badge(a.Outcome), Started: v.at(a.StartedAt),
			Took:  v.text("Took", "N", v.number(int(a.Duration/time.Millisecond))),
			Error: v.masked(deref(a.Error), reveal), Response: v.masked(deref(a.Response), reveal),
		}
		row.ResponseLabel = v.L.Response + " " + row.Number
		if named {
			row.Consumer = a.Consumer
		}
		view.Rows = append(view.Rows, row)
	}
	return view
}

func (v *visit) payloadView(payload []byte, self string, reveal bool) payloadView {
	view := payloadView{L: v.L, Open: reveal}
	var hidden int
	view.Text, hidden = printPayload(payload, reveal)
	if hidden > 0 {
		view.Note = v.count("MaskedCount", hidden)
	}
	if !reveal && v.scope.mayShow {
		view.RevealURL = v.scope.url(self, "reveal", "1") + "#payload"
	}
	return view
}

// masked hides personal data in a text unless it is to be shown.
func (v *visit) masked(text string, reveal bool) string {
	if reveal {
		return text
	}
	return maskText(text)
}
