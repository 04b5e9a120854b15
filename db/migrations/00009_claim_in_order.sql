-- +goose Up

-- +goose StatementBegin
-- claim_deliveries leases due deliveries, up to p_limits[i] and, within the shares, p_overflows[i] more of p_consumers[i],
-- and returns them with their events. What makes a delivery claimable is decided here and in the functions above: due, not
-- leased, organization active, consumer not paused, destination enabled, first in its lane, its turn. A share of 0 is none. p_held_consumers and the arrays beside
-- it are what the process has in hand. At most one of all is a suspect, and none unless p_suspect. With
-- p_types only events of these types are claimed, and organizations take turns instead of having shares.
--
-- The table is empty one minute and holds a hundred thousand rows the next, so its statistics are always wrong. The
-- settings keep the planner to walking the due indexes and looking rows up one by one, which is right for every size.
create or replace function claim_deliveries(
    p_consumers text[], p_limits int[], p_overflows int[], p_sides int[], p_shares int[], p_after uuid[],
    p_held_consumers text[], p_held_orgs uuid[], p_held_destinations uuid[], p_held int[], p_suspect boolean, p_lease_time interval,
    p_types text[] default null
) returns table (
    consumer_id smallint, destination uuid, org_id uuid, lane bigint, seq bigint, token bigint, consumer text, attempt int, budgeted int,
    max_attempts int, suspect boolean, unknown boolean, id uuid, type text, entity_kind text, entity_id uuid, payload jsonb, metadata jsonb,
    created_at timestamptz
)
language plpgsql
set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_taken tid[];
begin
    with want as (
        select c.id, w.n, w.overflow, w.side, w.share, w.after,
               held.orgs, held.destinations, held.counts
          from unnest(p_consumers, p_limits, p_overflows, p_sides, p_shares, p_after) w (name, n, overflow, side, share, after)
          join consumers c on c.name = w.name and c.paused_at is null
         cross join lateral (
            select coalesce(array_agg(h.org), '{}') as orgs, coalesce(array_agg(h.destination), '{}') as destinations,
                   coalesce(array_agg(h.n), '{}') as counts
              from unnest(p_held_consumers, p_held_orgs, p_held_destinations, p_held) h (consumer, org, destination, n)
             where h.consumer = w.name
         ) held
    ), alone as materialized (
        select d.*
          from want w
         cross join lateral (
            select d.ctid as at, w.id, d.due_at
              from delivery d
             where p_suspect
               and d.consumer_id = w.id
               and d.lease_token is null
               and d.suspect
               and d.due_at <= now()
               and (select o.status from organizations o where o.id = d.organization_id) = 'active'
               and coalesce((select s.enabled from webhook_subscriptions s where s.id = d.destination), true)
               and (p_types is null or '*' = any (p_types) or (select p.event_type from event_position p where p.seq = d.seq) = any (p_types))
               and (w.n > 0 or w.share > 0 and (select coalesce(sum(h.n), 0) < w.share from unnest(w.orgs, w.counts) h (org, n) where h.org = d.organization_id))
             order by d.due_at
             limit 1
               for update of d skip locked
         ) d
         order by d.due_at
         limit 1
    ), fair as (
        select case when p_types is null
                    then lock_fair(w.id, w.n - least(a.n, w.n), w.overflow - case when w.n = 0 then a.n else 0 end, w.side, w.share, w.after,
                                   w.orgs, w.destinations, w.counts)
                    else lock_by_turns(w.id, w.n - least(a.n, w.n), p_types) end as taken
          from want w
         cross join lateral (select count(*)::int as n from alone where alone.id = w.id) a
    )
    select array(select at from alone union all select unnest(taken) from fair) into v_taken;
    perform free_lapsed(p_consumers);

    return query
    with want as (
        select c.id, c.name, c.max_attempts from unnest(p_consumers) w (name) join consumers c on c.name = w.name
    ), lease as materialized (
        select nextval('lease_token_seq') as token
         where cardinality(v_taken) > 0
    ), claimed as (
        update delivery d
           set lease_token = (select token from lease),
               due_at = clock_timestamp() + p_lease_time,
               updated_at = clock_timestamp()
         where d.ctid = any (v_taken)
        returning d.*
    )
    select c.consumer_id, c.destination, c.organization_id, c.lane, c.seq, c.lease_token,
           w.name, (c.attempts + c.earlier_attempts + 1)::int, (c.attempts + 1)::int, w.max_attempts::int, c.suspect, c.effect_at is not null,
           e.id, e.event_type, e.entity_kind, e.entity_id, e.payload, e.metadata, e.created_at
      from claimed c
      join want w on w.id = c.consumer_id
      join event_log e on e.id = c.event_id and e.organization_id = c.organization_id;
