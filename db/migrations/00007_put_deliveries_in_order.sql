-- +goose Up

-- Order. A consumer or a subscription promises none, one event at a time for each key, or one at a time in all. What must
-- stay in order shares a lane: the hash of its key, or 1 for all; 0 is outside of any order. In a lane one delivery is
-- current, the one with the lowest seq; those behind it are due at infinity, so that no claim walks over them.
alter table outbox
    add column lane       bigint,
    add column not_before timestamptz;
alter table consumers
    add column ordering     text not null default 'none' constraint consumers_ordering_check check (ordering in ('none', 'key', 'strict')),
    add column starts_after bigint not null default 0,
    add column paused_at    timestamptz,
    alter column starts_at drop not null,
    alter column starts_at drop default;
alter table webhook_subscriptions
    add column ordering     text not null default 'none' constraint webhook_subscriptions_ordering_check check (ordering in ('none', 'key', 'strict')),
    add column starts_after bigint not null default 0;
alter table delivery
    add column not_before  timestamptz,
    add column interactive boolean not null default false;

-- One at a time, by a constraint.
create unique index delivery_lane_idx on delivery (organization_id, consumer_id, destination, lane) where lane <> 0 and due_at < 'infinity';

-- Lanes that a person has stopped. What is in hand comes to its end; nothing more of the lane is claimed.
create table paused_lane (
    organization_id uuid not null,
    consumer_id     smallint not null,
    destination     uuid not null,
    lane            bigint not null check (lane <> 0),
    reason          text not null,
    actor_name      text not null,
    paused_at       timestamptz not null default clock_timestamp(),
    primary key (organization_id, consumer_id, destination, lane)
);
alter table paused_lane enable row level security;
create policy own_organization on paused_lane using (organization_id = current_organization()) with check (organization_id = current_organization());
grant select, insert, delete on paused_lane to deskcomm_api;
-- For what a person does to the head of a lane.
grant update (due_at, not_before) on delivery to deskcomm_api;
grant insert on dead_delivery to deskcomm_api;

-- +goose StatementBegin
-- last_emit_no is the number of the latest emission. Who begins to read starts after it, and not at an instant: the clock
-- may be set back, and what is emitted then would be before the beginning.
create function last_emit_no() returns bigint
language sql volatile security definer
set search_path = pg_catalog, public, pg_temp
as $$
    select coalesce(pg_sequence_last_value(pg_get_serial_sequence('public.outbox', 'emit_no')::regclass), 0)
$$;
-- +goose StatementEnd
update consumers c set starts_after = coalesce((select max(o.emit_no) from outbox o where o.created_at < c.starts_at), 0);
update consumers set starts_at = null where not external or starts_at < clock_timestamp();
update webhook_subscriptions s
   set starts_after = coalesce((select max(o.emit_no) from outbox o where o.organization_id = s.organization_id and o.created_at < s.created_at), 0);
alter table consumers alter column starts_after set default last_emit_no();
alter table webhook_subscriptions alter column starts_after set default last_emit_no();

-- +goose StatementBegin
-- event_lane is the lane of an event for who reads by key: the hash of its order_key, or else of the entity that it is
-- about. Without either it is 0, outside of any order.
create function event_lane(p_entity_kind text, p_entity_id uuid, p_metadata jsonb) returns bigint
language sql immutable parallel safe
as $$
    select coalesce(hashtextextended(coalesce(p_metadata ->> 'order_key', p_entity_kind || ':' || p_entity_id::text), 0) | 2, 0)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- is_interactive tells the types for which somebody waits: they are claimed before all others.
