package db_test

import (
	"context"
	"flag"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/deskcomm/deskcomm/bus"
	"github.com/deskcomm/deskcomm/db"
	"github.com/deskcomm/deskcomm/db/dbtest"
)

var seed = flag.Uint64("seed", 0, "what the random tests draw from; 0 draws a new one, which they tell")

// chance is a source of random choices that can be had again with -seed.
func chance(t *testing.T) *rand.Rand {
	t.Helper()
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	t.Logf("random choices of -seed %d", s)
	return rand.New(rand.NewPCG(s, 0))
}

// A reader at a place has read everything up to it, however late what was
// emitted earlier is committed: the number of an event at its emission would
// hide it, its place does not.
func TestInvariant10FeedMissesNothingInAThousandInterleavingsOfLateCommits(t *testing.T) {
	t.Parallel()
	const parts, each = 4, 250 // of their own databases, side by side
	source := chance(t)
	for range parts {
		draw := rand.New(rand.NewPCG(source.Uint64(), 0))
		t.Run("part", func(t *testing.T) {
			t.Parallel()
			in := newInterleaving(t, draw)
			for range each {
				in.run()
			}
			if n := in.count("select count(*) from event_position where seq > (select count(*) from event_position)"); n != 0 {
				t.Errorf("%d places beyond their number, want them dense", n)
			}
			t.Logf("%d events, of which %d were overtaken by a commit after them; %d rolled back", in.emitted, in.overtaken, in.gone)
		})
	}
}

// session is one connection with the transaction that is open on it.
type session struct {
	conn *pgx.Conn
	tx   pgx.Tx // nil between transactions
	made []written
}

// written is an event of a transaction.
type written struct {
	n   int // which emission it was
	id  uuid.UUID
	org uuid.UUID
	typ bus.Type
}

// follower is a reader of an organization and what it has read.
type follower struct {
	org   uuid.UUID
	query db.FeedQuery
	seq   int64
	read  []uuid.UUID
}

// interleaving is a database whose writers, relay and readers take their steps
// in an order that is drawn.
type interleaving struct {
	world
	draw    *rand.Rand
	orgs    []uuid.UUID
	writers []*session
	relayer *session
	readers []*follower

	committed                []written
	emitted, overtaken, gone int
	last                     int // the latest emission that is committed
}

func newInterleaving(t *testing.T, draw *rand.Rand) *interleaving {
	t.Helper()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{MaxConns: 1})
	in := &interleaving{
		world: world{T: t, db: d, url: url}, draw: draw, orgs: []uuid.UUID{dbtest.Org(t, d), dbtest.Org(t, d)},
		relayer: &session{conn: dbtest.Conn(t, url)},
	}
	for range 4 {
		in.writers = append(in.writers, &session{conn: dbtest.Conn(t, url)})
	}
	for _, org := range in.orgs {
		in.readers = append(in.readers, &follower{org: org}, &follower{org: org, query: db.FeedQuery{Types: []bus.Type{"custom.a"}}})
	}
	return in
}

// run takes a number of steps, then brings everything to its end and compares
// what was committed with what was read.
func (in *interleaving) run() {
	in.committed = in.committed[:0]
	for _, r := range in.readers {
		r.read = nil
	}
	for range 12 + in.draw.IntN(12) {
		switch p := in.draw.IntN(100); {
		case p < 45:
			in.write(in.writers[in.draw.IntN(len(in.writers))])
		case p < 65:
			in.end(in.writers[in.draw.IntN(len(in.writers))])
		case p < 85:
			in.relayStep()
		default:
			in.read(in.readers[in.draw.IntN(len(in.readers))])
		}
	}
	for _, i := range in.draw.Perm(len(in.writers)) {
		in.end(in.writers[i])
		in.read(in.readers[in.draw.IntN(len(in.readers))])
	}
	in.finish(in.relayer, true)
	in.relay()
	for _, r := range in.readers {
		for before := int64(-1); before != r.query.After; {
			before = r.query.After
			in.read(r)
		}
		in.compare(r)
	}
}

// write emits an event in the transaction that is open, or in a new one.
func (in *interleaving) write(s *session) {
	in.begin(s)
	in.emitted++
	w := written{n: in.emitted, org: in.orgs[in.draw.IntN(2)], typ: []bus.Type{"custom.a", "custom.b"}[in.draw.IntN(2)]}
	if err := s.tx.QueryRow(in.Context(), "select emit_event($1, 'thing', null, '{}', '{}', $2)", w.typ, w.org).Scan(&w.id); err != nil {
		in.Fatal(err)
	}
	s.made = append(s.made, w)
}

// end commits what is open, or rolls it back one time in four.
func (in *interleaving) end(s *session) {
	commit := in.draw.IntN(4) > 0
	if in.finish(s, commit); !commit {
		in.gone += len(s.made)
		s.made = nil
	}
	for _, w := range s.made {
		in.committed = append(in.committed, w)
		if w.n < in.last {
			in.overtaken++
		}
		in.last = max(in.last, w.n)
	}
	s.made = nil
}

