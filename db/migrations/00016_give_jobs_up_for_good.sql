-- +goose Up

-- discarded_job holds all jobs that were given up, for as long as their events: whoever reads later, and is given events of the
-- past, is not given those. Only discard_job writes to it.

-- +goose StatementBegin
-- discard_job gives a job up that waits, wherever it does, and returns whether it still did. Whoever is given events of the past
-- at this moment waits for the lock of the table and then finds the job there, or made its delivery before, which is found here.
create or replace function discard_job(p_event_id uuid, p_reason text) returns boolean
language plpgsql
as $$
declare
    v_job waiting_job;
begin
    lock table discarded_job in row exclusive mode;
    delete from waiting_job where event_id = p_event_id returning * into v_job;
    if found then
        insert into outbox (event_id, organization_id, event_type, created_at, lane)
        values (v_job.event_id, v_job.organization_id, v_job.event_type, v_job.created_at, v_job.lane);
    else
        if not exists (select from event_position where event_id = p_event_id) then
            -- It is about to be relayed. While this row is held nothing is.
            perform from relay_state for update;
        end if;
        if exists (select from event_position where event_id = p_event_id) and discard_deliveries(p_event_id, p_reason) = 0 then
            return false;
        end if;
    end if;
    insert into discarded_job
    select id, organization_id, p_reason from event_log where id = p_event_id
    on conflict do nothing;
    return true;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- job_state is 'waiting' or 'in hand', or null for a job that has ended. A webhook is told of a command and does not do
-- it, so a receiver that hangs does not keep a job unfinished. What may have had its effect is in hand.
create or replace function job_state(p_event_id uuid) returns text
language sql stable
as $$
    select case
           when p.seq is null and exists (select from discarded_job where event_id = p_event_id) then null
           when exists (select from waiting_job where event_id = p_event_id) then 'waiting'
           when p.seq is null then (select 'waiting' from event_log where id = p_event_id)
           else (select case when bool_or(d.lease_token is not null or d.effect_at is not null) then 'in hand' when count(*) > 0 then 'waiting' end
                   from delivery d
                  where d.seq = p.seq and d.destination = '00000000-0000-0000-0000-000000000000')
           end
      from (select p_event_id as event_id) job
      left join event_position p using (event_id)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- relay_outbox gives up to p_limit events of the outbox their places and their deliveries, in the order of their numbers, and
-- returns how many it has taken. Of a job that was given up it makes receipts that say why.
create or replace function relay_outbox(p_limit int) returns int
language plpgsql
as $$
declare
    c_none    constant uuid := '00000000-0000-0000-0000-000000000000';
    v_last    bigint;
    v_taken   int;
    v_placed  int;
    v_ordered record;
begin
    if not exists (select from outbox) then
        return 0;
    end if;
    -- Whoever holds this row relays. The next statement sees what the previous holder has committed.
    select last_seq into v_last from relay_state for update;
    with taken as materialized (
        select * from outbox order by emit_no limit p_limit
    ), relayed as (
        delete from outbox o using taken t where o.emit_no = t.emit_no
    ), batch as materialized (
        -- An event that has its place already has its deliveries too. The clock may have been set back since it was emitted.
        select t.*, greatest(least(t.created_at, now()), t.not_before) as due_at, is_interactive(t.event_type) as interactive,
               v_last + row_number() over (order by t.emit_no) as seq,
               case when is_command(t.event_type) then (select j.reason from discarded_job j where j.event_id = t.event_id) end as given_up
          from taken t
         where not exists (select from event_position p where p.event_id = t.event_id)
    ), placed as (
        insert into event_position (seq, event_id, organization_id, event_type)
        select seq, event_id, organization_id, event_type from batch
    ), wanted as (
        select c.id as consumer_id, c_none as destination, c.ordering, b.*
          from batch b
          join consumers c on b.event_type = any (c.event_types) and c.starts_after < b.emit_no and (c.starts_at is null or c.starts_at <= b.created_at)
        union all
        select c.id, s.id, s.ordering, b.*
          from batch b
          join webhook_subscriptions s
            on s.organization_id = b.organization_id
           and s.event_types && array[b.event_type, split_part(b.event_type, '.', 1) || '.*', '*']
           and s.starts_after < b.emit_no
           and s.deleted_at is null
          join consumers c on c.name = 'webhook-dispatch-worker'
         where split_part(b.event_type, '.', 1) <> 'webhook'
            or not exists (
                -- A subscription is never told of itself: its own failures would feed it for ever.
                select from event_log e
                 where e.id = b.event_id
                   and s.id::text in (e.entity_id::text, e.payload ->> 'subscription_id'))
    ), laned as (
        select w.*, case w.ordering when 'strict' then 1 when 'key' then coalesce(w.lane, 0) else 0 end as in_lane from wanted w
    ), discarded as (
        insert into receipt (organization_id, consumer_id, outcome, reason, first_event_id, last_event_id, event_ids, destinations, attempts)
        select organization_id, consumer_id, 'discarded', given_up, event_id, event_id, array[event_id], array[destination], '{0}'
          from laned
         where given_up is not null
    ), made as (
        insert into delivery (consumer_id, destination, organization_id, lane, seq, event_id, due_at, not_before, interactive)
        select consumer_id, destination, organization_id, in_lane, seq, event_id, case when in_lane = 0 then due_at else 'infinity' end,
               not_before, interactive
          from laned
         where given_up is null
        returning consumer_id, destination, organization_id, lane
    ), ordered as (
        select distinct * from made where lane <> 0
    )
    select (select count(*) from taken) as taken, (select count(*) from batch) as placed,
           array_agg(consumer_id) as consumers, array_agg(destination) as destinations, array_agg(organization_id) as orgs, array_agg(lane) as lanes
      into v_ordered
      from ordered;
    v_taken := v_ordered.taken;
    v_placed := v_ordered.placed;
    if v_ordered.lanes is not null then
        perform advance_lanes(v_ordered.consumers, v_ordered.destinations, v_ordered.orgs, v_ordered.lanes);
    end if;
    update relay_state set last_seq = v_last + v_placed;
    return v_taken;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- relay_events is relay_outbox, after it has put the jobs whose time has come into the outbox. They are for whoever reads at