create function is_interactive(p_event_type text) returns boolean
language sql immutable parallel safe
as $$
    select p_event_type in ('message.received', 'message.send_requested', 'ai.handoff_triggered')
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- event_fault is the rule that an event breaks, as a field and what it must be, or null.
create function event_fault(p_event_type text, p_entity_kind text, p_payload jsonb, p_metadata jsonb, p_organization uuid, p_session uuid) returns text
language sql immutable parallel safe
as $$
    select case
        when p_organization is null then 'organization_id: an organization is required'
        when p_session <> p_organization then 'organization_id: the organization must be the one of the session'
        when p_event_type is null or p_event_type !~ '^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$' or length(p_event_type) > 100
            then 'event_type: must be entity.action in lower snake case'
        when p_entity_kind is null or p_entity_kind !~ '^[a-z][a-z0-9_]{0,62}$'
            then 'entity_kind: must be a lower snake case name of at most 63 characters'
        when jsonb_typeof(p_payload) <> 'object' then 'payload: must be a JSON object'
        when jsonb_typeof(p_metadata) <> 'object' then 'metadata: must be a JSON object'
        -- A number such as 1e131071 takes 16 bytes to store and as many digits to read: whoever reads it fails. What has
        -- 1000 bytes cannot hold too many of them, and is not written out to be measured.
        when (pg_column_size(p_payload) > 1000 or pg_column_compression(p_payload) is not null) and octet_length(p_payload::text) > 8388608
            then 'payload: must have at most 8 MiB with its numbers written out'
        when octet_length(p_metadata::text) > 65536
            then 'metadata: must have at most 64 KiB'
        when p_metadata ? 'order_key' and (jsonb_typeof(p_metadata -> 'order_key') <> 'string' or length(p_metadata ->> 'order_key') not between 1 and 255)
            then 'metadata.order_key: must be a text of 1 to 255 characters'
        when p_metadata ? 'idempotency_key'
            and (jsonb_typeof(p_metadata -> 'idempotency_key') <> 'string' or length(p_metadata ->> 'idempotency_key') not between 1 and 255)
            then 'metadata.idempotency_key: must be a text of 1 to 255 characters'
        end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- refuse_event raises what event_fault has found; p_prefix is where the event stands.
create function refuse_event(p_fault text, p_prefix text default '') returns void
language plpgsql
as $$
declare
    v_field text := split_part(p_fault, ': ', 1);
    v_code  text := case when p_fault like '% of the session' then '42501' else '22023' end;
begin
    raise exception using message = substr(p_fault, length(v_field) + 3), errcode = v_code, column = p_prefix || v_field;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- append_event appends an event in the caller's transaction and returns its id. Its consumers get it when it is relayed, or
-- not before p_not_before if that is later.
create function append_event(
    p_event_type text, p_entity_kind text, p_entity_id uuid, p_payload jsonb, p_metadata jsonb, p_organization_id uuid, p_not_before timestamptz
) returns uuid
language plpgsql
as $$
declare
    v_session  uuid := nullif(current_setting('app.organization_id', true), '')::uuid;
    v_org      uuid := coalesce(p_organization_id, v_session);
    v_payload  jsonb := coalesce(p_payload, '{}');
    v_metadata jsonb := coalesce(p_metadata, '{}');
    v_at       timestamptz := clock_timestamp();
    v_id       uuid := uuid_v7(v_at);
    v_fault    text := event_fault(p_event_type, p_entity_kind, v_payload, v_metadata, v_org, v_session);
    v_first    uuid;
begin
    if v_fault is not null then
        perform refuse_event(v_fault);
    elsif not exists (select from organizations where id = v_org) then
        raise exception 'must be an organization that exists' using errcode = '23503', column = 'organization_id';
    end if;
    if v_metadata ? 'idempotency_key' then
        insert into event_dedup (organization_id, key, event_id)
        values (v_org, v_metadata ->> 'idempotency_key', v_id)
        on conflict (organization_id, key) do update set key = excluded.key
        returning event_id into v_first;
        if v_first <> v_id then
            return v_first;
        end if;
    end if;
    with appended as (
        insert into event_log (id, organization_id, event_type, entity_kind, entity_id, payload, metadata, created_at)
        values (v_id, v_org, p_event_type, p_entity_kind, p_entity_id, v_payload,
            v_metadata || jsonb_build_object('emitted_at', extract(epoch from v_at)), v_at)
    )
    insert into outbox (event_id, organization_id, event_type, created_at, lane, not_before)
    values (v_id, v_org, p_event_type, v_at, event_lane(p_entity_kind, p_entity_id, v_metadata), p_not_before);
    return v_id;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- emit_event appends an event in the caller's transaction and returns its id. It asks nobody who will read it.
-- A metadata key idempotency_key that the organization has used already returns the first event's id; order_key names what
-- the event must stay in order with.
create or replace function emit_event(
    p_event_type      text,
    p_entity_kind     text,
    p_entity_id       uuid,
    p_payload         jsonb default '{}',
    p_metadata        jsonb default '{}',
    p_organization_id uuid default null
) returns uuid
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
begin
    return append_event(p_event_type, p_entity_kind, p_entity_id, p_payload, p_metadata, p_organization_id, null);
end $$;
-- +goose StatementEnd

