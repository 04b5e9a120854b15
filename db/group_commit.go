package db

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/deskcomm/deskcomm/bus"
)

// commit answers each caller of a batch, with tries to begin it with.
func (g *group) commit(ctx context.Context, batch []*grouped, tries int) {
	verdicts, err := g.try(ctx, batch)
	again := tries > 1 && ctx.Err() == nil
	switch {
	case err == nil:
		for i, e := range batch {
			e.end(verdicts[i])
		}
	case again && lost(err):
		g.commit(ctx, batch, tries-1)
	case len(batch) > 1 && ofOne(err):
		g.commit(ctx, batch[:len(batch)/2], tries)
		g.commit(ctx, batch[len(batch)/2:], tries)
	case again && rolledBack(err):
		g.commit(ctx, batch, tries-1)
	default:
		for _, e := range batch {
			e.end(verdict{err: err})
		}
	}
}

// lost reports whether the connection ended before anything was committed.
func lost(err error) bool {
	if pg, answered := errors.AsType[*pgconn.PgError](err); answered {
		return strings.HasPrefix(pg.Code, "57P") || strings.HasPrefix(pg.Code, "08")
	}
	return unreachable(err)
}

// ofOne reports whether one event may be the reason why a batch was refused; what
// the server as a whole cannot do, it cannot do for half of them either.
func ofOne(err error) bool {
	return rolledBack(err) || !errors.Is(translate(err), bus.ErrUnavailable)
}

// try puts a batch into one transaction. Without an error all of it is committed.
func (g *group) try(ctx context.Context, batch []*grouped) ([]verdict, error) {
	tx, err := g.db.pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(ctx) //nolint:errcheck // after the commit it does nothing, and else there is nothing to save
	verdicts := make([]verdict, len(batch))
	wanted, err := g.recall(ctx, tx, batch, verdicts)
	if err != nil {
		return nil, err
	}
	made, err := g.append(ctx, tx, batch, wanted, verdicts)
	if err != nil || made.event == uuid.Nil {
		return verdicts, err
	}
	if err := g.remember(ctx, tx, batch, wanted, verdicts); err != nil {
		return nil, err
	}
	if err := tx.Commit(ctx); err != nil {
		if err := g.judge(ctx, made, err); err != nil {
			return nil, err
		}
	}
	g.db.emitted()
	return verdicts, nil
}

const emitGroupSQL = `
	with given as materialized (
	    select u.n, uuid_v7(u.at) as id, u.at, u.org, u.event_type, u.entity_kind, u.entity_id, u.payload, u.metadata,
	           coalesce(event_fault(u.event_type, u.entity_kind, u.payload, u.metadata, u.org, null),
	                    case when not exists (select from organizations where id = u.org) then 'organization_id: must be an organization that exists' end) as fault
	      from (
	        -- A microsecond apart, so that their ids sort as they do.
	        select u.*, b.at + u.n * interval '1 microsecond' as at
	          from (select clock_timestamp() as at) b
	         cross join unnest(@event_types::text[], @entity_kinds::text[], @entity_ids::uuid[], @payloads::text[]::jsonb[], @metadatas::text[]::jsonb[], @org_ids::uuid[])
	               with ordinality as u (event_type, entity_kind, entity_id, payload, metadata, org, n)
	        offset 0
	      ) u
	), appended as (
	    insert into event_log (id, organization_id, event_type, entity_kind, entity_id, payload, metadata, created_at)
	    select id, org, event_type, entity_kind, entity_id, payload, metadata || jsonb_build_object('emitted_at', extract(epoch from at)), at
	      from given
	     where fault is null
	), waiting as (
	    insert into outbox (event_id, organization_id, event_type, created_at, lane)
	    select id, org, event_type, at, event_lane(entity_kind, entity_id, metadata) from given where fault is null order by n
	)
	select id, at as created_at, coalesce(fault, '') as fault, pg_current_xact_id()::text as transaction from given order by n`

// appended is what the log made of one event of a batch.
type appended struct {
	ID          uuid.UUID
	CreatedAt   time.Time
	Fault       string
	Transaction string
}

// made is how to recognize a transaction that may have been committed.
type made struct {
	transaction string
	event       uuid.UUID // one of those that it has appended
}

