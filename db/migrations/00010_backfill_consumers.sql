-- +goose Up

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
-- backfill_deliveries looks at up to p_limit events of the log after p_after, in the order of their ids, and with p_make makes
-- the deliveries that a reader lacks for those it wants: a consumer, or a subscription of p_organization when p_destination is
-- one. It counts by type what it has made, or would make, and what it has left alone because the reader has it unfinished or
-- dead or has had it. last_id is where to go on, or null at the end. Repeated, it makes nothing a second time.
--
-- What makes this right whatever happens beside it: deliveries of relayed events come into being under relay_state, which is
-- locked here, or from a dead_delivery that is there before and after. Whatever ends one (settling, dying, replaying,
-- discarding) replaces it in one transaction by a receipt or a dead_delivery. One statement with one snapshot looks for all
-- three and inserts, so it sees a delivery before that transaction or after it, and never in between. An event that is not
-- relayed yet is left to the relay.
create function backfill_deliveries(
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

revoke execute on function backfill_deliveries(smallint, uuid, uuid, timestamptz, timestamptz, uuid, int, boolean) from public;

-- +goose Down
drop function backfill_deliveries(smallint, uuid, uuid, timestamptz, timestamptz, uuid, int, boolean);

-- +goose StatementBegin
-- register_consumer makes a worker known to the relay, with the ladder of bus.DefaultRetry. It receives the events of its
-- types that are emitted from p_since on, those that are in the log already included. Called again it changes the types,
-- for what is relayed from then on, and nothing else.
create or replace function register_consumer(p_worker text, p_event_types text[], p_since timestamptz default now()) returns void
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