create type lane_state as (
    consumer_id smallint, destination uuid, organization_id uuid, lane bigint, first bigint, current bigint, in_hand boolean, paused boolean
);

-- +goose StatementBegin
-- lane_states tells of each of the lanes which delivery is its first and which is current, null when there is none, whether
-- the current one is in hand, and whether the lane is paused.
--
-- Comparing whole rows and ordering by all columns leaves the planner one index for each: whatever its statistics say, it
-- must not walk what waits in a lane, nor all of the table in the order of seq.
create function lane_states(p_consumers smallint[], p_destinations uuid[], p_orgs uuid[], p_lanes bigint[]) returns setof lane_state
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

-- +goose StatementBegin
-- lane_head is the place of the delivery that a person means who acts on a lane: the one in hand or due, else the first.
create function lane_head(p_org uuid, p_consumer smallint, p_destination uuid, p_lane bigint) returns bigint
language sql stable
as $$
    select coalesce(s.current, s.first) from lane_states(array[p_consumer], array[p_destination], array[p_org], array[p_lane]) s
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- advance_lanes makes the first delivery of each of the lanes current, unless the lane is paused or its current delivery is
-- in hand. Calling it again changes nothing.
--
-- It is called after every change of which delivery of a lane is the first, in the same transaction, and by two kinds of
-- callers. Who ends a delivery has held the row of the current one. Who adds to a lane, pauses or resumes it, or does
-- anything to it by hand, holds relay_state, see reorder_lanes; then the current ones are locked here, until none is seen
-- that is not: while one was waited for the next may have become current, and have been ended by somebody who did not see
-- what the caller adds. So both kinds wait for each other and for their own, and the later sees what the earlier has done.
create function advance_lanes(p_consumers smallint[], p_destinations uuid[], p_orgs uuid[], p_lanes bigint[]) returns void
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
set enable_sort = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
    set plan_cache_mode = force_generic_plan
as $$
declare
    v_locked  int;
    v_seen    record;
    v_changed int;
begin
    select array_agg(l.consumer_id), array_agg(l.destination), array_agg(l.organization_id), array_agg(l.lane)
      into p_consumers, p_destinations, p_orgs, p_lanes
      from (select distinct * from unnest(p_consumers, p_destinations, p_orgs, p_lanes) u (consumer_id, destination, organization_id, lane)
             where u.lane <> 0
             order by 1, 2, 3, 4) l;
    loop
        select count(*) into v_locked
          from unnest(p_consumers, p_destinations, p_orgs, p_lanes) l (consumer_id, destination, organization_id, lane)
         cross join lateral (
            select d.seq
              from delivery d
             where (d.organization_id, d.consumer_id, d.destination, d.lane)
                   between (l.organization_id, l.consumer_id, l.destination, l.lane) and (l.organization_id, l.consumer_id, l.destination, l.lane)
               and d.lane <> 0 and d.due_at < 'infinity'
             order by d.organization_id, d.consumer_id, d.destination, d.lane
               for update of d
         ) c;
        select count(s.current) as current,
               array_agg(s) filter (where not s.in_hand and s.current is not null and (s.paused or s.current <> s.first)) as back,
               array_agg(s) filter (where not s.in_hand and not s.paused and s.current is distinct from s.first) as next
          into v_seen
          from lane_states(p_consumers, p_destinations, p_orgs, p_lanes) s;
        continue when v_seen.current > v_locked;

        if v_seen.back is not null then
            update delivery d
               set due_at = 'infinity', not_before = greatest(d.not_before, d.due_at), updated_at = clock_timestamp()
              from unnest(v_seen.back) s
             where d.consumer_id = s.consumer_id and d.destination = s.destination and d.organization_id = s.organization_id
               and d.lane = s.lane and d.seq = s.current;
        end if;
        exit when v_seen.next is null;

        update delivery d
           set due_at = greatest(clock_timestamp(), d.not_before), updated_at = clock_timestamp()
          from unnest(v_seen.next) s
         where d.consumer_id = s.consumer_id and d.destination = s.destination and d.organization_id = s.organization_id
           and d.lane = s.lane and d.seq = s.first;
        get diagnostics v_changed = row_count;
        exit when v_changed = cardinality(v_seen.next); -- else one of them has been taken out meanwhile
    end loop;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- hold_lanes keeps everybody waiting who adds to lanes, or acts on them by hand. Who is to lock a delivery besides calls it
