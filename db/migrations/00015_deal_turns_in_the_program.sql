-- +goose Up

-- An event has one place in the order of all, so that and the reader are the key of a delivery; what the deliveries of an event
-- are is found by it too. Only those in lanes are looked for in their order. Each index less is one entry less to write when
-- a delivery is made, and one less when it is claimed.
alter table delivery drop constraint delivery_pkey;
drop index delivery_seq_idx;
alter table delivery add constraint delivery_pkey primary key (seq, consumer_id, destination);
create index delivery_order_idx on delivery (consumer_id, destination, organization_id, lane, seq) where lane <> 0;

drop function claim_deliveries(
    text[], int[], int[], int[], int[], int[], int[], uuid[], uuid[], text[], uuid[], uuid[], int[], boolean, interval, text[]);
drop function lock_fair(smallint, int, int, int, int, int, int, uuid, uuid, uuid[], uuid[], int[]);
drop function free_lapsed(text[]);
drop function due_flows(smallint, boolean, uuid, int);

-- +goose StatementBegin
-- free_lapsed ends the leases of these consumers that have run out, each the crash of its owner. The first makes the
-- delivery a suspect and counts nothing, because the owner had others in hand. Suspects are handed out one by one, so the
-- second is its own crash and counts: it is due again at once, after further ones by the consumer's ladder, and dead when its
-- attempts are spent. It returns how many it has ended.
create function free_lapsed(p_consumers text[]) returns int
language plpgsql
set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    c_crashed constant text := 'the process died during the attempt';
    v_taken   tid[];
    v_ordered record;
begin
    select array_agg(d.at) into v_taken
      from unnest(p_consumers) w (name)
      join consumers c on c.name = w.name
     cross join lateral (
        select d.ctid as at
          from delivery d
         where d.consumer_id = c.id
           and d.lease_token is not null
           and d.due_at <= now()
         order by d.due_at
         limit 500
           for update of d skip locked
     ) d;
    if v_taken is null then
        return 0;
    end if;

    select array_agg(d.consumer_id) as consumers, array_agg(d.destination) as destinations, array_agg(d.organization_id) as orgs, array_agg(d.lane) as lanes
      into v_ordered
      from delivery d
     where d.ctid = any (v_taken) and d.lane <> 0;

    update delivery d
       set lease_token = null,
           due_at = clock_timestamp() + case when d.crashes > 0 then retry_delay(c.retry_steps, c.retry_jitter, d.attempts + 1) else interval '0' end,
           attempts = case when d.suspect then d.attempts + 1 else d.attempts end,
           crashes = case when d.suspect then d.crashes + 1 else 0 end,
           last_error = case when d.suspect then c_crashed else d.last_error end,
           suspect = true,
           updated_at = clock_timestamp()
      from consumers c
     where d.ctid = any (v_taken) and c.id = d.consumer_id and (not d.suspect or d.attempts + 1 < c.max_attempts);

    -- Those that the update has left where they were.
    perform bury_delivery(d, d.attempts + 1, c_crashed, case when d.effect_at is null then 'dead' else 'uncertain' end)
       from delivery d
      where d.ctid = any (v_taken);
    if v_ordered.lanes is not null then
        perform advance_lanes(v_ordered.consumers, v_ordered.destinations, v_ordered.orgs, v_ordered.lanes);
    end if;
    return cardinality(v_taken);
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- flows_between lists the pairs of organization and destination that have work of a class due for a consumer and may have it
-- done, after one organization and up to another, until p_organizations have been met. Each pair costs one step in its index,
-- however much waits there, and a suspended organization costs one in all. The number of steps is bounded.
create function flows_between(p_consumer smallint, p_interactive boolean, p_after uuid, p_last uuid, p_organizations int)
returns table (organization_id uuid, destination uuid, due_at timestamptz)
language plpgsql stable
as $$
#variable_conflict use_column
begin
    return query
    with recursive flow as (
        select p_after as organization_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid as destination, null::timestamptz as due_at,
               false as active, false as due, null::uuid as met_last, 0 as met, 0 as step
         union all
        select n.organization_id, n.destination, n.due_at, s.active, t.due,
               case when t.due then n.organization_id else f.met_last end,
               f.met + (t.due and n.organization_id is distinct from f.met_last)::int, f.step + 1
          from flow f
         cross join lateral (
            select d.organization_id, d.destination, d.due_at
              from delivery d
             where d.consumer_id = p_consumer
               and d.interactive = p_interactive
               and d.lease_token is null
               and not d.suspect
               and (d.organization_id, d.destination)
                   > (f.organization_id, case when f.active then f.destination else 'ffffffff-ffff-ffff-ffff-ffffffffffff' end)
             order by d.organization_id, d.destination, d.due_at
             limit 1
         ) n
         cross join lateral (
            select coalesce(case when n.organization_id = f.organization_id then f.active end,
                            (select o.status = 'active' from organizations o where o.id = n.organization_id), false) as active
         ) s
         cross join lateral (
            select s.active and n.due_at <= now()
                   and (n.destination = '00000000-0000-0000-0000-000000000000'
                        or coalesce((select w.enabled from webhook_subscriptions w where w.id = n.destination), true)) as due
         ) t
         where f.step < 5000 and f.met <= p_organizations and n.organization_id <= p_last
    )
    select f.organization_id, f.destination, f.due_at from flow f where f.due and f.met <= p_organizations;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- due_flows lists what flows_between does of the organizations after p_after, around the circle.
