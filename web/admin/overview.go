package admin

import (
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db"
)

// recentEvents is how many events the overview lists.
const recentEvents = 15

func (c *console) showOverview(w http.ResponseWriter, r *http.Request) error {
	v := visitOf(r)
	paused, err := c.db.PausedConsumers(r.Context())
	if err != nil {
		return err
	}
	if v.scope.all() {
		list, err := c.db.OrganizationsDead(r.Context(), v.actor(r))
		if err != nil {
			return err
		}
		render(w, r, http.StatusOK, organizationsPage(v.organizationsView(c.frame(r, v.L.Overview), list, paused)))
		return nil
	}
	o := overview{paused: paused}
	err = c.inScope(r, func(t *db.OrgTx) (err error) {
		if o.Overview, err = t.Overview(r.Context()); err != nil {
			return err
		}
		if o.events, err = t.Events(r.Context(), db.EventFilter{Limit: recentEvents, Bare: true}); err != nil {
			return err
		}
		o.webhooks, err = t.Subscriptions(r.Context(), db.Page{Limit: db.MaxPage})
		return err
	})
	if err != nil {
		return err
	}
	render(w, r, http.StatusOK, overviewPage(v.overviewView(c.frame(r, v.L.Overview), o)))
	return nil
}

// overview is what the page of the overview is made of.
type overview struct {
	db.Overview
	events   []db.EventRow
	webhooks []db.Subscription
	paused   []db.PausedConsumer
}

// showEvent shows what became of one event for each consumer.
func (c *console) showEvent(w http.ResponseWriter, r *http.Request) error {
	v := visitOf(r)
	id, err := uuid.Parse(chi.URLParam(r, "id"))
	if err != nil || v.scope.all() {
		return errNoPage
	}
	var d eventDetail
	reveal := r.URL.Query().Get("reveal") == "1"
	if reveal && !v.scope.mayShow {
		return c.deny(r, "event", id)
	}
	err = c.inScope(r, func(t *db.OrgTx) (err error) {
		if d.EventRow, err = t.Event(r.Context(), id); err != nil {
			return err
		}
		if d.deliveries, err = t.EventDeliveries(r.Context(), id); err != nil {
			return err
		}
		ids := make([]uuid.UUID, len(d.deliveries))
		for i, row := range d.deliveries {
			ids[i] = row.ID
		}
		if d.attempts, err = t.Attempts(r.Context(), maxAttempts, ids...); err != nil {
			return err
		}
		return v.reveal(r, t, reveal, "event", id)
	})
	if err != nil {
		return err
	}
	render(w, r, http.StatusOK, eventPage(v.eventView(c.frame(r, v.L.Event), d, reveal)))
	return nil
}

// eventDetail is what the page of an event is made of.
type eventDetail struct {
	db.EventRow
	deliveries []db.DeliveryRow
	attempts   []db.AttemptRow
}
