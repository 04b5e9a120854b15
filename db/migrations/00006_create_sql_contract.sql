-- +goose Up

-- The bus for programs in any language: a worker registers itself, claims, and settles each event, with nothing but SQL.
-- The functions run as their owner, across organizations, so that a worker needs the right to call them and none to the tables;
-- they are revoked from everybody below. What they refuse changes nothing and has one of these codes:
--   22023  an argument is malformed; the message begins with its name
--   42501  the name belongs to a handler of the program
--   55000  the lease is not held, or the delivery is not dead
--   P0002  there is no such worker or event

-- +goose StatementBegin
-- external_worker returns the id of a worker that has registered itself, or raises.
create function external_worker(p_worker text) returns smallint
language plpgsql stable
as $$
declare
    v_id       smallint;
    v_external boolean;
begin
    select id, external into v_id, v_external from consumers where name = p_worker;
    if v_id is null then
        raise exception 'p_worker: must be registered, call register_consumer first' using errcode = 'P0002';
    elsif not v_external then
        raise exception 'p_worker: must not be the name of a handler of the program' using errcode = '42501';
    end if;
    return v_id;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- register_consumer makes a worker known to the relay, with the ladder of bus.DefaultRetry. It receives the events of its
-- types that are emitted from p_since on, those that are in the log already included. Called again it changes the types,
-- for what is relayed from then on, and nothing else.
create function register_consumer(p_worker text, p_event_types text[], p_since timestamptz default now()) returns void
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_id smallint;
begin
    if p_worker is null or length(p_worker) > 63 or p_worker !~ '^[a-z][a-z0-9]*(-[a-z0-9]+)*-worker$' then
        raise exception 'p_worker: must be kebab-case, end in -worker and have at most 63 characters' using errcode = '22023';
    elsif p_event_types is null or cardinality(p_event_types) not between 1 and 100 then
        raise exception 'p_event_types: must be 1 to 100 types' using errcode = '22023';
    elsif exists (select from unnest(p_event_types) t where t is null or t !~ '^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$' or length(t) > 100) then
        raise exception 'p_event_types: each must be entity.action in lower snake case' using errcode = '22023';
    elsif p_since is null then
        raise exception 'p_since: is required' using errcode = '22023';
    end if;
    -- While this row is held nothing is relayed: each event either has its place by now, and is looked up below, or the
    -- relay that gives it one sees the worker.
    perform from relay_state for update;
    -- The relay makes deliveries for this name by subscriptions, whether or not the program has run yet.
    if p_worker = 'webhook-dispatch-worker' or exists (select from consumers where name = p_worker and not external) then
        raise exception 'p_worker: must not be the name of a handler of the program' using errcode = '42501';
    end if;
    update consumers set event_types = p_event_types where name = p_worker;
    if found then
        return;
    end if;
    insert into consumers (name, event_types, effect, retry_steps, retry_jitter, max_attempts, external, starts_at)
    values (p_worker, p_event_types, 'at_least_once',
        array['30 seconds', '1 minute', '2 minutes', '5 minutes', '10 minutes', '30 minutes', '1 hour', '2 hours']::interval[], 0.3, 8, true, p_since)
    returning id into v_id;
    insert into delivery (consumer_id, destination, organization_id, seq, event_id, due_at)
    select v_id, '00000000-0000-0000-0000-000000000000', p.organization_id, p.seq, p.event_id, e.created_at
      from event_log e
      join event_position p on p.event_id = e.id
     -- Ids are cut at milliseconds, hence the second.
     where e.id >= uuid_v7_floor(greatest(p_since, timestamptz '1970-01-02') - interval '1 second')
       and e.created_at >= p_since
       and e.event_type = any (p_event_types);
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- claim_events leases due events of a worker for five minutes, up to p_limit, the oldest first. p_event_types narrows what
-- is claimed. What was in the hands of a worker that died comes alone, one event at a time for each name: so the next
-- death is known to be that event's.
--
-- It relays first unless somebody does so at this moment, so that it works without any process of the program. Call it in
-- a transaction of its own: until that ends nobody else relays, and what it leased is known to nobody.
create function claim_events(p_worker text, p_event_types text[] default null, p_limit int default 25) returns table (
    id uuid, organization_id uuid, event_type text, entity_kind text, entity_id uuid, payload jsonb, metadata jsonb, created_at timestamptz,
    attempts int, delivery_id uuid, lease_token bigint
)
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    c_none    constant uuid := '00000000-0000-0000-0000-000000000000';
    v_id      smallint := external_worker(p_worker);
    v_types   text[] := coalesce(p_event_types, '{*}');
    v_relayed int := 0;
    v_suspect boolean;
