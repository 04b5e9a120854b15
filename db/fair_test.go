package db_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// backlogSQL makes n deliveries of an organization due for a consumer, an hour
// ago, with the one event that they all deliver.
const backlogSQL = `
	insert into delivery (consumer_id, destination, organization_id, seq, event_id, due_at)
	select c.id, '00000000-0000-0000-0000-000000000000', $2, greatest((select max(seq) from delivery), 1000000000) + n, $3, clock_timestamp() - interval '1 hour'
	  from consumers c cross join generate_series(1, $4::int) n
	 where c.name = $1`

// blocking is a handler that handles one organization's deliveries and keeps
// those of all others until it is told to go on.
type blocking struct {
	name    string
	quiet   uuid.UUID
	started chan struct{} // one for each that is kept
	handled chan uuid.UUID
}

func (h blocking) Consumer() bus.Consumer {
	return bus.Consumer{
		Name: h.name, Types: []bus.Type{"custom.share"}, Effect: bus.EffectAtLeastOnce,
		Retry: bus.Ladder([]time.Duration{time.Hour}), Concurrency: 8, Timeout: time.Hour,
	}
}

func (h blocking) Handle(ctx context.Context, d *bus.Delivery) error {
	if d.OrgID == h.quiet {
		h.handled <- d.Event.ID
		return nil
	}
	h.started <- struct{}{}
	<-ctx.Done()
	return ctx.Err()
}

func TestInvariant12AnEventIsHandledWhileAHundredThousandOfAnotherOrganizationHang(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	noisy := world{T: t, db: d, url: url, org: dbtest.Org(t, d)}
	quiet := world{T: t, db: d, url: url, org: dbtest.Org(t, d)}
	h := blocking{name: "share-worker", quiet: quiet.org, started: make(chan struct{}, 100), handled: make(chan uuid.UUID, 100)}
	if err := d.RegisterConsumers(t.Context(), []bus.Consumer{h.Consumer()}); err != nil {
		t.Fatal(err)
	}
	event := noisy.emit("custom.other")
	noisy.exec(backlogSQL, h.name, noisy.org, event, 100_000)

	wake := make(chan struct{}, 1)
	drainer := bus.Drainer{
		Log: d, Handlers: []bus.Handler{h}, Poll: time.Hour, Wake: wake, Logger: slog.New(slog.DiscardHandler),
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- drainer.Run(ctx) }()
	dbtest.Eventually(t, "all slots are the noisy organization's", func() bool { return len(h.started) == h.Consumer().Concurrency })
	for range 3 {
		want := quiet.emit("custom.share")
		quiet.relay()
		wake <- struct{}{}
		dbtest.Eventually(t, "the quiet organization's event is handled", func() bool { return len(h.handled) > 0 })
		if got := <-h.handled; got != want {
			t.Errorf("handled %s, want %s", got, want)
		}
	}
	held := noisy.count("select count(*) from delivery where organization_id = $1 and lease_token is not null", noisy.org)
	if held != h.Consumer().Concurrency {
		t.Errorf("%d deliveries of the noisy organization are in hand, want the %d slots that it had alone", held, h.Consumer().Concurrency)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run() = %v", err)
	}
}
