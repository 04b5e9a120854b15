package inbound_test

import (
	"bytes"
	"os"
	"path"
	"strconv"
	"testing"
	"time"

	"github.com/deskcomm/deskcomm/bus/waha"
	"github.com/deskcomm/deskcomm/db"
)

// A message is old by the database's clock. What the host takes for the time of
// the post may be hours off.
func TestAMessageIsNotOldBecauseTheHostsClockLies(t *testing.T) {
	t.Parallel()
	g := setup(t, "")
	body, err := os.ReadFile("../../bus/waha/testdata/samples/message.gows.text-dm-phone.json")
	if err != nil {
		t.Fatal(err)
	}
	channel, err := g.db.InboundChannel(t.Context(), path.Base(g.path))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	body = bytes.ReplaceAll(body, []byte("1783170100"), []byte(strconv.FormatInt(now.Unix(), 10)))
	envelope, err := waha.ParseEnvelope(body)
	if err != nil {
		t.Fatal(err)
	}
	envelope.ReceivedAt = now.Add(2 * time.Hour)
	result, err := g.db.Ingest(t.Context(), channel, db.InboundPost{Envelope: envelope, Body: body})
	if err != nil || result.Status != db.InboundProcessed {
		t.Fatalf("Ingest() = %+v, %v, want it processed", result, err)
	}
	if n := g.count("select count(*) from event_log where organization_id = $1 and event_type = 'message.received' and not payload ? 'stale'"); n != 1 {
		t.Errorf("%d fresh messages received, want 1", n)
	}
}
