package db_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

// poster is a handler that posts the id of the event to a receiver.
type poster struct {
	consumer bus.Consumer
	url      string
	client   *http.Client
}

func (w world) poster(effect bus.Effect, typ bus.Type, url string) poster {
	return poster{
		consumer: bus.Consumer{
			Name: roleName("post"), Types: []bus.Type{typ}, Effect: effect, Retry: bus.Ladder([]time.Duration{time.Hour, time.Hour}),
			Concurrency: 2, Timeout: time.Hour,
		},
		url:    url,
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, // it never sends again by itself
	}
}

func (h poster) Consumer() bus.Consumer { return h.consumer }

func (h poster) Handle(ctx context.Context, d *bus.Delivery) error {
	once := h.consumer.Effect == bus.EffectOnce
	if once {
		if err := d.BeginEffect(ctx); err != nil {
			return err
		}
	}
	err := h.post(ctx, d.Event.ID)
	if err != nil && once {
		return bus.Uncertain(err)
	}
	return err
}

func (h poster) post(ctx context.Context, event uuid.UUID) error {
	body, err := json.Marshal(event)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	res, err := h.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // only the status matters
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %d", res.StatusCode)
	}
	return nil
}

// A receiver keeps its answer back. Nothing waits for it: no emission, no other
// reader, no transaction.
func TestInvariant3NothingWaitsForAReceiverThatKeepsItsAnswerBack(t *testing.T) {
	t.Parallel()
	w := alone(t)
	for round := range rounds {
		got, answer := make(chan struct{}, 1), make(chan struct{})
		receiver := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
			io.Copy(io.Discard, req.Body) //nolint:errcheck,gosec // only that it came matters
			got <- struct{}{}
			select {
			case <-answer:
				rw.WriteHeader(http.StatusOK)
			case <-req.Context().Done():
			}
		}))
		t.Cleanup(receiver.Close)
		typ, quick := ownType(), ownType()
		slow := w.poster(bus.EffectAtLeastOnce, typ, receiver.URL)
		local := effector{name: roleName("crm"), types: []bus.Type{typ, quick}, made: ownType(), log: w.db}
		w.register(slow, local)
		stop := drain(t, w.db, slow, local)

		held := w.emit(typ)
		w.relay()
		<-got
		other := w.emit(quick)
		w.relay()
		done := func(event uuid.UUID) bool { return w.states(event)[local.name] == "done 1/8" }
		dbtest.Eventually(t, "the other reader has both", func() bool { return done(held) && done(other) })
		if a, b := w.effects(local, held), w.effects(local, other); a != 1 || b != 1 {
			t.Errorf("round %d: %d and %d effects of the other reader, want one each", round, a, b)
		}
		if got := w.states(held)[slow.consumer.Name]; got != "processing 0/3" {
			t.Errorf("round %d: the delivery that waits for an answer is %q, want it processing", round, got)
		}
		open := w.count("select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in transaction%'")
		if open != 0 {
			t.Errorf("round %d: %d transactions are open while a receiver keeps its answer back, want none", round, open)
		}
		close(answer)
		dbtest.Eventually(t, "the held one is done", func() bool { return w.states(held)[slow.consumer.Name] == "done 1/3" })
		stop()
	}
}

// bookSQL is what a receiver keeps of what it was sent.
const bookSQL = `create table receiver_book (event_id uuid not null, at timestamptz not null default clock_timestamp())`

// newBookkeeper is a receiver that commits each effect by a connection of its own
// and then cuts the line instead of answering.
func (w world) newBookkeeper() *httptest.Server {
	w.Helper()
	receiver := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		var event uuid.UUID
		if err := json.NewDecoder(req.Body).Decode(&event); err != nil {
			w.Error(err)
		}
		if _, err := dbtest.Exec(w.T, w.url, "insert into receiver_book (event_id) values ($1)", event); err != nil {
			w.Error(err)
		}
		conn, _, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			w.Error(err)
			return
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			tcp.SetLinger(0) //nolint:errcheck,gosec // a reset instead of an end, when it can be had
		}
		conn.Close() //nolint:errcheck,gosec // it is cut
	}))
	w.Cleanup(receiver.Close)
	return receiver
}

// The effect has happened and nobody said so. It is not known to this side, which
// does not guess: it neither repeats it nor calls it done.
func TestInvariant9EffectWhoseAnswerIsLostStaysUncertainAndIsNeverClaimedAgain(t *testing.T) {
	t.Parallel()
	w := alone(t)
	w.exec(bookSQL)
	receiver := w.newBookkeeper()
	for round := range rounds {
		typ := ownType()
		h := w.poster(bus.EffectOnce, typ, receiver.URL)
		w.register(h)
		stop := drain(t, w.db, h)
		uncertain := func(event uuid.UUID) bool { return w.states(event)[h.consumer.Name] == "uncertain 1/3" }
		book := func(event uuid.UUID) int {
			return w.count("select count(*) from receiver_book where event_id = $1", event)
		}

		event := w.emit(typ)
		w.relay()
		dbtest.Eventually(t, "the delivery is uncertain", func() bool { return uncertain(event) })
		w.exec("update dead_delivery set died_at = died_at - interval '1 day' where event_id = $1", event) // its lease is long over
		w.later(24 * time.Hour)
		w.exec("insert into outbox (event_id, organization_id, event_type, created_at) values ($1, $2, $3, clock_timestamp())", event, w.org, typ)
		w.relay()
		next := w.emit(typ) // when it has ended the drainer has looked for work again
		w.relay()
		dbtest.Eventually(t, "the next is uncertain", func() bool { return uncertain(next) })
		stop()
		if got := w.claim(h.consumer.Name, 10); len(got) != 0 {
			t.Errorf("round %d: claimed %d deliveries, want none", round, len(got))
		}
		if a, b := book(event), book(next); a != 1 || b != 1 {
			t.Errorf("round %d: the receiver's book has %d and %d, want one each", round, a, b)
		}
		if got, want := w.states(event), map[string]string{h.consumer.Name: "uncertain 1/3"}; !cmp.Equal(got, want) {
			t.Errorf("round %d: states %v, want %v", round, got, want)
		}
		if n := w.count("select cardinality(consumed_by) from event_log_status where id = $1", event); n != 0 {
			t.Errorf("round %d: the status calls the event read", round)
		}
	}
}