-- that time, so they count as emitted then.
create or replace function relay_events(p_limit int) returns int
language plpgsql
as $$
declare
    v_now   timestamptz := clock_timestamp();
    v_first timestamptz;
begin
    select w.not_before into v_first from waiting_job w order by w.not_before limit 1;
    if v_first <= v_now then
        perform from relay_state for update;
        with due as materialized (
            select w.event_id from waiting_job w where w.not_before <= v_now order by w.not_before limit p_limit for update skip locked
        ), gone as (
            delete from waiting_job w using due d where w.event_id = d.event_id returning w.*
        )
        insert into outbox (event_id, organization_id, event_type, created_at, lane, not_before)
        select event_id, organization_id, event_type, not_before, lane, not_before from gone order by not_before, event_id;
    end if;
    return relay_outbox(p_limit);
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- backfill_deliveries looks at up to p_limit events of the log after p_after, in the order of their ids, and with p_make makes
-- the deliveries that a reader lacks for those it wants: a consumer, or a subscription of p_organization when p_destination is
-- one. It counts by type what it has made, or would make, and what it has left alone because the reader has it unfinished or
-- dead or has had it. last_id is where to go on, or null at the end. Repeated, it makes nothing a second time.
--
-- What makes this right whatever happens beside it: deliveries of relayed events come into being under relay_state, which is
-- locked here, or from a dead_delivery that is there before and after. Whatever ends one (settling, dying, replaying,
-- discarding) replaces it in one transaction by a receipt or a dead_delivery. One statement with one snapshot looks for all
-- three and inserts, so it sees a delivery before that transaction or after it, and never in between. An event that is not
-- relayed yet is left to the relay. A job that was given up is for nobody; who gives one up at this moment is waited for.
create or replace function backfill_deliveries(
    p_consumer smallint, p_destination uuid, p_organization uuid, p_since timestamptz, p_until timestamptz, p_after uuid, p_limit int, p_make boolean,
    out last_id uuid, out types text[], out made int[], out unfinished int[], out dead int[], out done int[]
)
language plpgsql
set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
    c_none  constant uuid := '00000000-0000-0000-0000-000000000000';
    v_now   constant timestamptz := clock_timestamp();
    -- Ids are cut at milliseconds, hence the second.
    v_after constant uuid := coalesce(p_after, uuid_v7_floor(greatest(timestamptz '1970-01-02', least(p_since, v_now + interval '1 day')) - interval '1 second'));
    v_end   constant uuid := uuid_v7_floor(least(p_until, v_now + interval '1 day') + interval '1 second');
    v_to    uuid;
    v_found record;