create function due_flows(p_consumer smallint, p_interactive boolean, p_after uuid, p_organizations int)
returns table (organization_id uuid, destination uuid, due_at timestamptz)
language plpgsql stable
as $$
#variable_conflict use_column
declare
    c_first constant uuid := '00000000-0000-0000-0000-000000000000';
    c_last  constant uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
begin
    return query select * from flows_between(p_consumer, p_interactive, p_after, c_last, p_organizations);
    if p_after <> c_first then
        return query select * from flows_between(p_consumer, p_interactive, c_first, p_after, p_organizations);
    end if;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- waiting_flows lists the flows of consumers with work due, see due_flows, and how much of it is due in each. It counts in
-- each no further than to most: p_depth times what each would have to give to fill p_rooms four times over, which is how much may be
-- taken of a consumer; so that the next claims may go by it too. A count that has reached most may be larger. p_held is of how many
-- organizations something is in hand.
create function waiting_flows(p_consumers text[], p_after uuid[], p_after_interactive uuid[], p_rooms int[], p_held int[], p_depth int)
returns table (consumer text, consumer_id smallint, organization_id uuid, destination uuid, interactive boolean, due_at timestamptz, waiting int, most int)
language plpgsql stable
set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
begin
    return query
    with flow as materialized (
        select w.name, c.id, w.room, k.interactive, f.*, count(*) over (partition by w.name) as flows
          from unnest(p_consumers, p_after, p_after_interactive, p_rooms, p_held) w (name, after, after_interactive, room, held)
          join consumers c on c.name = w.name and c.paused_at is null
         cross join (values (true), (false)) k (interactive)
         cross join lateral due_flows(c.id, k.interactive, case when k.interactive then w.after_interactive else w.after end,
                                      greatest(w.room + w.held, 2)) f
    )
    select f.name, f.id, f.organization_id, f.destination, f.interactive, f.due_at, n.waiting, m.most
      from flow f
     cross join lateral (
        select p_depth * greatest(8, ceil(4.0 * f.room / f.flows)::int) as most
     ) m
     cross join lateral (
        select count(*)::int as waiting
          from (select
                  from delivery d
                 where d.consumer_id = f.id
                   and d.interactive = f.interactive
                   and (d.organization_id, d.destination) between (f.organization_id, f.destination) and (f.organization_id, f.destination)
                   and d.lease_token is null
                   and not d.suspect
                   and d.due_at <= now()
                 order by d.organization_id, d.destination, d.due_at
                 limit m.most) d
     ) n;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- fits reports whether everything that is due for a consumer may be claimed at once, within all limits: p_limit of anybody,
-- p_overflow more of organizations below their share, p_express more that are interactive. p_orgs, p_destinations and p_held
-- are what is in hand already.
create function fits(
    p_consumer smallint, p_limit int, p_express int, p_overflow int, p_share int, p_orgs uuid[], p_destinations uuid[], p_held int[]
) returns boolean
language plpgsql stable
as $$
begin
    return (with head as materialized (
        select h.*
          from (
            (select d.organization_id, d.destination, d.interactive
               from delivery d
              where d.consumer_id = p_consumer
                and d.interactive
                and d.lease_token is null
                and not d.suspect
                and d.due_at <= now()
              order by d.due_at
              limit p_limit + p_overflow + p_express)
             union all
            (select d.organization_id, d.destination, d.interactive
               from delivery d
              where d.consumer_id = p_consumer
                and not d.interactive
                and d.lease_token is null
                and not d.suspect
                and d.due_at <= now()
              order by d.due_at
              limit p_limit + p_overflow + p_express)
          ) h
         limit p_limit + p_overflow + p_express
    ), flow as (
        select organization_id, destination, count(*) as n
          from head
         group by organization_id, destination
    ), used as (
        select sum(f.n) over (partition by f.organization_id)
                   + coalesce((select sum(h.n) from unnest(p_orgs, p_held) h (o, n) where h.o = f.organization_id), 0) as by_organization,
               case when f.destination = '00000000-0000-0000-0000-000000000000' then 0 else f.n
                   + coalesce((select sum(h.n) from unnest(p_orgs, p_destinations, p_held) h (o, d, n)
                                where h.o = f.organization_id and h.d = f.destination), 0)
               end as by_destination
          from flow f
    )
    select case when (select count(*) - least(count(*) filter (where interactive), p_express) from head) >= p_limit + p_overflow then false
                else (select coalesce(bool_and(by_organization <= p_share and by_destination <= greatest(p_share / 2, 1)), true) from used) end);
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- lock_suspect locks the suspect that has been due longest of all that the consumers have, if they have slots for it: p_limits of
-- anybody, p_overflows of organizations with less than p_shares in hand. With p_types only events of these types count.
create function lock_suspect(
    p_consumers text[], p_limits int[], p_overflows int[], p_shares int[], p_held_consumers text[], p_held_orgs uuid[], p_held int[], p_types text[]
) returns table (at tid, consumer text)
language plpgsql
as $$
#variable_conflict use_column
begin
    return query
    select d.at, d.name
      from (
        select s.*
          from unnest(p_consumers, p_limits, p_overflows, p_shares) w (name, n, overflow, share)
          join consumers c on c.name = w.name and c.paused_at is null
         cross join lateral (
            select d.ctid as at, w.name, d.due_at
              from delivery d
             where d.consumer_id = c.id
               and d.lease_token is null
               and d.suspect
               and d.due_at <= now()
               and (select o.status from organizations o where o.id = d.organization_id) = 'active'
               and coalesce((select s.enabled from webhook_subscriptions s where s.id = d.destination), true)
               and ('*' = any (p_types) or (select p.event_type from event_position p where p.seq = d.seq) = any (p_types))
               and (w.n > 0 or w.overflow > 0 and w.share > 0
                    and (select coalesce(sum(h.n), 0) < w.share
                           from unnest(p_held_consumers, p_held_orgs, p_held) h (consumer, org, n)
                          where h.consumer = w.name and h.org = d.organization_id))
             order by d.due_at
             limit 1
               for update of d skip locked
         ) s
      ) d
     order by d.due_at
     limit 1;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- lock_fitting locks what consumers may have of what is due for them, as far as no turns have to be dealt out: all that is due,