begin
    if p_limit is null or p_limit not between 1 and 1000 then
        raise exception 'p_limit: must be between 1 and 1000' using errcode = '22023';
    end if;
    loop
        perform from relay_state for update skip locked;
        if found then
            v_relayed := relay_events(1000);
        end if;
        v_suspect := exists (
                select from delivery d
                 where d.consumer_id = v_id and d.lease_token is null and d.suspect and d.due_at <= now()
                   and (select o.status from organizations o where o.id = d.organization_id) = 'active'
                   and ('*' = any (v_types) or (select p.event_type from event_position p where p.seq = d.seq) = any (v_types)))
            and not exists (
                select from delivery d where d.consumer_id = v_id and d.lease_token is not null and d.due_at > now() and d.suspect);
        return query
            select c.id, c.org_id, c.type, c.entity_kind, c.entity_id, c.payload, c.metadata, c.created_at,
                   c.attempt, delivery_id(c.id, c.consumer, c.destination), c.token
              from claim_deliveries(array[p_worker], array[case when v_suspect then 1 else p_limit end], array[0], array[0], array[0], array[c_none],
                       '{}', '{}', '{}', '{}', v_suspect, interval '5 minutes', v_types) c
             order by c.seq;
        -- A backlog in the outbox must not look like the end of the work.
        exit when found or v_relayed < 1000;
    end loop;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- held_delivery locks the delivery of an event to a worker and returns it if it is held: under p_token, or without one
-- under a lease that has not run out. Else it raises.
create function held_delivery(p_event_id uuid, p_worker text, p_token bigint) returns delivery
language plpgsql
as $$
declare
    v_id   smallint := external_worker(p_worker);
    v_held delivery;
begin
    select d.* into v_held
      from event_position p
      join delivery d
        on d.consumer_id = v_id and d.destination = '00000000-0000-0000-0000-000000000000' and d.organization_id = p.organization_id
       and d.lane = 0 and d.seq = p.seq
     where p.event_id = p_event_id
       for update of d;
    if v_held.lease_token is null then
        raise exception 'p_event_id: % is not leased to %', coalesce(p_event_id::text, 'null'), p_worker using errcode = '55000';
    elsif p_token is null and v_held.due_at <= clock_timestamp() then
        raise exception 'p_event_id: the lease of % on % has run out', p_worker, p_event_id using errcode = '55000';
    elsif p_token <> v_held.lease_token then
        raise exception 'p_token: the lease of % on % is another one by now', p_worker, p_event_id using errcode = '55000';
    end if;
    return v_held;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- ack_event settles a claimed event as done for the worker.
create function ack_event(p_event_id uuid, p_worker text, p_token bigint default null) returns void
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_held delivery := held_delivery(p_event_id, p_worker, p_token);
begin
    delete from delivery d
     where d.consumer_id = v_held.consumer_id and d.destination = v_held.destination and d.organization_id = v_held.organization_id
       and d.lane = v_held.lane and d.seq = v_held.seq;
    insert into receipt (organization_id, consumer_id, outcome, first_event_id, last_event_id, event_ids, destinations, attempts)
    values (v_held.organization_id, v_held.consumer_id, 'done', p_event_id, p_event_id, array[p_event_id], array[v_held.destination],
        array[v_held.attempts + 1]);
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- nack_event settles a claimed event as failed: due again by the worker's ladder, or dead when its attempts are spent.
create function nack_event(p_event_id uuid, p_worker text, p_error text, p_token bigint default null) returns void
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_held     delivery := held_delivery(p_event_id, p_worker, p_token);
    v_attempts int := v_held.attempts + 1;
    v_error    text := left(coalesce(nullif(p_error, ''), 'the worker gave no reason'), 4096);
    v_consumer consumers;