begin
    if p_make then
        lock table discarded_job in share mode; -- before the relay's row, as who writes to it
        perform from relay_state for update;
    end if;
    select e.id into last_id
      from event_log e
     where e.id > v_after and e.id < v_end and (p_organization is null or e.organization_id = p_organization)
     order by e.id
    offset p_limit - 1 limit 1;
    v_to := coalesce(last_id, v_end);

    with reader as (
        select c.event_types, c.ordering from consumers c where c.id = p_consumer and p_destination = c_none
        union all
        select s.event_types, s.ordering from webhook_subscriptions s
         where s.id = p_destination and s.organization_id = p_organization and s.deleted_at is null
    ), wanted as materialized (
        select e.id, e.organization_id, e.event_type, p.seq,
               case r.ordering when 'strict' then 1 when 'key' then event_lane(e.entity_kind, e.entity_id, e.metadata) else 0 end as lane
          from reader r
          join event_log e
            on case when p_destination = c_none then e.event_type = any (r.event_types)
                    else r.event_types && array[e.event_type, split_part(e.event_type, '.', 1) || '.*', '*'] end
          join event_position p on p.event_id = e.id
         where e.id > v_after and e.id <= v_to and e.created_at >= p_since and (p_until is null or e.created_at < p_until)
           and (p_organization is null or e.organization_id = p_organization)
           -- A subscription is never told of itself.
           and (p_destination = c_none or split_part(e.event_type, '.', 1) <> 'webhook'
                or p_destination::text not in (coalesce(e.entity_id::text, ''), coalesce(e.payload ->> 'subscription_id', '')))
    ), had as materialized (
        select distinct u.event_id
          from receipt r
         cross join lateral unnest(r.event_ids, r.destinations) u (event_id, destination)
         where r.first_event_id <= v_to and r.last_event_id > v_after and r.consumer_id = p_consumer
           and (p_organization is null or r.organization_id = p_organization)
           and u.destination = p_destination and u.event_id > v_after and u.event_id <= v_to
    ), judged as materialized (
        select w.*, case when d.seq is not null then 'unfinished' when x.state in ('dead', 'uncertain') then 'dead'
                         when x.state is not null or h.event_id is not null
                           or is_command(w.event_type) and (select true from discarded_job j where j.event_id = w.id) then 'done' end as has
          from wanted w
          left join lateral (
            select d.seq from delivery d where d.seq = w.seq and d.consumer_id = p_consumer and d.destination = p_destination limit 1
          ) d on true
          left join lateral (
            select x.state from dead_delivery x
             where x.organization_id = w.organization_id and x.event_id = w.id and x.consumer_id = p_consumer and x.destination = p_destination limit 1
          ) x on true
          left join had h on h.event_id = w.id
    ), made as (
        -- Behind what waits already, the oldest first; nobody waits for what is past, so none of it is interactive.
        insert into delivery (consumer_id, destination, organization_id, lane, seq, event_id, due_at)
        select p_consumer, p_destination, j.organization_id, j.lane, j.seq, j.id,
               case when j.lane = 0 then v_now - (p_limit - row_number() over (order by j.seq)) * interval '1 microsecond' else 'infinity' end
          from judged j
         where p_make and j.has is null
        returning organization_id, lane
    ), counted as (
        select event_type, count(*) filter (where has is null)::int as made, count(*) filter (where has = 'unfinished')::int as unfinished,
               count(*) filter (where has = 'dead')::int as dead, count(*) filter (where has = 'done')::int as done
          from judged group by event_type order by event_type
    ), ordered as (
        select distinct organization_id, lane from made where lane <> 0
    )
    select c.*, o.*
      into v_found
      from (select array_agg(event_type) as types, array_agg(made) as made, array_agg(unfinished) as unfinished, array_agg(dead) as dead,
                   array_agg(done) as done from counted) c
     cross join (select array_agg(organization_id) as orgs, array_agg(lane) as lanes, count(*)::int as n from ordered) o;
    types := v_found.types;
    made := v_found.made;
    unfinished := v_found.unfinished;
    dead := v_found.dead;
    done := v_found.done;
    if v_found.n > 0 then
        perform advance_lanes(array_fill(p_consumer, array[v_found.n]), array_fill(p_destination, array[v_found.n]), v_found.orgs, v_found.lanes);
    end if;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- register_consumer makes a worker known to the relay, with the ladder of bus.DefaultRetry. It receives the events of its
-- types that are emitted from p_since on, those that are in the log already included. Called again it changes the types,
-- for what is relayed from then on, and nothing else.
create or replace function register_consumer(p_worker text, p_event_types text[], p_since timestamptz default now()) returns void
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_id   smallint;
    v_last uuid;
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
    if p_since < now() then
        lock table discarded_job in share mode; -- before the relay's row, see backfill_deliveries
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
    -- A worker of the past is given all that is relayed from here on: what is in the outbox gets its place first, in which it is
    -- looked up below. Neither its number nor its instant tells what a transaction has emitted that is open at this moment.
    loop
        exit when p_since >= now() or relay_outbox(1000) < 1000;
    end loop;
    -- Without a past to catch up with it begins after the latest emission, by number: neither a transaction that is open at
    -- this moment nor a clock that is set back makes it begin earlier. The clock tells only what p_since itself is about.
    insert into consumers (name, event_types, effect, retry_steps, retry_jitter, max_attempts, external, starts_after, starts_at)
    values (p_worker, p_event_types, 'at_least_once',
        array['30 seconds', '1 minute', '2 minutes', '5 minutes', '10 minutes', '30 minutes', '1 hour', '2 hours']::interval[], 0.3, 8, true,
        case when p_since >= now() then last_emit_no() else 0 end,
        case when p_since > now() then p_since end)
    returning id into v_id;
    if p_since < now() then
        loop
            select b.last_id into v_last
              from backfill_deliveries(v_id, '00000000-0000-0000-0000-000000000000', null, p_since, null, v_last, 1000, true) b;
            exit when v_last is null;
        end loop;
    end if;
end $$;
-- +goose StatementEnd

grant select on discarded_job to deskcomm_api;

-- +goose StatementBegin
-- end_job_of gives up a job of an organization that waits and returns discarded, or why it did not: missing, in hand, finished.
create function end_job_of(p_event_id uuid, p_organization_id uuid, p_reason text) returns text
language plpgsql
as $$
begin
    if not exists (select from event_log e where e.id = p_event_id and e.organization_id = p_organization_id and is_command(e.event_type)) then
        return 'missing';
    elsif job_state(p_event_id) = 'waiting' and discard_job(p_event_id, p_reason) then
        return 'discarded';
    end if;
    return coalesce(job_state(p_event_id), 'finished');