-- when it fits the limits, see fits; without a share, what is due longest. The names of the others are in crowded.
-- Of all consumers one suspect may be among it, if p_suspect. What makes a delivery claimable is decided here and in the
-- functions above: due, not leased, organization active, consumer not paused, destination enabled, first in its lane.
--
-- The leases that have run out are ended too, unless somebody is crowded: what comes of that is for a later claim, and this one
-- goes on. Of how many, is in lapsed.
create function lock_fitting(
    p_consumers text[], p_limits int[], p_expresses int[], p_overflows int[], p_shares int[],
    p_held_consumers text[], p_held_orgs uuid[], p_held_destinations uuid[], p_held int[], p_suspect boolean,
    out taken tid[], out crowded text[], out lapsed int
)
language plpgsql
set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_want  record;
    v_alone record;
begin
    taken := '{}';
    crowded := '{}';
    select null::tid as at, null::text as consumer into v_alone;
    if p_suspect and exists (
        select from consumers c cross join lateral (
            select from delivery d where d.consumer_id = c.id and d.lease_token is null and d.suspect and d.due_at <= now() order by d.due_at limit 1) d
         where c.name = any (p_consumers))
    then
        select s.* into v_alone
          from lock_suspect(p_consumers, p_limits, p_overflows, p_shares, p_held_consumers, p_held_orgs, p_held, '{*}') s;
    end if;
    for v_want in
        select w.name, c.id, w.share, w.express,
               w.n - (w.name is not distinct from v_alone.consumer and w.n > 0)::int as n,
               w.overflow - (w.name is not distinct from v_alone.consumer and w.n = 0)::int as overflow,
               h.orgs, h.destinations, h.counts
          from (select u.name, u.n, u.express, u.overflow, u.share
                  from unnest(p_consumers, p_limits, p_expresses, p_overflows, p_shares) u (name, n, express, overflow, share)) w
          join consumers c on c.name = w.name and c.paused_at is null
         cross join lateral (
            select coalesce(array_agg(h.org), '{}') as orgs, coalesce(array_agg(h.destination), '{}') as destinations,
                   coalesce(array_agg(h.n), '{}') as counts
              from unnest(p_held_consumers, p_held_orgs, p_held_destinations, p_held) h (consumer, org, destination, n)
             where h.consumer = w.name
         ) h
    loop
        if v_want.share = 0 then
            taken := taken || lock_due(v_want.id, v_want.n);
        elsif fits(v_want.id, v_want.n, v_want.express, v_want.overflow, v_want.share, v_want.orgs, v_want.destinations, v_want.counts) then
            taken := taken || lock_due(v_want.id, v_want.n + v_want.overflow + v_want.express);
        else
            crowded := crowded || v_want.name;
        end if;
    end loop;
    if v_alone.at is not null then
        taken := v_alone.at || taken;
    end if;
    lapsed := case when crowded = '{}' then free_lapsed(p_consumers) else 0 end;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- lock_for_worker locks what a worker outside of the program is to get: its suspect, if p_suspect, else due events of the given types by
-- turns. It ends the leases that have run out.
create function lock_for_worker(p_worker text, p_limit int, p_suspect boolean, p_types text[]) returns tid[]
language plpgsql
set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_id    smallint := (select id from consumers where name = p_worker and paused_at is null);
    v_taken tid[] := '{}';
begin
    if v_id is null then
        return v_taken;
    end if;
    if p_suspect then
        v_taken := (select array_agg(s.at) from lock_suspect(array[p_worker], '{1}', '{0}', '{0}', '{}', '{}', '{}', p_types) s);
    else
        v_taken := lock_by_turns(v_id, p_limit, p_types);
    end if;
    perform free_lapsed(array[p_worker]);
    return v_taken;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- lock_flows locks of each flow as many as it is given of what is due there, in the order in which it is, unless it has been
