package admin

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
)

// action is what a person decides about dead deliveries.
type action string

const (
	replay      action = "replay"
	discard     action = "discard"
	confirmDone action = "confirm" // what nobody knows to have happened has happened
)

// confirm asks on a page of its own before anything happens.
func (c *console) confirm(act action) func(w http.ResponseWriter, r *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		if err := c.mayAct(r); err != nil {
			return err
		}
		ids, err := chosen(r.URL.Query())
		if err != nil {
			return c.nothingChosen(w, r, err)
		}
		return c.renderConfirm(w, r, http.StatusOK, act, ids, "")
	}
}

func (c *console) renderConfirm(w http.ResponseWriter, r *http.Request, status int, act action, ids []uuid.UUID, alert string) error {
	v := visitOf(r)
	rows, err := c.deadByID(r, ids)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return bus.ErrNotFound
	}
	view := v.confirmView(c.frame(r, v.title(act)), act, rows)
	view.Reason, view.Back, view.Alert = r.FormValue("reason"), backFilter(r).query(), alert
	view.Cancel = v.backURL(r)
	render(w, r, status, confirmPage(view))
	return nil
}

// actTimeout bounds one posted decision, below what the server gives an answer.
const actTimeout = 50 * time.Second

// carryOut does what was confirmed, each delivery for itself, and says what became
// of how many.
func (c *console) carryOut(act action) func(w http.ResponseWriter, r *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), actTimeout)
		defer cancel()
		r = r.WithContext(ctx)
		if err := c.mayAct(r); err != nil {
			return err
		}
		ids, err := chosen(r.PostForm)
		if err != nil {
			return c.nothingChosen(w, r, err)
		}
		rows, err := c.deadByID(r, ids)
		if err != nil {
			return err
		}
		var t tally
		for _, row := range rows {
			err := c.decide(r, act, row)
			if field, ok := errors.AsType[*bus.FieldError](err); ok {
				return c.renderConfirm(w, r, http.StatusUnprocessableEntity, act, ids, visitOf(r).fieldFault(field))
			}
			if err := t.count(err); err != nil {
				// What was done is done, and the next page says so.
				c.sessions.Put(r.Context(), sessionFlash, visitOf(r).outcome(act, t))
				return err
			}
		}
		t.gone += len(ids) - len(rows)
		v := visitOf(r)
		c.sessions.Put(r.Context(), sessionFlash, v.outcome(act, t))
		http.Redirect(w, r, v.backURL(r), http.StatusSeeOther)
		return nil
	}
}

// decide carries out one decision in a transaction of its own.
func (c *console) decide(r *http.Request, act action, row db.DeadDelivery) error {
	// A browser counts a line's end as one character and sends two.
	reason := strings.TrimSpace(strings.ReplaceAll(r.PostFormValue("reason"), "\r\n", "\n"))
	return c.db.InOrg(r.Context(), row.OrgID, visitOf(r).actor(r), func(t *db.OrgTx) error {
		switch act {
		case replay:
			return t.Replay(r.Context(), row.ID, reason)
		case confirmDone:
			return t.ConfirmDone(r.Context(), row.ID, reason)
		default:
			return t.Discard(r.Context(), row.ID, reason)
		}
	})
}

// tally is what became of the deliveries of one decision.
type tally struct {
	done int
	gone int // not dead any more, or their destination is gone
}

// count adds the outcome of one delivery; an error that is no outcome comes back.
func (t *tally) count(err error) error {
	switch {
	case err == nil:
		t.done++
	case errors.Is(err, bus.ErrConflict), errors.Is(err, bus.ErrNotFound):
		t.gone++
	default:
		return err
	}
	return nil
}

// mayAct refuses who may not decide.
func (c *console) mayAct(r *http.Request) error {
	if visitOf(r).scope.mayAct {
		return nil
	}
	return c.deny(r, "delivery", uuid.Nil)
}

// deny audits a refusal and returns it.
func (c *console) deny(r *http.Request, kind string, id uuid.UUID) error {
	const denied = "authz.denied"
	v := visitOf(r)
	var err error
	if v.scope.all() {
		err = c.db.Record(r.Context(), v.actor(r), denied, kind, id)
	} else {
		err = c.db.InOrg(r.Context(), v.scope.org, v.actor(r), func(t *db.OrgTx) error {
			return t.Record(r.Context(), denied, kind, id)
		})
	}
	if err != nil {
		return err
	}
	return errForbidden
}

// deadByID loads deliveries of whatever the person looks at.
func (c *console) deadByID(r *http.Request, ids []uuid.UUID) (rows []db.DeadDelivery, err error) {
	v := visitOf(r)
	if v.scope.all() {
		return c.db.DeadEverywhereByID(r.Context(), v.actor(r), ids...)
	}
	err = c.inScope(r, func(t *db.OrgTx) error {
		rows, err = t.DeadByID(r.Context(), ids...)
		return err
	})
	return rows, err
}

var errNothingChosen = errors.New("no delivery is chosen")

// chosen reads the ids of the deliveries to decide about.
func chosen(form url.Values) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	for _, text := range form["id"] {
		id, err := uuid.Parse(text)
		if err != nil {
			return nil, bus.Invalid("id", "must be an id")
		}
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil, errNothingChosen
	}
	if len(ids) > pageSize {
		return nil, bus.Invalid("id", "at most 50 at once")
	}
	return ids, nil
}

// nothingChosen sends who pressed a button without choosing back to the list.
func (c *console) nothingChosen(w http.ResponseWriter, r *http.Request, err error) error {
	if !errors.Is(err, errNothingChosen) {
		return err
	}
	v := visitOf(r)
	c.sessions.Put(r.Context(), sessionFlash, v.L.NothingChosen)
	http.Redirect(w, r, v.backURL(r), http.StatusSeeOther)
	return nil
}

// backURL is the list that the person came from.
func (v *visit) backURL(r *http.Request) string {
	return v.scope.url("/admin/dlq", backFilter(r).pairs()...)
}

func backFilter(r *http.Request) filter {
	q, err := url.ParseQuery(r.FormValue("back"))
	if err != nil {
		return filter{}
	}
	return filterOf(q)
}