-- before that.
create function hold_lanes() returns void
language sql volatile security definer
set search_path = pg_catalog, public, pg_temp
as $$
    select from relay_state for update
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- reorder_lanes is advance_lanes for whoever has added deliveries to lanes, or paused or resumed them.
create function reorder_lanes(p_consumers smallint[], p_destinations uuid[], p_orgs uuid[], p_lanes bigint[]) returns void
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
begin
    if exists (select from unnest(p_lanes) l where l <> 0) then
        perform hold_lanes();
        perform advance_lanes(p_consumers, p_destinations, p_orgs, p_lanes);
    end if;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- relay_events gives the visible events of the outbox their place, makes a delivery for each of their consumers, and
-- empties the outbox of them, up to p_limit at a time. It returns how many events it moved. A delivery is due from when
-- its event was emitted, so that the transaction that relays it may claim it too.
create or replace function relay_events(p_limit int) returns int
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

-- What waits behind another has no time of its own.
create or replace view event_log_status with (security_invoker = true) as
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
           nullif(min(d.due_at) filter (where d.lease_token is null), 'infinity') as next_attempt_at
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

revoke execute on function append_event(text, text, uuid, jsonb, jsonb, uuid, timestamptz), refuse_event(text, text), advance_lanes(smallint[], uuid[], uuid[], bigint[]),
    lane_states(smallint[], uuid[], uuid[], bigint[]), lane_head(uuid, smallint, uuid, bigint), hold_lanes(), reorder_lanes(smallint[], uuid[], uuid[], bigint[]), last_emit_no() from public;
grant execute on function last_emit_no(), lane_states(smallint[], uuid[], uuid[], bigint[]), lane_head(uuid, smallint, uuid, bigint), hold_lanes(),
    reorder_lanes(smallint[], uuid[], uuid[], bigint[]), advance_lanes(smallint[], uuid[], uuid[], bigint[]) to deskcomm_api;

-- +goose Down
create or replace view event_log_status with (security_invoker = true) as
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
revoke insert on dead_delivery from deskcomm_api;
revoke update (due_at, not_before) on delivery from deskcomm_api;
drop function hold_lanes();
drop function reorder_lanes(smallint[], uuid[], uuid[], bigint[]);
drop function advance_lanes(smallint[], uuid[], uuid[], bigint[]);
drop function lane_head(uuid, smallint, uuid, bigint);
drop function lane_states(smallint[], uuid[], uuid[], bigint[]);
drop type lane_state;
drop function append_event(text, text, uuid, jsonb, jsonb, uuid, timestamptz);
drop function refuse_event(text, text);
drop function event_fault(text, text, jsonb, jsonb, uuid, uuid);
drop function is_interactive(text);
drop function event_lane(text, uuid, jsonb);
drop table paused_lane;
drop index delivery_lane_idx;
-- Without lanes nothing waits behind anything.
update delivery set due_at = coalesce(not_before, clock_timestamp()) where due_at = 'infinity';
alter table delivery drop column interactive, drop column not_before;
alter table webhook_subscriptions drop column starts_after, drop column ordering;
update consumers set starts_at = clock_timestamp() where starts_at is null;
alter table consumers
    drop column paused_at, drop column starts_after, drop column ordering,
    alter column starts_at set not null, alter column starts_at set default clock_timestamp();
alter table outbox drop column not_before, drop column lane;
drop function last_emit_no();

-- +goose StatementBegin
-- emit_event appends an event in the caller's transaction and returns its id. It asks nobody who will read it.
-- A metadata key idempotency_key that the organization has used already returns the first event's id.
create or replace function emit_event(
    p_event_type      text,
    p_entity_kind     text,
    p_entity_id       uuid,
    p_payload         jsonb default '{}',
    p_metadata        jsonb default '{}',
    p_organization_id uuid default null
) returns uuid
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_session uuid := nullif(current_setting('app.organization_id', true), '')::uuid;
    v_org     uuid := coalesce(p_organization_id, v_session);
    v_at      timestamptz := clock_timestamp();
    v_id      uuid := uuid_v7(v_at);
    v_first   uuid;