-- stopped since it was found.
create function lock_flows(p_consumers smallint[], p_interactives boolean[], p_orgs uuid[], p_destinations uuid[], p_counts int[]) returns tid[]
language plpgsql
set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
begin
    return (select coalesce(array_agg(d.at), '{}')
      from unnest(p_consumers, p_interactives, p_orgs, p_destinations, p_counts) f (consumer_id, interactive, organization_id, destination, n)
      join consumers c on c.id = f.consumer_id and c.paused_at is null
      join organizations o on o.id = f.organization_id and o.status = 'active'
      left join webhook_subscriptions s on s.id = f.destination
     cross join lateral (
        select d.ctid as at
          from delivery d
         where s.enabled is not false
           and d.consumer_id = f.consumer_id
           and d.interactive = f.interactive
           and (d.organization_id, d.destination) between (f.organization_id, f.destination) and (f.organization_id, f.destination)
           and d.lease_token is null
           and not d.suspect
           and d.due_at <= now()
         order by d.organization_id, d.destination, d.due_at
         limit f.n
           for update of d skip locked
     ) d);
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- lease_deliveries leases deliveries that this transaction has locked and returns them with their events.
--
-- The table is empty one minute and holds a hundred thousand rows the next, so its statistics are always wrong. The
-- settings, here and above, keep the planner to walking the due indexes and looking rows up one by one, which is right for
-- every size.
create function lease_deliveries(p_taken tid[], p_lease_time interval) returns table (
    consumer_id smallint, destination uuid, org_id uuid, lane bigint, seq bigint, token bigint, consumer text, attempt int, budgeted int,
    max_attempts int, suspect boolean, unknown boolean, interactive boolean, id uuid, type text, entity_kind text, entity_id uuid, payload jsonb,
    metadata jsonb, created_at timestamptz
)
language plpgsql
set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    v_token bigint;
begin
    if cardinality(p_taken) > 0 then
        v_token := nextval('lease_token_seq');
        return query
        with claimed as (
            update delivery d
               set lease_token = v_token,
                   due_at = clock_timestamp() + p_lease_time,
                   updated_at = clock_timestamp()
             where d.ctid = any (p_taken)
            returning d.*
        )
        select c.consumer_id, c.destination, c.organization_id, c.lane, c.seq, c.lease_token,
               r.name, (c.attempts + c.earlier_attempts + 1)::int, (c.attempts + 1)::int, r.max_attempts::int, c.suspect, c.effect_at is not null,
               c.interactive, e.id, e.event_type, e.entity_kind, e.entity_id, e.payload, e.metadata, e.created_at
          from claimed c
          join consumers r on r.id = c.consumer_id
          join event_log e on e.id = c.event_id and e.organization_id = c.organization_id;
    end if;
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
-- lane_states tells of each of the lanes which delivery is its first and which is current, null when there is none, whether
-- the current one is in hand, and whether the lane is paused.
--
-- Comparing whole rows and ordering by all columns leaves the planner one index for each: whatever its statistics say, it
-- must not walk what waits in a lane, nor all of the table in the order of seq.
create or replace function lane_states(p_consumers smallint[], p_destinations uuid[], p_orgs uuid[], p_lanes bigint[]) returns setof lane_state
language sql stable
as $$
    select l.consumer_id, l.destination, l.organization_id, l.lane, f.seq, c.seq, c.lease_token is not null,
           exists (
            select from paused_lane p
             where p.organization_id = l.organization_id and p.consumer_id = l.consumer_id and p.destination = l.destination and p.lane = l.lane)
      from unnest(p_consumers, p_destinations, p_orgs, p_lanes) l (consumer_id, destination, organization_id, lane)
      left join lateral (
        select d.seq
          from delivery d
         where (d.consumer_id, d.destination, d.organization_id, d.lane)
               between (l.consumer_id, l.destination, l.organization_id, l.lane) and (l.consumer_id, l.destination, l.organization_id, l.lane)
           and d.lane <> 0
         order by d.consumer_id, d.destination, d.organization_id, d.lane, d.seq
         limit 1
      ) f on true
      left join lateral (
        select d.seq, d.lease_token
          from delivery d
         where (d.organization_id, d.consumer_id, d.destination, d.lane)
               between (l.organization_id, l.consumer_id, l.destination, l.lane) and (l.organization_id, l.consumer_id, l.destination, l.lane)
           and d.lane <> 0 and d.due_at < 'infinity'
         order by d.organization_id, d.consumer_id, d.destination, d.lane
         limit 1
      ) c on true
$$;
-- +goose StatementEnd

revoke execute on function free_lapsed(text[]), due_flows(smallint, boolean, uuid, int), flows_between(smallint, boolean, uuid, uuid, int),
    waiting_flows(text[], uuid[], uuid[], int[], int[], int), fits(smallint, int, int, int, int, uuid[], uuid[], int[]),
    lock_suspect(text[], int[], int[], int[], text[], uuid[], int[], text[]),
    lock_fitting(text[], int[], int[], int[], int[], text[], uuid[], uuid[], int[], boolean),
    lock_for_worker(text, int, boolean, text[]), lock_flows(smallint[], boolean[], uuid[], uuid[], int[]), lease_deliveries(tid[], interval)
    from public;

-- +goose Down
drop function lease_deliveries(tid[], interval), lock_for_worker(text, int, boolean, text[]), lock_flows(smallint[], boolean[], uuid[], uuid[], int[]),
    lock_fitting(text[], int[], int[], int[], int[], text[], uuid[], uuid[], int[], boolean),
    lock_suspect(text[], int[], int[], int[], text[], uuid[], int[], text[]),
    fits(smallint, int, int, int, int, uuid[], uuid[], int[]),
    waiting_flows(text[], uuid[], uuid[], int[], int[], int), due_flows(smallint, boolean, uuid, int),
    flows_between(smallint, boolean, uuid, uuid, int), free_lapsed(text[]);
drop index delivery_order_idx;
alter table delivery drop constraint delivery_pkey;
alter table delivery add constraint delivery_pkey primary key (consumer_id, destination, organization_id, lane, seq);
create index delivery_seq_idx on delivery (seq);

-- +goose StatementBegin
-- free_lapsed ends the leases of these consumers that have run out, each the crash of its owner. The first makes the
-- delivery a suspect and counts nothing, because the owner had others in hand. Suspects are handed out one by one, so the
-- second is its own crash and counts: it is due again at once, after further ones by the consumer's ladder, and dead when its
-- attempts are spent.
create function free_lapsed(p_consumers text[]) returns void
language plpgsql
set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    c_crashed constant text := 'the process died during the attempt';
    v_taken   tid[];
    v_ordered record;