// append appends those events of a batch that are wanted and breaks no rule.
func (g *group) append(ctx context.Context, tx pgx.Tx, batch []*grouped, wanted []int, verdicts []verdict) (m made, err error) {
	n := len(wanted)
	if n == 0 {
		return m, nil
	}
	types, kinds := make([]string, n), make([]string, n)
	entities, orgs := make([]uuid.NullUUID, n), make([]uuid.UUID, n)
	payloads, metadatas := make([]string, n), make([]string, n)
	for i, at := range wanted {
		e := batch[at]
		types[i], kinds[i], entities[i], orgs[i] = string(e.ev.Type), e.ev.EntityKind, e.ev.EntityID, e.org
		payloads[i], metadatas[i] = string(e.payload()), e.metadata
	}
	rows, err := collect[appended](ctx, tx, emitGroupSQL, named{
		"event_types": types, "entity_kinds": kinds, "entity_ids": entities, "payloads": payloads, "metadatas": metadatas, "org_ids": orgs,
	})
	if err != nil {
		return m, err
	}
	for i, row := range rows {
		v, ev := &verdicts[wanted[i]], batch[wanted[i]].ev
		if row.Fault != "" {
			v.err = brokenRule(row.Fault)
			continue
		}
		v.emitted = Emitted{
			ID: row.ID, Type: ev.Type, EntityKind: ev.EntityKind, EntityID: ev.EntityID, CreatedAt: row.CreatedAt,
			Pressure: worst(g.db.gauge.last(uuid.Nil), g.db.gauge.last(orgs[i])),
		}
		m = made{transaction: row.Transaction, event: row.ID}
	}
	return m, nil
}

// brokenRule is what refuse_event raises, as its caller sees it.
func brokenRule(fault string) error {
	field, rule, _ := strings.Cut(fault, ": ")
	return bus.Invalid(field, rule)
}

const lockIdempotencyAllSQL = `
	select pg_try_advisory_xact_lock(hashtextextended(place, 0)) from unnest(@places::text[]) with ordinality as p (place, n) order by n`

const recallAnswersSQL = `
	select p.n::int - 1 as n, k.request_hash, k.status_code, k.response
	  from unnest(@org_ids::uuid[], @endpoints::text[], @keys::text[]) with ordinality as p (org, endpoint, key, n)
	  join idempotency_keys k on k.organization_id = p.org and k.endpoint = p.endpoint and k.key = p.key
	 where k.expires_at > clock_timestamp()`

// recall decides about the requests of a batch that are made once, as
// OrgTx.Recall does, and returns which events of the batch are still to be
// emitted.
func (g *group) recall(ctx context.Context, tx pgx.Tx, batch []*grouped, verdicts []verdict) (wanted []int, err error) {
	var keyed []int
	seen := make(map[string]bool) // the lock lets the same transaction pass twice
	for i, e := range batch {
		if e.once == nil {
			continue
		}
		place := e.once.place(e.org)
		if seen[place] {
			verdicts[i].err = ErrInFlight
			continue
		}
		seen[place] = true
		keyed = append(keyed, i)
	}
	if len(keyed) > 0 {
		if err := g.recallAll(ctx, tx, batch, keyed, verdicts); err != nil {
			return nil, err
		}
	}
	for i, v := range verdicts {
		if v.err == nil && !v.again {
			wanted = append(wanted, i)
		}
	}
	return wanted, nil
}