// relayStep relays a few events, and often leaves that uncommitted. A relay may
// die before it commits.
func (in *interleaving) relayStep() {
	if in.relayer.tx != nil {
		in.finish(in.relayer, in.draw.IntN(5) > 0)
		return
	}
	in.begin(in.relayer)
	if _, err := in.relayer.tx.Exec(in.Context(), "select relay_events($1)", 1+in.draw.IntN(4)); err != nil {
		in.Fatal(err)
	}
	if in.draw.IntN(2) == 0 {
		in.finish(in.relayer, true)
	}
}

func (in *interleaving) begin(s *session) {
	if s.tx != nil {
		return
	}
	var err error
	if s.tx, err = s.conn.Begin(in.Context()); err != nil {
		in.Fatal(err)
	}
}

func (in *interleaving) finish(s *session, commit bool) {
	if s.tx == nil {
		return
	}
	end := s.tx.Rollback
	if commit {
		end = s.tx.Commit
	}
	if err := end(in.Context()); err != nil {
		in.Fatal(err)
	}
	s.tx = nil
}

// read takes one page.
func (in *interleaving) read(r *follower) {
	r.query.Limit = 1 + in.draw.IntN(4)
	r.take(in.world, in.feed(r.org, r.query))
}

// take follows a page and checks that it goes on where the last one has ended.
func (r *follower) take(w world, feed db.Feed) {
	w.Helper()
	for _, ev := range feed.Events {
		if ev.Seq <= r.seq || ev.Seq <= r.query.After || ev.Seq > feed.Cursor {
			w.Errorf("place %d after %d on a page from %d to %d", ev.Seq, r.seq, r.query.After, feed.Cursor)
		}
		if ev.OrgID != r.org || len(r.query.Types) > 0 && !slices.Contains(r.query.Types, ev.Type) {
			w.Errorf("an event of %s for organization %s is not for this reader", ev.Type, ev.OrgID)
		}
		r.seq = ev.Seq
		r.read = append(r.read, ev.ID)
	}
	if feed.Cursor < r.query.After {
		w.Errorf("the cursor went back from %d to %d", r.query.After, feed.Cursor)
	}
	r.query.After = feed.Cursor
}

// compare fails when the reader has not read each of its committed events once.
func (in *interleaving) compare(r *follower) {
	in.Helper()
	want := []uuid.UUID{}
	for _, w := range in.committed {
		if w.org == r.org && (len(r.query.Types) == 0 || slices.Contains(r.query.Types, w.typ)) {
			want = append(want, w.id)
		}
	}
	if diff := cmp.Diff(sorted(want), sorted(r.read)); diff != "" {
		in.Errorf("the reader has not read what was committed (-committed +read):\n%s", diff)
	}
}

func sorted(ids []uuid.UUID) []string {
	text := make([]string, len(ids))
	for i, id := range ids {
		text[i] = id.String()
	}
	slices.Sort(text)
	return text
}

// The same without a script: everybody at once.
func TestInvariant10FeedMissesNothingWhileWritersAndRelaysRunAtOnce(t *testing.T) {
	t.Parallel()
	url := dbtest.Fresh(t)
	d := dbtest.Open(t, url, db.Options{})
	w := world{T: t, db: d, url: url, org: dbtest.Org(t, d)}
	source := chance(t)
	var mu sync.Mutex
	var committed []uuid.UUID
	var writers, others sync.WaitGroup
	for range 6 {
		conn, draw := dbtest.Conn(t, url), rand.New(rand.NewPCG(source.Uint64(), 0))
		writers.Go(func() {
			for range 60 {
				made, err := w.writeSlowly(conn, draw)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				committed = append(committed, made...)
				mu.Unlock()
			}
		})
	}
	written := make(chan struct{})
	open := func() bool {
		select {
		case <-written:
			return false
		default:
			return true
		}
	}
	for range 2 {
		others.Go(func() {
			for open() {
				w.relay()
			}
		})
	}
	reader := follower{org: w.org}
	others.Go(func() {
		for open() && !t.Failed() {
			reader.take(w, w.feed(w.org, db.FeedQuery{After: reader.query.After, Limit: 7}))
		}
	})
	writers.Wait()
	close(written)
	others.Wait()
	w.relay()
	for _, ev := range w.follow(w.org, reader.query) {
		reader.read = append(reader.read, ev.ID)
	}
	if diff := cmp.Diff(sorted(committed), sorted(reader.read)); diff != "" {
		t.Errorf("the reader has not read what was committed (-committed +read):\n%s", diff)
	}
}

// writeSlowly emits a few events in a transaction that commits late, or rolls it
// back one time in four.
func (w world) writeSlowly(conn *pgx.Conn, draw *rand.Rand) ([]uuid.UUID, error) {
	tx, err := conn.Begin(w.Context())
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(context.WithoutCancel(w.Context())) //nolint:errcheck // nothing is left after a commit
	made := make([]uuid.UUID, 1+draw.IntN(3))
	for i := range made {
		if err := tx.QueryRow(w.Context(), "select emit_event('custom.a', 'thing', null, '{}', '{}', $1)", w.org).Scan(&made[i]); err != nil {
			return nil, err
		}
		if _, err := tx.Exec(w.Context(), "select pg_sleep($1)", draw.Float64()*0.004); err != nil {
			return nil, err
		}
	}
	if draw.IntN(4) == 0 {
		return nil, nil
	}
	return made, tx.Commit(w.Context())
}
