package inbound_test

import (
	"net/http"
	"os"
	"testing"

	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// A gateway's post is a fact that has happened: who refuses it loses it.
func TestPostsAreTakenUnderHighPressure(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	g := setupOn(t, dbtest.Open(t, url, db.Options{}), url, secret)
	_, err := dbtest.Exec(t, url, `insert into outbox (emit_no, event_id, organization_id, event_type, created_at) overriding system value
		select n, gen_random_uuid(), $1, 'custom.x', clock_timestamp() - interval '1 hour' from unnest(array[1000001, 1100000]) n`, g.org)
	if err != nil {
		t.Fatal(err)
	}
	if got := g.db.Pressure(t.Context(), g.org); got != db.PressureHigh {
		t.Fatalf("the pressure is %s, want high", got)
	}
	body, err := os.ReadFile("../../bus/waha/testdata/samples/message.gows.text-dm-phone.json")
	if err != nil {
		t.Fatal(err)
	}
	if status, answer := g.signed(body); status != http.StatusOK {
		t.Errorf("a post under high pressure = %d %v, want 200", status, answer)
	}
	if n := g.count("select count(*) from event_log where organization_id = $1 and event_type = 'message.received'"); n != 1 {
		t.Errorf("%d messages are received, want the one", n)
	}
}