func (g *group) recallAll(ctx context.Context, tx pgx.Tx, batch []*grouped, keyed []int, verdicts []verdict) error {
	n := len(keyed)
	places, endpoints, keys, orgs := make([]string, n), make([]string, n), make([]string, n), make([]uuid.UUID, n)
	for i, at := range keyed {
		e := batch[at]
		places[i], endpoints[i], keys[i], orgs[i] = e.once.place(e.org), e.once.Endpoint, e.once.Key, e.org
	}
	rows, _ := tx.Query(ctx, lockIdempotencyAllSQL, named{"places": places}) // its error comes back from rows
	locked, err := collectColumn[bool](rows)
	if err != nil {
		return err
	}
	for i, ok := range locked {
		if !ok {
			verdicts[keyed[i]].err = ErrInFlight
		}
	}
	type known struct {
		N           int
		RequestHash []byte
		StatusCode  int
		Response    []byte
	}
	earlier, err := collect[known](ctx, tx, recallAnswersSQL, named{"org_ids": orgs, "endpoints": endpoints, "keys": keys})
	if err != nil {
		return err
	}
	for _, k := range earlier {
		v, e := &verdicts[keyed[k.N]], batch[keyed[k.N]]
		if v.err != nil {
			continue
		}
		if !bytes.Equal(k.RequestHash, e.once.Hash) {
			v.err = errOtherRequest()
			continue
		}
		v.answer.Status, v.again = k.StatusCode, true
		v.answer.Body, v.err = g.db.box.open(k.Response, places[k.N])
	}
	return nil
}

// What Recall has found expired may still be there.
const rememberAnswersSQL = `
	insert into idempotency_keys as k (organization_id, endpoint, key, request_hash, status_code, response)
	select * from unnest(@org_ids::uuid[], @endpoints::text[], @keys::text[], @request_hashes::bytea[], @status_codes::smallint[], @responses::bytea[])
	on conflict (organization_id, endpoint, key) do update
	   set request_hash = excluded.request_hash, status_code = excluded.status_code, response = excluded.response,
	       created_at = excluded.created_at, expires_at = excluded.expires_at`

// remember keeps the answers to requests that are made once.
func (g *group) remember(ctx context.Context, tx pgx.Tx, batch []*grouped, wanted []int, verdicts []verdict) error {
	var orgs []uuid.UUID
	var endpoints, keys []string
	var hashes, answers [][]byte
	var codes []int16
	for _, i := range wanted {
		e, v := batch[i], &verdicts[i]
		if e.once == nil || v.err != nil {
			continue
		}
		var err error
		if v.answer, err = e.once.Answer(v.emitted); err != nil {
			return err
		}
		sealed, err := g.db.box.seal(v.answer.Body, e.once.place(e.org))
		if err != nil {
			return err
		}
		orgs, endpoints, keys = append(orgs, e.org), append(endpoints, e.once.Endpoint), append(keys, e.once.Key)
		hashes, answers, codes = append(hashes, e.once.Hash), append(answers, sealed), append(codes, int16(v.answer.Status)) //nolint:gosec // a status of HTTP
	}
	if len(orgs) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, rememberAnswersSQL, named{
		"org_ids": orgs, "endpoints": endpoints, "keys": keys, "request_hashes": hashes, "status_codes": codes, "responses": answers,
	})
	return err
}

const transactionStatusSQL = `select coalesce(pg_xact_status(@transaction::text::xid8), 'unknown')`

const eventExistsSQL = `select exists (select from event_log where id = @id)`

// judgePause is the time between two looks for what became of a transaction.
const judgePause = 20 * time.Millisecond

// judge says what became of a transaction whose commit has failed: nil when it was
// committed, the error when it surely was not.
func (g *group) judge(ctx context.Context, m made, failed error) error {
	pg, answered := errors.AsType[*pgconn.PgError](failed)
	if answered && pg.Severity != "FATAL" || errors.Is(failed, pgx.ErrTxCommitRollback) {
		return failed
	}
	pause := time.NewTicker(judgePause)
	defer pause.Stop()
	for {
		if committed, err := g.ended(ctx, m); err == nil {
			if committed {
				return nil
			}
			return failed
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: nobody can tell whether it was committed", bus.ErrUnavailable)
		}
	}
}

var errUnderWay = errors.New("the transaction is under way")

// ended reports whether a transaction that has ended was committed. After a crash
// its number may be another's, and says nothing; its rows do.
func (g *group) ended(ctx context.Context, m made) (committed bool, err error) {
	var status string
	err = scan(ctx, g.db.pool, transactionStatusSQL, named{"transaction": m.transaction}, &status)
	if _, answered := errors.AsType[*pgconn.PgError](err); err != nil && (!answered || lost(err)) {
		return false, err
	}
	if status == "in progress" {
		return false, errUnderWay
	}
	err = scan(ctx, g.db.pool, eventExistsSQL, named{"id": m.event}, &committed)
	return committed, err
}