end $$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
-- claim_deliveries leases due deliveries, up to p_limits[i] and, within the shares, p_overflows[i] more of p_consumers[i],
-- and returns them with their events. What makes a delivery claimable is decided here and in the functions above: due, not
-- leased, organization active, destination enabled, its turn. A share of 0 is none. p_held_consumers and the arrays beside
-- it are what the process has in hand. At most one of all is a suspect, and none unless p_suspect. With
-- p_types only events of these types are claimed, and organizations take turns instead of having shares.
--
-- A lease that ran out is the crash of its owner, which had others in hand: the first makes the delivery a suspect and
-- counts nothing. Suspects are handed out one by one, so the second is its own crash and counts: it is due again at
-- once, after further ones by the consumer's ladder, and dead when its attempts are spent.
--
-- The table is empty one minute and holds a hundred thousand rows the next, so its statistics are always wrong. The
-- settings keep the planner to walking the due indexes and looking rows up one by one, which is right for every size.
create or replace function claim_deliveries(
    p_consumers text[], p_limits int[], p_overflows int[], p_sides int[], p_shares int[], p_after uuid[],
    p_held_consumers text[], p_held_orgs uuid[], p_held_destinations uuid[], p_held int[], p_suspect boolean, p_lease_time interval,
    p_types text[] default null
) returns table (
    consumer_id smallint, destination uuid, org_id uuid, lane bigint, seq bigint, token bigint, consumer text, attempt int, budgeted int,
    max_attempts int, suspect boolean, unknown boolean, id uuid, type text, entity_kind text, entity_id uuid, payload jsonb, metadata jsonb,
    created_at timestamptz
)
language plpgsql
set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_taken tid[];
begin
    with want as (
        select c.id, w.n, w.overflow, w.side, w.share, w.after,
               held.orgs, held.destinations, held.counts
          from unnest(p_consumers, p_limits, p_overflows, p_sides, p_shares, p_after) w (name, n, overflow, side, share, after)
          join consumers c on c.name = w.name
         cross join lateral (
            select coalesce(array_agg(h.org), '{}') as orgs, coalesce(array_agg(h.destination), '{}') as destinations,
                   coalesce(array_agg(h.n), '{}') as counts
              from unnest(p_held_consumers, p_held_orgs, p_held_destinations, p_held) h (consumer, org, destination, n)
             where h.consumer = w.name
         ) held
    ), alone as materialized (
        select d.*
          from want w
         cross join lateral (
            select d.ctid as at, w.id, d.due_at
              from delivery d
             where p_suspect
               and d.consumer_id = w.id
               and d.lease_token is null
               and d.suspect
               and d.due_at <= now()
               and (select o.status from organizations o where o.id = d.organization_id) = 'active'
               and coalesce((select s.enabled from webhook_subscriptions s where s.id = d.destination), true)
               and (p_types is null or '*' = any (p_types) or (select p.event_type from event_position p where p.seq = d.seq) = any (p_types))
               and (w.n > 0 or w.share > 0 and (select coalesce(sum(h.n), 0) < w.share from unnest(w.orgs, w.counts) h (org, n) where h.org = d.organization_id))
             order by d.due_at
             limit 1
               for update of d skip locked
         ) d
         order by d.due_at
         limit 1
    ), fair as (
        select case when p_types is null
                    then lock_fair(w.id, w.n - least(a.n, w.n), w.overflow - case when w.n = 0 then a.n else 0 end, w.side, w.share, w.after,
                                   w.orgs, w.destinations, w.counts)
                    else lock_by_turns(w.id, w.n - least(a.n, w.n), p_types) end as taken
          from want w
         cross join lateral (select count(*)::int as n from alone where alone.id = w.id) a
    )
    select array(select at from alone union all select unnest(taken) from fair) into v_taken;

    return query
    with want as (
        select c.id, c.name, c.max_attempts, c.retry_steps, c.retry_jitter
          from unnest(p_consumers) w (name)
          join consumers c on c.name = w.name
    ), lapsed as (
        select d.*, w.name, w.retry_steps, w.retry_jitter, d.attempts + 1 as attempts_now,
               case when not d.suspect then 'suspect' when d.attempts + 1 < w.max_attempts then 'counted' else 'dead' end as outcome
          from want w
         cross join lateral (
            select d.*
              from delivery d
             where d.consumer_id = w.id
               and d.lease_token is not null
               and d.due_at <= now()
             order by d.due_at
             limit 500
               for update of d skip locked
         ) d
    ), freed as (
        update delivery d
           set lease_token = null,
               due_at = clock_timestamp()
                   + case when l.crashes > 0 then retry_delay(l.retry_steps, l.retry_jitter, l.attempts_now) else interval '0' end,
               suspect = true,
               attempts = case when l.outcome = 'counted' then l.attempts_now else l.attempts end,
               crashes = case when l.outcome = 'counted' then l.crashes + 1 else 0 end,
               last_error = case when l.outcome = 'counted' then 'the process died during the attempt' else l.last_error end,
               updated_at = clock_timestamp()
          from lapsed l
         where l.outcome <> 'dead'
           and d.consumer_id = l.consumer_id and d.destination = l.destination and d.organization_id = l.organization_id
           and d.lane = l.lane and d.seq = l.seq
    ), finished as (
        delete from delivery d
         using lapsed l
         where l.outcome = 'dead'
           and d.consumer_id = l.consumer_id and d.destination = l.destination and d.organization_id = l.organization_id
           and d.lane = l.lane and d.seq = l.seq
    ), buried as (
        insert into dead_delivery (delivery_id, organization_id, consumer_id, destination, lane, seq, event_id, event_type, entity_kind,
               entity_id, payload, metadata, event_created_at, attempts, earlier_attempts, last_error, state)
        select delivery_id(l.event_id, l.name, l.destination), l.organization_id, l.consumer_id, l.destination, l.lane, l.seq, l.event_id,
               e.event_type, e.entity_kind, e.entity_id, e.payload, e.metadata, e.created_at, l.attempts_now, l.earlier_attempts,
               'the process died during the attempt', case when l.effect_at is null then 'dead' else 'uncertain' end
          from lapsed l
          join event_log e on e.id = l.event_id and e.organization_id = l.organization_id
         where l.outcome = 'dead'
        on conflict (delivery_id) do update
           set state = excluded.state, attempts = excluded.attempts, earlier_attempts = excluded.earlier_attempts,
               last_error = excluded.last_error, died_at = clock_timestamp(), resolved_at = null, reason = null
    ), lease as materialized (
        select nextval('lease_token_seq') as token
         where cardinality(v_taken) > 0
    ), claimed as (
        update delivery d
           set lease_token = (select token from lease),
               due_at = clock_timestamp() + p_lease_time,
               updated_at = clock_timestamp()
         where d.ctid = any (v_taken)
        returning d.*
    )
    select c.consumer_id, c.destination, c.organization_id, c.lane, c.seq, c.lease_token,
           w.name, (c.attempts + c.earlier_attempts + 1)::int, (c.attempts + 1)::int, w.max_attempts::int, c.suspect, c.effect_at is not null,
           e.id, e.event_type, e.entity_kind, e.entity_id, e.payload, e.metadata, e.created_at
      from claimed c
      join want w on w.id = c.consumer_id
      join event_log e on e.id = c.event_id and e.organization_id = c.organization_id;
end $$;
-- +goose StatementEnd
