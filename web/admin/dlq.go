package admin

import (
	"errors"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

// pageSize is how many rows a page of the list has, which is also how many one
// decision may take.
const pageSize = 50

// listDead shows what waits for a person. A filter that cannot be read shows
// itself, with what is wrong, and no rows.
func (c *console) listDead(w http.ResponseWriter, r *http.Request) error {
	v := visitOf(r)
	f := filterOf(r.URL.Query())
	wanted, err := f.forStore(v.scope.zone)
	var list deadList
	status := http.StatusOK
	if field, ok := errors.AsType[*bus.FieldError](err); ok {
		list.alert, status = v.fieldFault(field), http.StatusBadRequest
	} else if err != nil {
		return err
	} else if list, err = c.deadList(r, wanted); err != nil {
		return err
	}
	list.organizations = v.person.Memberships
	render(w, r, status, deadListPage(v.deadListView(c.frame(r, v.L.DeadLetters), f, list)))
	return nil
}

// deadList is what the page of the list is made of.
type deadList struct {
	rows          []db.DeadDelivery
	total         int
	names         db.DeadNames
	organizations []db.Membership // the person's own
	alert         string
}

func (c *console) deadList(r *http.Request, f db.DeadFilter) (list deadList, err error) {
	f.Limit = pageSize + 1
	v := visitOf(r)
	if v.scope.all() {
		list.rows, list.total, err = c.db.DeadEverywhere(r.Context(), v.actor(r), f)
		for _, t := range bus.Catalogue() {
			list.names.Types = append(list.names.Types, string(t))
		}
		return list, err
	}
	err = c.inScope(r, func(t *db.OrgTx) error {
		if list.rows, err = t.DeadDeliveries(r.Context(), f); err != nil {
			return err
		}
		if list.total, err = t.CountDead(r.Context(), f); err != nil {
			return err
		}
		list.names, err = t.DeadNames(r.Context())
		return err
	})
	return list, err
}

// countNews tells how much has died since the list was shown: the rows under the
// reader's hand stay where they are.
func (c *console) countNews(w http.ResponseWriter, r *http.Request) error {
	v := visitOf(r)
	f := filterOf(r.URL.Query())
	f.Before = ""
	wanted, err := f.forStore(v.scope.zone)
	if err != nil {
		return err
	}
	if after := r.URL.Query().Get("after"); after != "" {
		at, id, ok := readCursor(after)
		if !ok {
			return bus.Invalid("after", "must be what the list has")
		}
		wanted.AfterAt, wanted.AfterID = &at, uuid.NullUUID{UUID: id, Valid: true}
	}
	n := 0
	err = c.inScope(r, func(t *db.OrgTx) error {
		n, err = t.CountDead(r.Context(), wanted)
		return err
	})
	if err != nil {
		return err
	}
	render(w, r, http.StatusOK, newsPart(v.newsView(f, n)))
	return nil
}

// showDead shows one delivery that died: what failed, what was tried, what became
// of the event for the others.
func (c *console) showDead(w http.ResponseWriter, r *http.Request) error {
	v := visitOf(r)
	id, err := uuid.Parse(chi.URLParam(r, "id"))
	if err != nil {
		return errNoPage
	}
	if v.scope.all() {
		return c.toOrganizationOf(w, r, id)
	}
	var d deadDetail
	reveal := r.URL.Query().Get("reveal") == "1"
	if reveal && !v.scope.mayShow {
		return c.deny(r, "delivery", id)
	}
	err = c.inScope(r, func(t *db.OrgTx) error {
		if d.DeadDelivery, err = t.DeadDelivery(r.Context(), id); err != nil {
			return err
		}
		if d.others, err = t.EventDeliveries(r.Context(), d.EventID); err != nil {
			return err
		}
		if d.attempts, err = t.Attempts(r.Context(), maxAttempts, id); err != nil {
			return err
		}
		return v.reveal(r, t, reveal, "delivery", id)
	})
	if err != nil {
		return err
	}
	render(w, r, http.StatusOK, deadPage(v.deadView(c.frame(r, v.L.DeadDelivery), d, reveal)))
	return nil
}

// maxAttempts is how many tries a page lists.
const maxAttempts = 100

// deadDetail is what the page of a dead delivery is made of.
type deadDetail struct {
	db.DeadDelivery
	others   []db.DeliveryRow // all deliveries of the event, this one too
	attempts []db.AttemptRow
}

// toOrganizationOf redirects a link without an organization to the one that the
// delivery is of.
func (c *console) toOrganizationOf(w http.ResponseWriter, r *http.Request, id uuid.UUID) error {
	rows, err := c.db.DeadEverywhereByID(r.Context(), visitOf(r).actor(r), id)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return bus.ErrNotFound
	}
	http.Redirect(w, r, scope{param: rows[0].OrgID.String()}.url("/admin/dlq/"+id.String()), http.StatusSeeOther)
	return nil
}

// reveal audits that personal data is shown, if it is asked for.
func (v *visit) reveal(r *http.Request, t *db.OrgTx, asked bool, kind string, id uuid.UUID) error {
	if !asked {
		return nil
	}
	return t.Record(r.Context(), "payload.revealed", kind, id)
}