begin
    select array_agg(d.at) into v_taken
      from unnest(p_consumers) w (name)
      join consumers c on c.name = w.name
     cross join lateral (
        select d.ctid as at
          from delivery d
         where d.consumer_id = c.id
           and d.lease_token is not null
           and d.due_at <= now()
         order by d.due_at
         limit 500
           for update of d skip locked
     ) d;
    if v_taken is null then
        return;
    end if;

    select array_agg(d.consumer_id) as consumers, array_agg(d.destination) as destinations, array_agg(d.organization_id) as orgs, array_agg(d.lane) as lanes
      into v_ordered
      from delivery d
     where d.ctid = any (v_taken) and d.lane <> 0;

    update delivery d
       set lease_token = null,
           due_at = clock_timestamp() + case when d.crashes > 0 then retry_delay(c.retry_steps, c.retry_jitter, d.attempts + 1) else interval '0' end,
           attempts = case when d.suspect then d.attempts + 1 else d.attempts end,
           crashes = case when d.suspect then d.crashes + 1 else 0 end,
           last_error = case when d.suspect then c_crashed else d.last_error end,
           suspect = true,
           updated_at = clock_timestamp()
      from consumers c
     where d.ctid = any (v_taken) and c.id = d.consumer_id and (not d.suspect or d.attempts + 1 < c.max_attempts);

    -- Those that the update has left where they were.
    perform bury_delivery(d, d.attempts + 1, c_crashed, case when d.effect_at is null then 'dead' else 'uncertain' end)
       from delivery d
      where d.ctid = any (v_taken);
    if v_ordered.lanes is not null then
        perform advance_lanes(v_ordered.consumers, v_ordered.destinations, v_ordered.orgs, v_ordered.lanes);
    end if;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- due_flows lists the pairs of organization and destination that have work of a class due for a consumer and may have it
-- done: those of the organizations after p_after, around the circle, until p_organizations have been met. Each pair costs one
-- step in its index, however much waits there, and a suspended organization costs one in all. The number of steps is bounded.
create function due_flows(p_consumer smallint, p_interactive boolean, p_after uuid, p_organizations int)
returns table (organization_id uuid, destination uuid)
language plpgsql
as $$
#variable_conflict use_column
declare
    c_first   constant uuid := '00000000-0000-0000-0000-000000000000';
    c_last    constant uuid := 'ffffffff-ffff-ffff-ffff-ffffffffffff';
    v_at      uuid := p_after;
    v_beside  uuid := c_last;
    v_wrapped boolean := p_after = c_first;
    v_met     uuid[] := '{}';
    v_head    record;
begin
    for step in 1 .. 5000 loop
        select d.organization_id, d.destination, d.due_at into v_head
          from delivery d
         where d.consumer_id = p_consumer
           and d.interactive = p_interactive
           and d.lease_token is null
           and not d.suspect
           and (d.organization_id, d.destination) > (v_at, v_beside)
         order by d.organization_id, d.destination, d.due_at
         limit 1;
        if not found or v_wrapped and p_after <> c_first and v_head.organization_id > p_after then
            exit when v_wrapped;
            v_wrapped := true;
            v_at := c_first;
            v_beside := c_first;
            continue;
        end if;
        if v_head.organization_id <> v_at and (select o.status from organizations o where o.id = v_head.organization_id) is distinct from 'active' then
            v_at := v_head.organization_id;
            v_beside := c_last;
            continue;
        end if;
        v_at := v_head.organization_id;
        v_beside := v_head.destination;
        if v_head.due_at <= now() and coalesce((select s.enabled from webhook_subscriptions s where s.id = v_head.destination), true) then
            if v_met[cardinality(v_met)] is distinct from v_at then
                exit when cardinality(v_met) = p_organizations;
                v_met := v_met || v_at;
            end if;
            organization_id := v_at;
            destination := v_beside;
            return next;
        end if;
    end loop;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- lock_fair locks due deliveries as the shares allow: up to p_limit of anybody, up to p_express more that are interactive, and
-- up to p_overflow more of organizations below their share. p_orgs, p_destinations and p_held are what is in hand already, of
-- both classes.
--
-- Work that keeps within the shares is taken as it became due, if that is all there is. Else p_bulk bulk ones come first, so
-- that they are not kept waiting for ever, then what is interactive, then the rest. In each of these the organizations with due work take
-- turns, after p_after or p_after_interactive, those with the least in hand first, each up to its share, of which one
-- destination has at most half while another of them has due work. A destination below that half may have one of p_side slots
-- when a greedy one beside it has used up the organization's share. What is free after that is for the one organization that
-- still has due work, if it is the only one, for the destinations with the least in hand first.
--
-- Interactive ones take the express slots before others, hence so many may be taken in all: p_limit, the overflow if it
-- applies, and as many of p_express as there are interactive ones.
--
-- Pairs are looked up by ranges and in the order of their index: by equality, the planner may take the index of what is due
-- and walk over all that others have in it.
create function lock_fair(
    p_consumer smallint, p_limit int, p_express int, p_overflow int, p_side int, p_share int, p_bulk int, p_after uuid, p_after_interactive uuid,
    p_orgs uuid[], p_destinations uuid[], p_held int[]
) returns tid[]
language plpgsql
as $$
declare
    c_none         constant uuid := '00000000-0000-0000-0000-000000000000';
    v_room         int := p_limit + p_overflow + p_express;
    v_half         int := greatest(p_share / 2, 1);
    v_fits         boolean;
    v_flow_orgs    uuid[];
    v_flow_targets uuid[];
    v_flow_classes boolean[]; -- whether it is the interactive work of the pair
    v_interactive  int;       -- organizations below their share that have such work, and those that have other
    v_bulk         int;
    v_orgs         int;
    v_alone        boolean;   -- with one destination and class, and the shares would not give it more than the rest does
    v_deepest      int;       -- how many of a pair are looked at
    v_taken        tid[] := '{}';
    v_rest         tid[];
    v_single       uuid;