end $$;
-- +goose StatementEnd

revoke execute on function end_job_of(uuid, uuid, text) from public;

-- +goose StatementBegin
-- end_job is end_job_of for the organization of the session.
create or replace function end_job(p_event_id uuid, p_organization_id uuid, p_reason text) returns text
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
begin
    if nullif(current_setting('app.organization_id', true), '')::uuid is distinct from p_organization_id then
        raise exception 'the organization must be the one of the session' using errcode = '42501', column = 'organization_id';
    end if;
    return end_job_of(p_event_id, p_organization_id, p_reason);
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- cancel_job gives up a job that waits, for a worker that speaks SQL, and audits it.
create or replace function cancel_job(p_event_id uuid, p_reason text) returns void
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_org   uuid;
    v_state text;
begin
    if p_reason is null or btrim(p_reason) = '' or length(p_reason) > 500 then
        raise exception 'p_reason: must have 1 to 500 characters' using errcode = '22023';
    end if;
    select e.organization_id into v_org from event_log e where e.id = p_event_id;
    if nullif(current_setting('app.organization_id', true), '')::uuid <> v_org then
        raise exception 'the organization must be the one of the session' using errcode = '42501', column = 'organization_id';
    end if;
    v_state := end_job_of(p_event_id, v_org, p_reason);
    if v_state = 'missing' then
        raise exception 'p_event_id: % is no job', coalesce(p_event_id::text, 'null') using errcode = 'P0002';
    elsif v_state <> 'discarded' then
        raise exception 'p_event_id: % is %', p_event_id, v_state using errcode = '55000';
    end if;
    insert into audit_log (organization_id, actor_kind, actor_name, action, resource_type, resource_id, metadata)
    values (v_org, 'cli', session_user, 'job.cancelled', 'event', p_event_id, jsonb_build_object('reason', p_reason));
end $$;
-- +goose StatementEnd

-- When somebody last claimed as an external worker or renewed its leases, to the minute.
alter table consumers add column seen_at timestamptz;

-- +goose StatementBegin
-- see_worker notes that a worker runs. Who finds another one noting it leaves it at that.
create function see_worker(p_worker smallint) returns void
language sql
as $$
    update consumers
       set seen_at = clock_timestamp()
     where id = (
        select c.id from consumers c
         where c.id = p_worker and (c.seen_at is null or c.seen_at < clock_timestamp() - interval '1 minute')
           for no key update skip locked)
$$;
-- +goose StatementEnd

revoke execute on function see_worker(smallint) from public;

-- +goose StatementBegin
-- claim_events leases due events of a worker for five minutes, up to p_limit, the interactive ones first and then the oldest.
-- p_event_types narrows what is claimed. What was in the hands of a worker that died comes alone, one event at a time for each
-- name: so the next death is known to be that event's.
--
-- It relays first unless somebody does so at this moment, so that it works without any process of the program. Call it in
-- a transaction of its own: until that ends nobody else relays, and what it leased is known to nobody.
create or replace function claim_events(p_worker text, p_event_types text[] default null, p_limit int default 25) returns table (
    id uuid, organization_id uuid, event_type text, entity_kind text, entity_id uuid, payload jsonb, metadata jsonb, created_at timestamptz,
    attempts int, delivery_id uuid, lease_token bigint
)
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    v_id      smallint := external_worker(p_worker);
    v_types   text[] := coalesce(p_event_types, '{*}');
    v_relayed int := 0;
    v_suspect boolean;
begin
    if p_limit is null or p_limit not between 1 and 1000 then
        raise exception 'p_limit: must be between 1 and 1000' using errcode = '22023';
    end if;
    perform see_worker(v_id);
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
              from lease_deliveries(lock_for_worker(p_worker, p_limit, v_suspect, v_types), interval '5 minutes') c
             order by c.interactive desc, c.seq;
        -- A backlog in the outbox must not look like the end of the work.
        exit when found or v_relayed < 1000;
    end loop;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- extend_lease renews the leases of a worker that have not run out and returns how many those are.
create or replace function extend_lease(p_worker text) returns int
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_id  smallint := external_worker(p_worker);
    v_now timestamptz := clock_timestamp();
    v_n   int;
begin
    perform see_worker(v_id);
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
-- organization_pressure is the level of one organization: how much of its work is due, or stands in a lane behind what is due or
-- in hand for the first time. It counts no further than to the highest level. What a person has stopped (a paused consumer, a
-- disabled subscription, a paused order, a suspended organization), what waits for its next attempt with what stands behind it,
-- and the work of an external worker that nobody has run for ten minutes, twice its lease, says nothing about how busy anybody is.
-- The numbers: 16 slots that take 100 ms each do 5000 in half a minute and 20000 in two minutes.
--
-- Each head counts, or is in hand, so the walk ends with the count.
create or replace function organization_pressure(p_organization_id uuid, p_before text default 'normal') returns text
language plpgsql stable security definer
set search_path = pg_catalog, public, pg_temp
set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    c_elevated constant int := 5000;
    c_high     constant int := 20000;
    v_n        int;
