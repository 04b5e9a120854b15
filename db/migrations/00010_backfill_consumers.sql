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
    -- What is not relayed yet is told apart by its number, and by the clock only when p_since has not come.
    insert into consumers (name, event_types, effect, retry_steps, retry_jitter, max_attempts, external, starts_after, starts_at)
    values (p_worker, p_event_types, 'at_least_once',
        array['30 seconds', '1 minute', '2 minutes', '5 minutes', '10 minutes', '30 minutes', '1 hour', '2 hours']::interval[], 0.3, 8, true,
        coalesce((select max(o.emit_no) from outbox o where o.created_at < p_since), 0),
        case when p_since > now() then p_since end)
    returning id into v_id;
    perform backfill_consumer(v_id, p_since);
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- backfill_consumer makes the deliveries of a consumer for relayed events of its types that were emitted from p_since on
-- and returns how many. The caller holds relay_state and knows that the consumer has had none of them.
create function backfill_consumer(p_consumer smallint, p_since timestamptz) returns int
language plpgsql
as $$
declare
    v_made record;
begin
    with made as (
        insert into delivery (consumer_id, destination, organization_id, lane, seq, event_id, due_at, interactive)
        select c.id, '00000000-0000-0000-0000-000000000000', p.organization_id, l.lane, p.seq, p.event_id,
               case when l.lane = 0 then least(e.created_at, now()) else 'infinity' end, is_interactive(e.event_type)
          from consumers c
          join event_log e on e.event_type = any (c.event_types)
          join event_position p on p.event_id = e.id
         cross join lateral (
            select case c.ordering when 'strict' then 1 when 'key' then event_lane(e.entity_kind, e.entity_id, e.metadata) else 0 end as lane
         ) l
         where c.id = p_consumer
           -- Ids are cut at milliseconds, hence the second.
           and e.id >= uuid_v7_floor(greatest(p_since, timestamptz '1970-01-02') - interval '1 second')
           and e.created_at >= p_since
        returning consumer_id, destination, organization_id, lane
    ), ordered as (
        select distinct * from made where lane <> 0
    )
    select (select count(*) from made) as n,
           array_agg(consumer_id) as consumers, array_agg(destination) as destinations, array_agg(organization_id) as orgs, array_agg(lane) as lanes
      into v_made
      from ordered;
    if v_made.lanes is not null then
        perform advance_lanes(v_made.consumers, v_made.destinations, v_made.orgs, v_made.lanes);
    end if;
    return v_made.n;
end $$;
-- +goose StatementEnd

revoke execute on function backfill_consumer(smallint, timestamptz) from public;

-- +goose Down
drop function backfill_consumer(smallint, timestamptz);

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