begin
    if v_org is null then
        raise exception 'an organization is required' using errcode = '22023', column = 'organization_id';
    elsif v_session <> v_org then
        raise exception 'the organization must be the one of the session' using errcode = '42501', column = 'organization_id';
    elsif p_event_type is null or p_event_type !~ '^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$' or length(p_event_type) > 100 then
        raise exception 'must be entity.action in lower snake case' using errcode = '22023', column = 'event_type';
    elsif p_entity_kind is null or p_entity_kind !~ '^[a-z][a-z0-9_]{0,62}$' then
        raise exception 'must be a lower snake case name of at most 63 characters' using errcode = '22023', column = 'entity_kind';
    elsif jsonb_typeof(coalesce(p_payload, '{}')) <> 'object' then
        raise exception 'must be a JSON object' using errcode = '22023', column = 'payload';
    elsif jsonb_typeof(coalesce(p_metadata, '{}')) <> 'object' then
        raise exception 'must be a JSON object' using errcode = '22023', column = 'metadata';
    elsif octet_length(coalesce(p_payload, '{}')::text) > 8388608 then
        -- A number such as 1e131071 takes a few bytes to store and as many digits to read: whoever reads it fails.
        raise exception 'must have at most 8 MiB with its numbers written out' using errcode = '22023', column = 'payload';
    elsif octet_length(coalesce(p_metadata, '{}')::text) > 65536 then
        raise exception 'must have at most 64 KiB' using errcode = '22023', column = 'metadata';
    elsif not exists (select from organizations where id = v_org) then
        raise exception 'must be an organization that exists' using errcode = '23503', column = 'organization_id';
    end if;

    if coalesce(p_metadata, '{}') ? 'idempotency_key' then
        if jsonb_typeof(p_metadata -> 'idempotency_key') <> 'string' or length(p_metadata ->> 'idempotency_key') not between 1 and 255 then
            raise exception 'must be a text of 1 to 255 characters' using errcode = '22023', column = 'metadata.idempotency_key';
        end if;
        insert into event_dedup (organization_id, key, event_id)
        values (v_org, p_metadata ->> 'idempotency_key', v_id)
        on conflict (organization_id, key) do update set key = excluded.key
        returning event_id into v_first;
        if v_first <> v_id then
            return v_first;
        end if;
    end if;

    with appended as (
        insert into event_log (id, organization_id, event_type, entity_kind, entity_id, payload, metadata, created_at)
        values (v_id, v_org, p_event_type, p_entity_kind, p_entity_id, coalesce(p_payload, '{}'),
            coalesce(p_metadata, '{}') || jsonb_build_object('emitted_at', extract(epoch from v_at)), v_at)
    )
    insert into outbox (event_id, organization_id, event_type, created_at)
    values (v_id, v_org, p_event_type, v_at);
    return v_id;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- relay_events gives the visible events of the outbox their place, makes a delivery for each of their consumers, and
-- empties the outbox of them, up to p_limit at a time. It returns how many events it moved. A delivery is due from when
-- its event was emitted, so that the transaction that relays it may claim it too.
create or replace function relay_events(p_limit int) returns int
language plpgsql
as $$
declare
    v_last   bigint;
    v_taken  int;
    v_placed int;
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
        -- An event that has its place already has its deliveries too.
        select event_id, organization_id, event_type, created_at, v_last + row_number() over (order by emit_no) as seq
          from taken t
         where not exists (select from event_position p where p.event_id = t.event_id)
    ), placed as (
        insert into event_position (seq, event_id, organization_id, event_type)
        select seq, event_id, organization_id, event_type from batch
    ), made as (
        insert into delivery (consumer_id, destination, organization_id, seq, event_id, due_at)
        select c.id, '00000000-0000-0000-0000-000000000000', b.organization_id, b.seq, b.event_id, b.created_at
          from batch b
          join consumers c on b.event_type = any (c.event_types) and c.starts_at <= b.created_at
        union all
        select c.id, s.id, b.organization_id, b.seq, b.event_id, b.created_at
          from batch b
          join webhook_subscriptions s
            on s.organization_id = b.organization_id
           and s.event_types && array[b.event_type, split_part(b.event_type, '.', 1) || '.*', '*']
           and s.created_at <= b.created_at
           and s.deleted_at is null
          join consumers c on c.name = 'webhook-dispatch-worker'
         where split_part(b.event_type, '.', 1) <> 'webhook'
            or not exists (
                -- A subscription is never told of itself: its own failures would feed it for ever.
                select from event_log e
                 where e.id = b.event_id
                   and s.id::text in (e.entity_id::text, e.payload ->> 'subscription_id'))
    )
    select (select count(*) from taken), (select count(*) from batch) into v_taken, v_placed;
    update relay_state set last_seq = v_last + v_placed;
    return v_taken;
end $$;
-- +goose StatementEnd