begin
    if (select o.status from organizations o where o.id = p_organization_id) is distinct from 'active' then
        return 'normal';
    end if;
    select count(*) into v_n
      from (
        select
          from consumers c
         cross join lateral (
            select '00000000-0000-0000-0000-000000000000'::uuid as id where c.name <> 'webhook-dispatch-worker'
            union all
            select s.id from webhook_subscriptions s
             where c.name = 'webhook-dispatch-worker' and s.organization_id = p_organization_id and s.deleted_at is null and s.enabled
         ) t
         cross join lateral (
            select d.lane, d.attempts, true as due
              from (values (true), (false)) k (interactive)
             cross join lateral (
                select d.lane, d.attempts from delivery d
                 where d.consumer_id = c.id and d.interactive = k.interactive and d.organization_id = p_organization_id and d.destination = t.id
                   and d.lease_token is null and not d.suspect and d.due_at <= now()
                 order by d.organization_id, d.destination, d.due_at
                 limit c_high
             ) d
            union all
            select d.lane, d.attempts, false
              from (
                select d.lane, d.attempts from delivery d
                 where d.consumer_id = c.id and d.organization_id = p_organization_id and d.destination = t.id
                   and d.lease_token is not null and d.lane <> 0
                   and not exists (
                        select from paused_lane p
                         where p.organization_id = p_organization_id and p.consumer_id = c.id and p.destination = t.id and p.lane = d.lane)
                 order by d.due_at
              ) d
         ) h
         cross join lateral (
            select where h.due
            union all
            (select from delivery d
              where h.lane <> 0 and h.attempts = 0
                and d.consumer_id = c.id and d.destination = t.id and d.organization_id = p_organization_id and d.lane = h.lane
                and d.lane <> 0 and d.due_at = 'infinity'
              limit c_high)
         ) w
         where c.paused_at is null
           and (not c.external or c.seen_at > now() - interval '10 minutes')
         limit c_high
      ) waiting;
    return pressure_level(v_n, c_elevated, c_high, p_before);
end $$;
-- +goose StatementEnd

-- Schedules of an organization that is not active stay due for as long as that lasts: who looks for what is due must not walk
-- over them, so they say it themselves. Two triggers keep that true, whoever changes the organization.
alter table schedule add column suspended boolean not null default false;
update schedule s set suspended = true from organizations o where o.id = s.organization_id and o.status <> 'active';
drop index schedule_due_idx;
create index schedule_due_idx on schedule (next_at) where enabled and not suspended;

-- +goose StatementBegin
-- The lock makes who suspends the organization at this moment see the schedule, or be seen.
create function suspend_new_schedule() returns trigger
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
begin
    new.suspended := (select o.status from organizations o where o.id = new.organization_id for share) is distinct from 'active';
    return new;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create function suspend_schedules() returns trigger
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
begin
    update schedule set suspended = new.status <> 'active' where organization_id = new.id and suspended <> (new.status <> 'active');
    return null;
end $$;
-- +goose StatementEnd

create trigger schedule_suspend before insert on schedule for each row execute function suspend_new_schedule();
create trigger organizations_suspend_schedules after update of status on organizations for each row execute function suspend_schedules();
revoke execute on function suspend_new_schedule(), suspend_schedules() from public;

-- +goose Down

-- +goose StatementBegin
create or replace function discard_job(p_event_id uuid, p_reason text) returns boolean
language plpgsql
as $$
declare
    v_job waiting_job;
begin
    delete from waiting_job where event_id = p_event_id returning * into v_job;
    if found then
        insert into outbox (event_id, organization_id, event_type, created_at, lane)
        values (v_job.event_id, v_job.organization_id, v_job.event_type, v_job.created_at, v_job.lane);
        insert into discarded_job values (v_job.event_id, v_job.organization_id, p_reason);
        return true;
    end if;
    if not exists (select from event_position where event_id = p_event_id) then
        -- It is about to be relayed. While this row is held nothing is.
        perform from relay_state for update;
        if not exists (select from event_position where event_id = p_event_id) then
            insert into discarded_job
            select id, organization_id, p_reason from event_log where id = p_event_id
            on conflict do nothing;
            return true;
        end if;
    end if;
    return discard_deliveries(p_event_id, p_reason) > 0;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function job_state(p_event_id uuid) returns text
language sql stable
as $$
    select case
           when exists (select from discarded_job where event_id = p_event_id) then null
           when exists (select from waiting_job where event_id = p_event_id) then 'waiting'
           when p.seq is null then (select 'waiting' from event_log where id = p_event_id)
           else (select case when bool_or(d.lease_token is not null or d.effect_at is not null) then 'in hand' when count(*) > 0 then 'waiting' end
                   from delivery d
                  where d.seq = p.seq and d.destination = '00000000-0000-0000-0000-000000000000')
           end
      from (select p_event_id as event_id) job
      left join event_position p using (event_id)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function relay_outbox(p_limit int) returns int
language plpgsql
as $$
declare
    c_none    constant uuid := '00000000-0000-0000-0000-000000000000';
    v_last    bigint;
    v_taken   int;
    v_placed  int;
    v_ordered record;