begin
    if p_share = 0 then
        return lock_due(p_consumer, p_limit);
    end if;
    with head as (
        select h.*
          from (
            (select d.organization_id, d.destination, d.interactive
               from delivery d
              where d.consumer_id = p_consumer
                and d.interactive
                and d.lease_token is null
                and not d.suspect
                and d.due_at <= now()
              order by d.due_at
              limit v_room)
             union all
            (select d.organization_id, d.destination, d.interactive
               from delivery d
              where d.consumer_id = p_consumer
                and not d.interactive
                and d.lease_token is null
                and not d.suspect
                and d.due_at <= now()
              order by d.due_at
              limit v_room)
          ) h
         limit v_room
    ), flow as (
        select organization_id, destination, count(*) as n, count(*) filter (where interactive) as interactive
          from head
         group by organization_id, destination
    ), held as (
        select h.organization_id, h.destination, h.n from unnest(p_orgs, p_destinations, p_held) h (organization_id, destination, n)
    ), used as (
        select f.n, f.interactive, sum(f.n) over (partition by f.organization_id)
                   + coalesce((select sum(h.n) from held h where h.organization_id = f.organization_id), 0) as by_organization,
               case when f.destination = c_none then 0 else f.n
                   + coalesce((select sum(h.n) from held h where h.organization_id = f.organization_id and h.destination = f.destination), 0)
               end as by_destination
          from flow f
    )
    select coalesce(bool_and(by_organization <= p_share and by_destination <= v_half), true)
           and coalesce(sum(n) - least(sum(interactive), p_express), 0) < p_limit + p_overflow
      into v_fits
      from used;
    if v_fits then
        return lock_due(p_consumer, v_room);
    end if;

    select coalesce(array_agg(f.organization_id order by f.n), '{}'), coalesce(array_agg(f.destination order by f.n), '{}'),
           coalesce(array_agg(f.interactive order by f.n), '{}'),
           count(distinct f.organization_id) filter (where f.interactive and f.below),
           count(distinct f.organization_id) filter (where not f.interactive and f.below)
      into v_flow_orgs, v_flow_targets, v_flow_classes, v_interactive, v_bulk
      from (
        select f.*, row_number() over () as n,
               (select coalesce(sum(h.n), 0) < p_share from unnest(p_orgs, p_held) h (o, n) where h.o = f.organization_id) as below
          from (
            select true as interactive, i.* from due_flows(p_consumer, true, p_after_interactive, greatest(v_room + cardinality(p_orgs), 2)) i
             union all
            select false, b.* from due_flows(p_consumer, false, p_after, greatest(v_room + cardinality(p_orgs), 2)) b
          ) f
      ) f;

    v_alone := cardinality(v_flow_orgs) = 1
        and p_limit + case when v_flow_classes[1] then p_express else 0 end
            >= p_share - (select coalesce(sum(h.n), 0) from unnest(p_orgs, p_held) h (o, n) where h.o = v_flow_orgs[1]);
    -- Of many pairs a few of each fill the room: looking at a share of each would cost as much as all of them have waiting.
    v_deepest := ceil(v_room::numeric / greatest(cardinality(v_flow_orgs), 1));
    while v_deepest < least(p_share, v_room) and not v_alone and 2 * v_room > (
        select count(*)
          from unnest(v_flow_orgs, v_flow_targets, v_flow_classes) f (organization_id, destination, interactive)
         cross join lateral (
            select
              from delivery d
             where d.consumer_id = p_consumer
               and d.interactive = f.interactive
               and (d.organization_id, d.destination) between (f.organization_id, f.destination) and (f.organization_id, f.destination)
               and d.lease_token is null
               and not d.suspect
               and d.due_at <= now()
             order by d.organization_id, d.destination, d.due_at
             limit v_deepest
         ) d
         where (select coalesce(sum(h.n), 0) < p_share from unnest(p_orgs, p_held) h (o, n) where h.o = f.organization_id))
    loop
        v_deepest := v_deepest * 4;
    end loop;
    with flow as materialized (
        select f.organization_id, f.destination, f.interactive, f.n,
               first_value(f.destination) over (partition by f.organization_id order by f.destination)
                   <> first_value(f.destination) over (partition by f.organization_id order by f.destination desc) as several,
               coalesce((select sum(h.n) from unnest(p_orgs, p_held) h (o, n) where h.o = f.organization_id), 0) as by_organization,
               coalesce((select sum(h.n) from unnest(p_orgs, p_destinations, p_held) h (o, d, n)
                          where h.o = f.organization_id and h.d = f.destination), 0) as by_destination,
               (select coalesce(max(h.n), 0) > v_half from unnest(p_orgs, p_held) h (o, n) where h.o = f.organization_id) as greedy
          from unnest(v_flow_orgs, v_flow_targets, v_flow_classes) with ordinality f (organization_id, destination, interactive, n)
         where not v_alone
    ), waiting as (
        select f.*, d.due_at, row_number() over (partition by f.n order by d.due_at) as nth
          from flow f
         cross join lateral (
            select d.due_at
              from delivery d
             where d.consumer_id = p_consumer
               and d.interactive = f.interactive
               and (d.organization_id, d.destination) between (f.organization_id, f.destination) and (f.organization_id, f.destination)
               and d.lease_token is null
               and not d.suspect
               and d.due_at <= now()
             order by d.organization_id, d.destination, d.due_at
             limit case when case when f.interactive then v_interactive else v_bulk end >= v_room then 1 else least(p_share, v_room, v_deepest) end
         ) d
    ), ranked as (
        select w.*, m.may and row_number() over (partition by m.may order by w.by_organization + w.nth, w.n) <= least(p_bulk, p_limit + p_overflow) as reserved
          from waiting w
         cross join lateral (
            select not w.interactive and w.by_organization + w.nth <= p_share and (not w.several or w.by_destination + w.nth <= v_half) as may
         ) m
    ), lined_up as (
        select r.*, r.by_destination
                   + row_number() over (partition by r.organization_id, r.destination order by r.reserved desc, r.interactive desc, r.due_at)
                   as in_destination
          from ranked r
    ), placed as (
        select l.*, l.by_organization
                   + row_number() over (partition by l.organization_id order by l.reserved desc, l.interactive desc, l.in_destination, l.due_at)
                   as place
          from lined_up l
         where not l.several and l.by_organization + l.in_destination - l.by_destination <= p_share or l.in_destination <= v_half
    ), turns as (
        select p.*, row_number() over (partition by p.place > p_share order by p.reserved desc, p.interactive desc, p.place, p.n) as turn,
               count(*) filter (where p.place <= p_share) over () as within,
               p_limit + p_overflow + least(count(*) filter (where p.place <= p_share and p.interactive) over (), p_express) as room
          from placed p
         where p.place <= p_share or p.destination <> c_none and p.greedy and p.in_destination <= v_half
    ), quota as (
        select t.organization_id, t.destination, t.interactive, count(*) as n
          from turns t
         where t.turn <= case when t.place <= p_share then t.room else least(p_side, t.room - t.within) end
         group by t.organization_id, t.destination, t.interactive
    )
    select coalesce(array_agg(d.at), '{}'), count(*) filter (where q.interactive) into v_taken, v_interactive
      from quota q
     cross join lateral (
        select d.ctid as at
          from delivery d
         where d.consumer_id = p_consumer
           and d.interactive = q.interactive
           and (d.organization_id, d.destination) between (q.organization_id, q.destination) and (q.organization_id, q.destination)
           and d.lease_token is null
           and not d.suspect
           and d.due_at <= now()
         order by d.organization_id, d.destination, d.due_at
         limit q.n
           for update of d skip locked
     ) d;
    if cardinality(v_taken) >= p_limit + (case when true = any (v_flow_classes) then p_express else 0 end) then
        return v_taken;
    end if;

    -- Who still has work due, and where.
    select array_agg(f.organization_id), array_agg(f.destination), array_agg(f.interactive), count(distinct f.organization_id)
      into v_flow_orgs, v_flow_targets, v_flow_classes, v_orgs
      from unnest(v_flow_orgs, v_flow_targets, v_flow_classes) f (organization_id, destination, interactive)
     cross join lateral (
        select
          from delivery d
         where d.consumer_id = p_consumer
           and d.interactive = f.interactive
           and (d.organization_id, d.destination) between (f.organization_id, f.destination) and (f.organization_id, f.destination)
           and d.lease_token is null
           and not d.suspect
           and d.due_at <= now()
           and d.ctid <> all (v_taken)
         order by d.organization_id, d.destination, d.due_at
         limit 1
     ) d;
    if v_orgs <> 1 then
        return v_taken;
    end if;
    v_single := v_flow_orgs[1];
    v_room := greatest(p_limit - cardinality(v_taken) + least(v_interactive, p_express), 0); -- for any class
    with flow as materialized (
        select f.destination, f.interactive,
               coalesce((select sum(h.n) from unnest(p_orgs, p_destinations, p_held) h (o, d, n) where h.o = v_single and h.d = f.destination), 0)
                   + (select count(*) from delivery d where d.ctid = any (v_taken) and d.organization_id = v_single and d.destination = f.destination)
                   as by_destination
          from unnest(v_flow_targets, v_flow_classes) f (destination, interactive)
    ), waiting as (
        select f.destination, f.interactive, d.due_at,
               f.by_destination + row_number() over (partition by f.destination, f.interactive order by d.due_at) as in_destination
          from flow f
         cross join lateral (
            select d.due_at
              from delivery d
             where d.consumer_id = p_consumer
               and d.interactive = f.interactive
               and (d.organization_id, d.destination) between (v_single, f.destination) and (v_single, f.destination)
               and d.lease_token is null
               and not d.suspect
               and d.due_at <= now()
               and d.ctid <> all (v_taken)
             order by d.organization_id, d.destination, d.due_at
             limit v_room + case when f.interactive then greatest(p_express - v_interactive, 0) else 0 end
         ) d
    ), ranked as (
        select w.*, count(*) filter (where w.interactive) over () as interactives,
               not w.interactive and row_number() over (partition by w.interactive order by w.in_destination, w.due_at)
                   <= least(p_bulk - cardinality(v_taken) + v_interactive, v_room) as reserved
          from waiting w
    ), turns as (
        select r.*, row_number() over (order by r.reserved desc, r.interactive desc, r.in_destination, r.due_at) as turn from ranked r
    ), quota as (
        select t.destination, t.interactive, count(*) as n
          from turns t
         where t.turn <= v_room + least(t.interactives, greatest(p_express - v_interactive, 0))
         group by t.destination, t.interactive
    )
    select array_agg(d.at) into v_rest
      from quota q
     cross join lateral (
        select d.ctid as at
          from delivery d
         where d.consumer_id = p_consumer
           and d.interactive = q.interactive
           and (d.organization_id, d.destination) between (v_single, q.destination) and (v_single, q.destination)
           and d.lease_token is null
           and not d.suspect
           and d.due_at <= now()
           and d.ctid <> all (v_taken)
         order by d.organization_id, d.destination, d.due_at
         limit q.n
           for update of d skip locked
     ) d;
    return v_taken || v_rest;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- claim_deliveries leases due deliveries, up to p_limits[i], p_expresses[i] more that are interactive and, within the shares,
