package api

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
	"github.com/deskcomm/deskcomm/web/problem"
)

// pressed is an API whose organization has n deliveries due, on a database of its
// own, and what changes that database.
func pressed(t *testing.T, n int) (w *world, exec func(sql string, args ...any)) {
	t.Helper()
	url := dbtest.Fresh(t)
	w = over(t, dbtest.Open(t, url, db.Options{}))
	exec = func(sql string, args ...any) {
		t.Helper()
		if _, err := dbtest.Exec(t, url, sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec(`insert into consumers (name, event_types, effect, retry_steps, retry_jitter, max_attempts) values ('busy-worker', '{custom.x}', 'local', '{}', 0, 1)`)
	exec(`insert into delivery (consumer_id, destination, organization_id, seq, event_id, due_at)
		select c.id, $2, $1, -n, gen_random_uuid(), clock_timestamp() from consumers c cross join generate_series(1, $3::int) n`, w.org, uuid.Nil, n)
	return w, exec
}

// wantRefusal fails the test unless the answer asks to come back later, and
// returns when.
func (a answer) wantRefusal() int {
	a.t.Helper()
	p, _ := a.problem(http.StatusTooManyRequests)
	after, err := strconv.Atoi(a.header.Get("Retry-After"))
	if p.Code != problem.CodePressure || err != nil || after < yieldMin || after > yieldMin+yieldJitter {
		a.t.Errorf("refusal = %s with Retry-After %q, want pressure and some seconds", p.Code, a.header.Get("Retry-After"))
	}
	return after
}

func TestEmissionsTellThePressureTheyMeet(t *testing.T) {
	t.Parallel()
	for level, n := range map[string]int{"normal": 10, "elevated": 5_000} {
		w, _ := pressed(t, n)
		for path, body := range map[string]string{"/v1/events": custom, "/v1/events/batch": `{"events":[` + custom + `]}`, "/v1/jobs": exportJob("")} {
			if got := w.post(path, body).want(http.StatusCreated).fields()["pressure"]; got != level {
				t.Errorf("POST %s with %d deliveries due tells %v, want %s", path, n, got, level)
			}
		}
	}
}

func TestEmissionsUnderHighPressureAreAskedToComeLaterAndNothingElseIs(t *testing.T) {
	t.Parallel()
	w, exec := pressed(t, 20_000)
	other := w.elsewhere()
	seconds := make(map[int]bool)
	for range 20 {
		seconds[w.post("/v1/events", custom, key, "k").wantRefusal()] = true
		w.post("/v1/events/batch", `{"events":[`+custom+`]}`, key, "k").wantRefusal()
		w.post("/v1/jobs", exportJob(""), key, "k").wantRefusal()
		w.post("/v1/events", `{"no json`).wantRefusal() // before the body is looked at
	}
	if len(seconds) == 1 {
		t.Error("all are asked to come back at the same moment")
	}
	w.as("dsk_nobody").post("/v1/events", custom).problem(http.StatusUnauthorized)
	w.as(dbtest.Token(t, w.db, w.org, "crm:read")).post("/v1/events", custom).problem(http.StatusForbidden)

	w.get("/v1/events").want(http.StatusOK)
	w.get("/v1/dlq").want(http.StatusOK)
	w.post("/v1/webhook-subscriptions", `{"url":"https://example.com/hook","event_types":["*"]}`).want(http.StatusCreated)
	if got := other.post("/v1/events", custom).want(http.StatusCreated).fields()["pressure"]; got != "normal" {
		t.Errorf("another organization meets %v, want normal", got)
	}

	exec("delete from delivery")
	dbtest.Eventually(t, "the pressure is gone", func() bool { return w.post("/v1/events", custom, key, "k").status == http.StatusCreated })
	if items, _ := w.get("/v1/events").items(); len(items) != 1 {
		t.Errorf("%d events exist, want the one that was not refused", len(items))
	}
	w.post("/v1/events/batch", `{"events":[`+custom+`]}`, key, "k").want(http.StatusCreated)
	w.post("/v1/jobs", exportJob(""), key, "k").want(http.StatusCreated)
}

func TestARelayThatStandsAsksAllToComeLater(t *testing.T) {
	t.Parallel()
	w, exec := pressed(t, 0)
	exec(`insert into outbox (emit_no, event_id, organization_id, event_type, created_at) overriding system value
		select n, gen_random_uuid(), $1, 'custom.x', clock_timestamp() from unnest(array[1000001, 1100000]) n`, w.org)
	w.post("/v1/events", custom).wantRefusal()
	w.elsewhere().post("/v1/events", custom).wantRefusal()
}