begin
    if not exists (select from outbox) then
        return 0;
    end if;
    -- Whoever holds this row relays. The next statement sees what the previous holder has committed.
    select last_seq into v_last from relay_state for update;
    with taken as materialized (
        select * from outbox order by emit_no limit p_limit
    ), relayed as (
        delete from outbox o using taken t where o.emit_no = t.emit_no
    ), batch as materialized (
        -- An event that has its place already has its deliveries too. The clock may have been set back since it was emitted.
        select t.*, greatest(least(t.created_at, now()), t.not_before) as due_at, is_interactive(t.event_type) as interactive,
               v_last + row_number() over (order by t.emit_no) as seq
          from taken t
         where not exists (select from event_position p where p.event_id = t.event_id)
    ), placed as (
        insert into event_position (seq, event_id, organization_id, event_type)
        select seq, event_id, organization_id, event_type from batch
    ), wanted as (
        select c.id as consumer_id, c_none as destination, c.ordering, b.*
          from batch b
          join consumers c on b.event_type = any (c.event_types) and c.starts_after < b.emit_no and (c.starts_at is null or c.starts_at <= b.created_at)
        union all
        select c.id, s.id, s.ordering, b.*
          from batch b
          join webhook_subscriptions s
            on s.organization_id = b.organization_id
           and s.event_types && array[b.event_type, split_part(b.event_type, '.', 1) || '.*', '*']
           and s.starts_after < b.emit_no
           and s.deleted_at is null
          join consumers c on c.name = 'webhook-dispatch-worker'
         where split_part(b.event_type, '.', 1) <> 'webhook'
            or not exists (
                -- A subscription is never told of itself: its own failures would feed it for ever.
                select from event_log e
                 where e.id = b.event_id
                   and s.id::text in (e.entity_id::text, e.payload ->> 'subscription_id'))
    ), laned as (
        select w.*, case w.ordering when 'strict' then 1 when 'key' then coalesce(w.lane, 0) else 0 end as in_lane from wanted w
    ), made as (
        insert into delivery (consumer_id, destination, organization_id, lane, seq, event_id, due_at, not_before, interactive)
        select consumer_id, destination, organization_id, in_lane, seq, event_id, case when in_lane = 0 then due_at else 'infinity' end,
               not_before, interactive
          from laned
        returning consumer_id, destination, organization_id, lane
    ), ordered as (
        select distinct * from made where lane <> 0
    )
    select (select count(*) from taken) as taken, (select count(*) from batch) as placed,
           array_agg(consumer_id) as consumers, array_agg(destination) as destinations, array_agg(organization_id) as orgs, array_agg(lane) as lanes
      into v_ordered
      from ordered;
    v_taken := v_ordered.taken;
    v_placed := v_ordered.placed;
    if v_ordered.lanes is not null then
        perform advance_lanes(v_ordered.consumers, v_ordered.destinations, v_ordered.orgs, v_ordered.lanes);
    end if;
    update relay_state set last_seq = v_last + v_placed;
    return v_taken;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function relay_events(p_limit int) returns int
language plpgsql
as $$
declare
    v_now   timestamptz := clock_timestamp();
    v_first timestamptz;
    v_n     int;
    v_job   discarded_job;
begin
    select w.not_before into v_first from waiting_job w order by w.not_before limit 1;
    if v_first <= v_now then
        perform from relay_state for update;
        with due as materialized (
            select w.event_id from waiting_job w where w.not_before <= v_now order by w.not_before limit p_limit for update skip locked
        ), gone as (
            delete from waiting_job w using due d where w.event_id = d.event_id returning w.*
        )
        insert into outbox (event_id, organization_id, event_type, created_at, lane, not_before)
        select event_id, organization_id, event_type, not_before, lane, not_before from gone order by not_before, event_id;
    end if;
    v_n := relay_outbox(p_limit);
    for v_job in
        select d.* from discarded_job d where exists (select from event_position p where p.event_id = d.event_id) order by d.event_id limit p_limit
    loop
        perform discard_deliveries(v_job.event_id, v_job.reason);
        delete from discarded_job where event_id = v_job.event_id;
    end loop;
    return v_n;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function backfill_deliveries(
    p_consumer smallint, p_destination uuid, p_organization uuid, p_since timestamptz, p_until timestamptz, p_after uuid, p_limit int, p_make boolean,
    out last_id uuid, out types text[], out made int[], out unfinished int[], out dead int[], out done int[]
)
language plpgsql
set enable_seqscan = off set jit = off
as $$
#variable_conflict use_column
declare
    c_none  constant uuid := '00000000-0000-0000-0000-000000000000';
    v_now   constant timestamptz := clock_timestamp();
    -- Ids are cut at milliseconds, hence the second.
    v_after constant uuid := coalesce(p_after, uuid_v7_floor(greatest(timestamptz '1970-01-02', least(p_since, v_now + interval '1 day')) - interval '1 second'));
    v_end   constant uuid := uuid_v7_floor(least(p_until, v_now + interval '1 day') + interval '1 second');
    v_to    uuid;
    v_found record;