begin
    select c.* into v_consumer from consumers c where c.id = v_held.consumer_id;
    if v_attempts < v_consumer.max_attempts then
        update delivery d
           set due_at = clock_timestamp() + retry_delay(v_consumer.retry_steps, v_consumer.retry_jitter, v_attempts),
               lease_token = null, attempts = v_attempts, suspect = false, crashes = 0, last_error = v_error, updated_at = clock_timestamp()
         where d.consumer_id = v_held.consumer_id and d.destination = v_held.destination and d.organization_id = v_held.organization_id
           and d.lane = v_held.lane and d.seq = v_held.seq;
        return;
    end if;
    delete from delivery d
     where d.consumer_id = v_held.consumer_id and d.destination = v_held.destination and d.organization_id = v_held.organization_id
       and d.lane = v_held.lane and d.seq = v_held.seq;
    insert into dead_delivery (delivery_id, organization_id, consumer_id, destination, lane, seq, event_id, event_type, entity_kind,
           entity_id, payload, metadata, event_created_at, attempts, earlier_attempts, last_error)
    select delivery_id(e.id, p_worker, v_held.destination), v_held.organization_id, v_held.consumer_id, v_held.destination, v_held.lane, v_held.seq,
           e.id, e.event_type, e.entity_kind, e.entity_id, e.payload, e.metadata, e.created_at, v_attempts, v_held.earlier_attempts, v_error
      from event_log e
     where e.id = p_event_id and e.organization_id = v_held.organization_id
    on conflict (delivery_id) do update
       set state = 'dead', attempts = excluded.attempts, earlier_attempts = excluded.earlier_attempts,
           last_error = excluded.last_error, died_at = clock_timestamp(), resolved_at = null, reason = null;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- extend_lease renews the leases of a worker that have not run out and returns how many those are.
create function extend_lease(p_worker text) returns int
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_id  smallint := external_worker(p_worker);
    v_now timestamptz := clock_timestamp();
    v_n   int;
begin
    with mine as (
        select d.consumer_id, d.destination, d.organization_id, d.lane, d.seq
          from delivery d
         where d.consumer_id = v_id and d.lease_token is not null and d.due_at > v_now
         order by d.consumer_id, d.destination, d.organization_id, d.lane, d.seq -- as every statement that locks several
           for update
    )
    update delivery d
       set due_at = clock_timestamp() + interval '5 minutes'
      from mine m
     where d.consumer_id = m.consumer_id and d.destination = m.destination and d.organization_id = m.organization_id
       and d.lane = m.lane and d.seq = m.seq;
    get diagnostics v_n = row_count;
    return v_n;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- decide_dead brings what waits for a person to p_state and audits it: the deliveries of an event to p_worker, or to
-- anybody when that is null, and then no uncertain one. It returns how many, and raises when there is none.
create function decide_dead(p_event_id uuid, p_worker text, p_state text, p_action text, p_reason text) returns int
language plpgsql
as $$
declare
    v_n int;
begin
    if p_event_id is null then
        raise exception 'p_event_id: is required' using errcode = '22023';
    elsif p_worker is not null and not exists (select from consumers where name = p_worker) then
        raise exception 'p_worker: must be registered' using errcode = 'P0002';
    end if;
    with was as (
        select x.delivery_id, x.state, c.name
          from dead_delivery x
          join consumers c on c.id = x.consumer_id
         where x.organization_id = any (array(select o.id from organizations o)) -- whose index it is
           and x.event_id = p_event_id
           and (p_worker is null and x.state = 'dead' or c.name = p_worker and x.state in ('dead', 'uncertain'))
           -- What would send it is gone.
           and (p_state <> 'replayed' or c.name <> 'webhook-dispatch-worker'
                or exists (select from webhook_subscriptions s where s.id = x.destination and s.deleted_at is null))
         order by x.delivery_id
           for update of x
    ), decided as (
        update dead_delivery x
           set state = p_state, resolved_at = clock_timestamp(), reason = nullif(p_reason, '')
          from was
         where x.delivery_id = was.delivery_id
        returning x.*, was.state as old_state, was.name
    ), pending as (
        insert into delivery (consumer_id, destination, organization_id, lane, seq, event_id, due_at, earlier_attempts, last_error)
        select consumer_id, destination, organization_id, lane, seq, event_id, clock_timestamp(), attempts + earlier_attempts, last_error
          from decided
         where p_state = 'replayed'
    ), thawed as (
        delete from frozen_body b using decided d where b.delivery_id = d.delivery_id and p_state = 'discarded'
    )
    insert into audit_log (organization_id, actor_kind, actor_name, action, resource_type, resource_id, metadata)
    select d.organization_id, 'cli', session_user, p_action, 'delivery', d.delivery_id,
           jsonb_build_object('event_id', d.event_id, 'consumer', d.name, 'old_status', d.old_state, 'old_error', d.last_error,
               'attempts', d.attempts, 'reason', p_reason)
      from decided d;
    get diagnostics v_n = row_count;
    if v_n = 0 then
        raise exception 'p_event_id: % has nothing dead for %', p_event_id, coalesce(p_worker, 'any worker') using errcode = '55000',
            hint = 'Deliveries that wait, run or are done are left alone, and so are those of deleted subscriptions; uncertain ones need p_worker.';
    end if;
    return v_n;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- reprocess_event makes the dead deliveries of an event due again with fresh budgets and returns how many. An uncertain one,