-- p_overflows[i] more of p_consumers[i], and returns them with their events. What makes a delivery claimable is decided here and in the functions above: due, not
-- leased, organization active, consumer not paused, destination enabled, first in its lane, its turn. A share of 0 is none. p_held_consumers and the arrays beside
-- it are what the process has in hand. At most one of all is a suspect, and none unless p_suspect. With
-- p_types only events of these types are claimed, and organizations take turns instead of having shares.
--
-- The table is empty one minute and holds a hundred thousand rows the next, so its statistics are always wrong. The
-- settings keep the planner to walking the due indexes and looking rows up one by one, which is right for every size.
create function claim_deliveries(
    p_consumers text[], p_limits int[], p_expresses int[], p_overflows int[], p_sides int[], p_shares int[], p_bulks int[],
    p_after uuid[], p_after_interactive uuid[],
    p_held_consumers text[], p_held_orgs uuid[], p_held_destinations uuid[], p_held int[], p_suspect boolean, p_lease_time interval,
    p_types text[] default null
) returns table (
    consumer_id smallint, destination uuid, org_id uuid, lane bigint, seq bigint, token bigint, consumer text, attempt int, budgeted int,
    max_attempts int, suspect boolean, unknown boolean, interactive boolean, id uuid, type text, entity_kind text, entity_id uuid, payload jsonb,
    metadata jsonb, created_at timestamptz
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
        select c.id, w.n, w.express, w.overflow, w.side, w.share, w.bulk, w.after, w.after_interactive,
               held.orgs, held.destinations, held.counts
          from unnest(p_consumers, p_limits, p_expresses, p_overflows, p_sides, p_shares, p_bulks, p_after, p_after_interactive)
               w (name, n, express, overflow, side, share, bulk, after, after_interactive)
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
               and (w.n > 0 or w.overflow > 0 and w.share > 0
                    and (select coalesce(sum(h.n), 0) < w.share from unnest(w.orgs, w.counts) h (org, n) where h.org = d.organization_id))
             order by d.due_at
             limit 1
               for update of d skip locked
         ) d
         order by d.due_at
         limit 1
    ), fair as (
        select case when p_types is null
                    then lock_fair(w.id, w.n - least(a.n, w.n), w.express, w.overflow - case when w.n = 0 then a.n else 0 end, w.side, w.share, w.bulk,
                                   w.after, w.after_interactive, w.orgs, w.destinations, w.counts)
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
           c.interactive, e.id, e.event_type, e.entity_kind, e.entity_id, e.payload, e.metadata, e.created_at
      from claimed c
      join want w on w.id = c.consumer_id
      join event_log e on e.id = c.event_id and e.organization_id = c.organization_id;
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
              from claim_deliveries(array[p_worker], array[case when v_suspect then 1 else p_limit end], '{0}', '{0}', '{0}', '{0}', '{0}',
                       array[c_none], array[c_none], '{}', '{}', '{}', '{}', v_suspect, interval '5 minutes', v_types) c
             order by c.interactive desc, c.seq;
        -- A backlog in the outbox must not look like the end of the work.
        exit when found or v_relayed < 1000;
    end loop;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- lane_states tells of each of the lanes which delivery is its first and which is current, null when there is none, whether
-- the current one is in hand, and whether the lane is paused.
--
-- Comparing whole rows and ordering by all columns leaves the planner one index for each: whatever its statistics say, it
-- must not walk what waits in a lane, nor all of the table in the order of seq.
create or replace function lane_states(p_consumers smallint[], p_destinations uuid[], p_orgs uuid[], p_lanes bigint[]) returns setof lane_state
language sql stable
as $$
    select l.consumer_id, l.destination, l.organization_id, l.lane, f.seq, c.seq, c.lease_token is not null,
           exists (
            select from paused_lane p
             where p.organization_id = l.organization_id and p.consumer_id = l.consumer_id and p.destination = l.destination and p.lane = l.lane)
      from unnest(p_consumers, p_destinations, p_orgs, p_lanes) l (consumer_id, destination, organization_id, lane)
      left join lateral (
        select d.seq
          from delivery d
         where (d.consumer_id, d.destination, d.organization_id, d.lane)
               between (l.consumer_id, l.destination, l.organization_id, l.lane) and (l.consumer_id, l.destination, l.organization_id, l.lane)
         order by d.consumer_id, d.destination, d.organization_id, d.lane, d.seq
         limit 1
      ) f on true
      left join lateral (
        select d.seq, d.lease_token
          from delivery d
         where (d.organization_id, d.consumer_id, d.destination, d.lane)
               between (l.organization_id, l.consumer_id, l.destination, l.lane) and (l.organization_id, l.consumer_id, l.destination, l.lane)
           and d.lane <> 0 and d.due_at < 'infinity'
         order by d.organization_id, d.consumer_id, d.destination, d.lane
         limit 1
      ) c on true
$$;
-- +goose StatementEnd

revoke execute on function free_lapsed(text[]), due_flows(smallint, boolean, uuid, int),
    lock_fair(smallint, int, int, int, int, int, int, uuid, uuid, uuid[], uuid[], int[]),
    claim_deliveries(text[], int[], int[], int[], int[], int[], int[], uuid[], uuid[], text[], uuid[], uuid[], int[], boolean, interval, text[])
    from public;
