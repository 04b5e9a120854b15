package db

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"

	"github.com/deskcomm/deskcomm/bus"
)

const (
	groupWriters = 2       // commit at the same time: while the disk works for one the other's rows are made
	groupRows    = 500     // of one commit at most
	groupBytes   = 4 << 20 // of one commit at most, and the event that passes it
	groupWaiting = 4096    // callers that may wait; who comes later waits for a place
)

// group lets callers that emit at the same time share commits. A caller is
// answered after the commit that holds its event. Nobody waits for others to
// come: while a writer is free it takes whoever is there, and those who come
// while all of them commit are taken together when one is free again.
//
// Each event is judged by itself, as the owner of the tables and under the
// organization that its caller names: what is refused fails alone. A batch that
// Postgres refuses as a whole is tried again in halves, down to the event that is
// the reason. One whose connection is lost is tried again unless it was committed,
// which is found out; as long as nobody can tell, its callers get an error.
type group struct {
	db   *DB
	room chan struct{} // holds one for each that waits

	mu      sync.Mutex
	queue   []*grouped
	writers int
	closed  bool
	writing sync.WaitGroup
}

func newGroup(d *DB) *group { return &group{db: d, room: make(chan struct{}, groupWaiting)} }

// grouped is what one caller wants to be emitted, and what becomes of it.
type grouped struct {
	org      uuid.UUID
	actor    Actor
	ev       NewEvent
	metadata string
	once     *Once

	left    atomic.Bool // by its caller before a writer took it, or by the queue for a writer
	done    chan struct{}
	verdict verdict // to be read when done is closed
}

// verdict is how one event of a batch ended.
type verdict struct {
	emitted Emitted
	answer  Answer // to a request that is made once
	again   bool   // the answer is an earlier one
	err     error
}

// Once makes an emission safe to repeat, as [OrgTx.Recall] and [OrgTx.Remember] do.
type Once struct {
	Endpoint string
	Key      string
	Hash     []byte                        // of the request
	Answer   func(Emitted) (Answer, error) // what is kept and returned; it must not wait
}

// EmitGrouped appends an event, in a commit that it shares with those who emit at
// the same time. Bad input is a *bus.FieldError. When ctx ends while the commit is
// under way the event may be emitted.
func (d *DB) EmitGrouped(ctx context.Context, org uuid.UUID, actor Actor, ev NewEvent) (Emitted, error) {
	v := d.group.emit(ctx, &grouped{org: org, actor: actor, ev: ev})
	return v.emitted, v.err
}

// EmitOnce is EmitGrouped for a request that may be repeated: it returns the
// answer that is kept under the key, and whether that is an earlier one. A request
// with the key that is under way is ErrInFlight, the key of another request a
// *bus.FieldError.
func (d *DB) EmitOnce(ctx context.Context, org uuid.UUID, actor Actor, ev NewEvent, once Once) (answer Answer, again bool, err error) {
	if err := checkIdempotencyKey(once.Key); err != nil {
		return Answer{}, false, err
	}
	v := d.group.emit(ctx, &grouped{org: org, actor: actor, ev: ev, once: &once})
	return v.answer, v.again, v.err
}

func (g *group) emit(ctx context.Context, e *grouped) verdict {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if _, dedup := e.ev.Metadata["idempotency_key"]; dedup {
		// It may have to wait for another transaction that uses its key: nobody else
		// should wait with it.
		return e.alone(ctx, g.db)
	}
	var err error
	if e.metadata, err = eventMetadata(e.actor, e.ev.Metadata); err != nil {
		return verdict{err: err}
	}
	e.done = make(chan struct{})
	if err := g.wait(ctx, e); err != nil {
		return verdict{err: wrap("emit "+string(e.ev.Type), err)}
	}
	e.verdict.err = wrap("emit "+string(e.ev.Type), e.verdict.err)
	return e.verdict
}

// wait puts e into the queue and returns when it has its verdict, or ctx ends.
func (g *group) wait(ctx context.Context, e *grouped) error {
	select {
	case g.room <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := g.enter(e); err != nil {
		return err
	}
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
		e.left.Store(true) // if no writer has taken it yet none will
		return ctx.Err()
	}
}

var errClosing = fmt.Errorf("%w: the connections are being closed", bus.ErrUnavailable)

// enter puts e into the queue, and starts a writer if there may be one more.
func (g *group) enter(e *grouped) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		<-g.room
		return errClosing
	}
	g.queue = append(g.queue, e)
	if g.writers < groupWriters {
		g.writers++
		g.writing.Go(g.write)
	}
	return nil
}

// write commits batches until nobody waits.
func (g *group) write() {
	for batch := g.take(); len(batch) > 0; batch = g.take() {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		g.commit(ctx, batch, txTries)
		cancel()
	}
}

// take returns what is committed next; when it is nothing the writer has ended.
func (g *group) take() []*grouped {
	g.mu.Lock()
	defer g.mu.Unlock()
	var batch []*grouped
	n, size := 0, 0
	for _, e := range g.queue {
		if len(batch) == groupRows || size >= groupBytes {
			break
		}
		n++
		<-g.room
		if e.left.CompareAndSwap(false, true) {
			batch = append(batch, e)
			size += len(e.ev.Payload) + len(e.metadata)
		}
	}
	g.queue = slices.Delete(g.queue, 0, n)
	if len(batch) == 0 {
		g.writers--
	}
	return batch
}

// close refuses who comes from now on, and returns when all others are answered.
func (g *group) close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.writing.Wait()
}

func (e *grouped) end(v verdict) {
	e.verdict = v
	close(e.done)
}

// alone emits e in a transaction of its own.
func (e *grouped) alone(ctx context.Context, d *DB) (v verdict) {
	v.err = d.InOrg(ctx, e.org, e.actor, func(t *OrgTx) (err error) {
		v = verdict{}
		if e.once == nil {
			v.emitted, err = t.Emit(ctx, e.ev)
			return err
		}
		earlier, err := t.Recall(ctx, e.once.Endpoint, e.once.Key, e.once.Hash)
		if err != nil {
			return err
		}
		if earlier != nil {
			v.answer, v.again = *earlier, true
			return nil
		}
		if v.emitted, err = t.Emit(ctx, e.ev); err != nil {
			return err
		}
		if v.answer, err = e.once.Answer(v.emitted); err != nil {
			return err
		}
		return t.Remember(ctx, e.once.Endpoint, e.once.Key, e.once.Hash, v.answer)
	})
	return v
}

// payload is what the log takes of e.
func (e *grouped) payload() json.RawMessage { return orEmptyObject(e.ev.Payload) }