begin
    if p_make then
        perform from relay_state for update;
    end if;
    select e.id into last_id
      from event_log e
     where e.id > v_after and e.id < v_end and (p_organization is null or e.organization_id = p_organization)
     order by e.id
    offset p_limit - 1 limit 1;
    v_to := coalesce(last_id, v_end);

    with reader as (
        select c.event_types, c.ordering from consumers c where c.id = p_consumer and p_destination = c_none
        union all
        select s.event_types, s.ordering from webhook_subscriptions s
         where s.id = p_destination and s.organization_id = p_organization and s.deleted_at is null
    ), wanted as materialized (
        select e.id, e.organization_id, e.event_type, p.seq,
               case r.ordering when 'strict' then 1 when 'key' then event_lane(e.entity_kind, e.entity_id, e.metadata) else 0 end as lane
          from reader r
          join event_log e
            on case when p_destination = c_none then e.event_type = any (r.event_types)
                    else r.event_types && array[e.event_type, split_part(e.event_type, '.', 1) || '.*', '*'] end
          join event_position p on p.event_id = e.id
         where e.id > v_after and e.id <= v_to and e.created_at >= p_since and (p_until is null or e.created_at < p_until)
           and (p_organization is null or e.organization_id = p_organization)
           -- A subscription is never told of itself.
           and (p_destination = c_none or split_part(e.event_type, '.', 1) <> 'webhook'
                or p_destination::text not in (coalesce(e.entity_id::text, ''), coalesce(e.payload ->> 'subscription_id', '')))
    ), had as materialized (
        select distinct u.event_id
          from receipt r
         cross join lateral unnest(r.event_ids, r.destinations) u (event_id, destination)
         where r.first_event_id <= v_to and r.last_event_id > v_after and r.consumer_id = p_consumer
           and (p_organization is null or r.organization_id = p_organization)
           and u.destination = p_destination and u.event_id > v_after and u.event_id <= v_to
    ), judged as materialized (
        select w.*, case when d.seq is not null then 'unfinished' when x.state in ('dead', 'uncertain') then 'dead'
                         when x.state is not null or h.event_id is not null then 'done' end as has
          from wanted w
          left join lateral (
            select d.seq from delivery d where d.seq = w.seq and d.consumer_id = p_consumer and d.destination = p_destination limit 1
          ) d on true
          left join lateral (
            select x.state from dead_delivery x
             where x.organization_id = w.organization_id and x.event_id = w.id and x.consumer_id = p_consumer and x.destination = p_destination limit 1
          ) x on true
          left join had h on h.event_id = w.id
    ), made as (
        -- Behind what waits already, the oldest first; nobody waits for what is past, so none of it is interactive.
        insert into delivery (consumer_id, destination, organization_id, lane, seq, event_id, due_at)
        select p_consumer, p_destination, j.organization_id, j.lane, j.seq, j.id,
               case when j.lane = 0 then v_now - (p_limit - row_number() over (order by j.seq)) * interval '1 microsecond' else 'infinity' end
          from judged j
         where p_make and j.has is null
        returning organization_id, lane
    ), counted as (
        select event_type, count(*) filter (where has is null)::int as made, count(*) filter (where has = 'unfinished')::int as unfinished,
               count(*) filter (where has = 'dead')::int as dead, count(*) filter (where has = 'done')::int as done
          from judged group by event_type order by event_type
    ), ordered as (
        select distinct organization_id, lane from made where lane <> 0
    )
    select c.*, o.*
      into v_found
      from (select array_agg(event_type) as types, array_agg(made) as made, array_agg(unfinished) as unfinished, array_agg(dead) as dead,
                   array_agg(done) as done from counted) c
     cross join (select array_agg(organization_id) as orgs, array_agg(lane) as lanes, count(*)::int as n from ordered) o;
    types := v_found.types;
    made := v_found.made;
    unfinished := v_found.unfinished;
    dead := v_found.dead;
    done := v_found.done;
    if v_found.n > 0 then
        perform advance_lanes(array_fill(p_consumer, array[v_found.n]), array_fill(p_destination, array[v_found.n]), v_found.orgs, v_found.lanes);
    end if;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function register_consumer(p_worker text, p_event_types text[], p_since timestamptz default now()) returns void
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_id   smallint;
    v_last uuid;
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
    -- Without a past to catch up with it begins after the latest emission, by number: neither a transaction that is open at
    -- this moment nor a clock that is set back makes it begin earlier. The clock tells only what p_since itself is about.
    insert into consumers (name, event_types, effect, retry_steps, retry_jitter, max_attempts, external, starts_after, starts_at)
    values (p_worker, p_event_types, 'at_least_once',
        array['30 seconds', '1 minute', '2 minutes', '5 minutes', '10 minutes', '30 minutes', '1 hour', '2 hours']::interval[], 0.3, 8, true,
        case when p_since >= now() then last_emit_no()
             -- The order of numbers is not that of instants: nothing since then may be left out for something older behind it.
             else coalesce((
                select max(o.emit_no) from outbox o
                 where o.created_at < p_since
                   and o.emit_no < coalesce((select min(l.emit_no) from outbox l where l.created_at >= p_since), 9223372036854775807)), 0) end,
        case when p_since > now() then p_since end)
    returning id into v_id;
    if p_since < now() then
        loop
            select b.last_id into v_last
              from backfill_deliveries(v_id, '00000000-0000-0000-0000-000000000000', null, p_since, null, v_last, 1000, true) b;
            exit when v_last is null;
        end loop;
    end if;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function end_job(p_event_id uuid, p_organization_id uuid, p_reason text) returns text
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
begin
    if nullif(current_setting('app.organization_id', true), '')::uuid <> p_organization_id then
        raise exception 'the organization must be the one of the session' using errcode = '42501', column = 'organization_id';
    elsif not exists (select from event_log e where e.id = p_event_id and e.organization_id = p_organization_id and is_command(e.event_type)) then
        return 'missing';
    elsif job_state(p_event_id) = 'waiting' and discard_job(p_event_id, p_reason) then
        return 'discarded';
    end if;
    return coalesce(job_state(p_event_id), 'finished');
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function cancel_job(p_event_id uuid, p_reason text) returns void
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_org   uuid;
    v_state text;