-- whose effect may happen a second time, is only touched when its worker is named.
create function reprocess_event(p_event_id uuid, p_worker text default null) returns int
language sql security definer
set search_path = pg_catalog, public, pg_temp
as $$
    select decide_dead(p_event_id, p_worker, 'replayed', 'delivery.replayed', '')
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- discard_event ends the dead or uncertain deliveries of an event to a worker for good and returns how many.
create function discard_event(p_event_id uuid, p_worker text, p_reason text) returns int
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
begin
    if p_worker is null then
        raise exception 'p_worker: is required' using errcode = '22023';
    elsif p_reason is null or btrim(p_reason) = '' or length(p_reason) > 500 then
        raise exception 'p_reason: must have 1 to 500 characters' using errcode = '22023';
    end if;
    return decide_dead(p_event_id, p_worker, 'discarded', 'delivery.discarded', p_reason);
end $$;
-- +goose StatementEnd

-- What became of each event, on one line: dead while one of its deliveries waits for a person, else processing or pending
-- while one is unfinished, else done. It shows the rows that the reader may see. Ask for an id, or for an organization and a period of
-- ids: each line looks up its own receipts.
create view event_log_status with (security_invoker = true) as
select e.id, e.organization_id, e.event_type, e.entity_kind, e.entity_id, e.payload, e.metadata, e.created_at,
       case when x.dead then 'dead'
            when w.processing then 'processing'
            when w.waiting or p.seq is null then 'pending'
            else 'done' end as status,
       coalesce(r.consumed_by, '{}') as consumed_by,
       greatest(w.attempts, x.attempts, r.attempts, 0)::int as attempts,
       coalesce(x.last_error, w.last_error) as last_error,
       w.next_attempt_at
  from event_log e
  left join event_position p on p.event_id = e.id
 cross join lateral (
    select bool_or(d.lease_token is not null) as processing, count(*) > 0 as waiting, max(d.attempts) as attempts,
           (array_agg(d.last_error order by d.updated_at desc) filter (where d.last_error is not null))[1] as last_error,
           min(d.due_at) filter (where d.lease_token is null) as next_attempt_at
      from delivery d
     where d.seq = p.seq and d.organization_id = e.organization_id
 ) w
 cross join lateral (
    select count(*) > 0 as dead, max(d.attempts) as attempts, (array_agg(d.last_error order by d.died_at desc))[1] as last_error
      from dead_delivery d
     where d.organization_id = e.organization_id and d.event_id = e.id and d.state in ('dead', 'uncertain')
 ) x
 cross join lateral (
    select array_agg(distinct c.name) as consumed_by, max(u.attempts) as attempts
      from receipt r
     cross join lateral unnest(r.event_ids, r.attempts) u (event_id, attempts)
      join consumers c on c.id = r.consumer_id
     where r.organization_id = e.organization_id and r.first_event_id <= e.id and r.last_event_id >= e.id
       and u.event_id = e.id and r.outcome in ('done', 'skipped')
 ) r;

revoke execute on function external_worker(text), register_consumer(text, text[], timestamptz), claim_events(text, text[], int),
    held_delivery(uuid, text, bigint), ack_event(uuid, text, bigint), nack_event(uuid, text, text, bigint), extend_lease(text),
    decide_dead(uuid, text, text, text, text), reprocess_event(uuid, text), discard_event(uuid, text, text) from public;

-- +goose Down
drop view event_log_status;
drop function discard_event(uuid, text, text);
drop function reprocess_event(uuid, text);
drop function decide_dead(uuid, text, text, text, text);
drop function extend_lease(text);
drop function nack_event(uuid, text, text, bigint);
drop function ack_event(uuid, text, bigint);
drop function held_delivery(uuid, text, bigint);
drop function claim_events(text, text[], int);
drop function register_consumer(text, text[], timestamptz);
drop function external_worker(text);