begin
    if p_reason is null or btrim(p_reason) = '' or length(p_reason) > 500 then
        raise exception 'p_reason: must have 1 to 500 characters' using errcode = '22023';
    end if;
    select e.organization_id into v_org from event_log e where e.id = p_event_id;
    v_state := end_job(p_event_id, v_org, p_reason);
    if v_state = 'missing' then
        raise exception 'p_event_id: % is no job', coalesce(p_event_id::text, 'null') using errcode = 'P0002';
    elsif v_state <> 'discarded' then
        raise exception 'p_event_id: % is %', p_event_id, v_state using errcode = '55000';
    end if;
    insert into audit_log (organization_id, actor_kind, actor_name, action, resource_type, resource_id, metadata)
    values (v_org, 'cli', session_user, 'job.cancelled', 'event', p_event_id, jsonb_build_object('reason', p_reason));
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- claim_events leases due events of a worker for five minutes, up to p_limit, the interactive ones first and then the oldest.
-- p_event_types narrows what is claimed. What was in the hands of a worker that died comes alone, one event at a time for each
-- name: so the next death is known to be that event's.
--
-- It relays first unless somebody does so at this moment, so that it works without any process of the program. Call it in
-- a transaction of its own: until that ends nobody else relays, and what it leased is known to nobody.
create or replace function claim_events(p_worker text, p_event_types text[] default null, p_limit int default 25) returns table (
    id uuid, organization_id uuid, event_type text, entity_kind text, entity_id uuid, payload jsonb, metadata jsonb, created_at timestamptz,
    attempts int, delivery_id uuid, lease_token bigint
)
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
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
              from lease_deliveries(lock_for_worker(p_worker, p_limit, v_suspect, v_types), interval '5 minutes') c
             order by c.interactive desc, c.seq;
        -- A backlog in the outbox must not look like the end of the work.
        exit when found or v_relayed < 1000;
    end loop;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
create or replace function extend_lease(p_worker text) returns int
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
create or replace function organization_pressure(p_organization_id uuid, p_before text default 'normal') returns text
language plpgsql stable security definer
set search_path = pg_catalog, public, pg_temp
set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    c_elevated constant int := 5000;
    c_high     constant int := 20000;
    v_n        int;
begin
    if (select o.status from organizations o where o.id = p_organization_id) is distinct from 'active' then
        return 'normal';
    end if;
    select count(*) into v_n
      from (
        select
          from consumers c
         cross join lateral (
            select '00000000-0000-0000-0000-000000000000'::uuid as id where c.name <> 'webhook-dispatch-worker'
            union all
            select s.id from webhook_subscriptions s
             where c.name = 'webhook-dispatch-worker' and s.organization_id = p_organization_id and s.deleted_at is null and s.enabled
         ) t
         cross join (values (true), (false)) k (interactive)
         cross join lateral (
            (select from delivery d
              where d.consumer_id = c.id and d.interactive = k.interactive and d.organization_id = p_organization_id and d.destination = t.id
                and d.lease_token is null and not d.suspect and d.due_at <= now()
              order by d.organization_id, d.destination, d.due_at
              limit c_high)
            union all
            (select from delivery d
              where d.consumer_id = c.id and d.interactive = k.interactive and d.organization_id = p_organization_id and d.destination = t.id
                and d.lease_token is null and not d.suspect and d.due_at = 'infinity'
              order by d.organization_id, d.destination, d.due_at
              limit c_high)
         ) w
         where c.paused_at is null
           and not exists (
                select from paused_lane p
                 where p.organization_id = p_organization_id and p.consumer_id = c.id and p.destination = t.id and p.lane = 1)
         limit c_high
      ) waiting;
    return pressure_level(v_n, c_elevated, c_high, p_before);
end $$;
-- +goose StatementEnd

-- From here on a job that was given up is known until it is relayed only.
delete from discarded_job d where exists (select from event_position p where p.event_id = d.event_id);
revoke select on discarded_job from deskcomm_api;
drop function end_job_of(uuid, uuid, text);
drop function see_worker(smallint);
alter table consumers drop column seen_at;
drop trigger organizations_suspend_schedules on organizations;
drop trigger schedule_suspend on schedule;
drop function suspend_schedules();
drop function suspend_new_schedule();
drop index schedule_due_idx;
create index schedule_due_idx on schedule (next_at) where enabled;
alter table schedule drop column suspended;
