-- +goose Up

-- The outbox is read by organization: behind one that has emitted a hundred thousand events another's is found by stepping over them.
-- One index is enough, and what a row costs does not grow by a second.
alter table outbox drop constraint outbox_pkey;
alter table outbox add constraint outbox_pkey primary key (organization_id, emit_no);

-- Whose turn was the last when there were more organizations than a batch has room for.
alter table relay_state add column last_organization uuid not null default '00000000-0000-0000-0000-000000000000';

-- +goose StatementBegin
-- waiting_organizations lists organizations that have events in the outbox, in a circle from the one after p_after, each with
-- its oldest there. It steps from one to the next by the key of the outbox and costs nothing for what they have beyond that.
create function waiting_organizations(p_after uuid, p_limit int)
returns table (organization_id uuid, first_no bigint, first_at timestamptz)
language plpgsql stable
set enable_seqscan to off
set enable_sort to off
set plan_cache_mode to force_generic_plan
as $$
#variable_conflict use_column
declare
    v_at      uuid := p_after;
    v_wrapped boolean := false;
    v_n       int := 0;
begin
    while p_limit is null or v_n < p_limit loop
        select o.organization_id, o.emit_no, o.created_at into organization_id, first_no, first_at
          from outbox o
         where o.organization_id > v_at
         order by o.organization_id, o.emit_no
         limit 1;
        if not found and not v_wrapped then
            v_wrapped := true;
            v_at := '00000000-0000-0000-0000-000000000000';
            continue;
        end if;
        exit when not found or v_wrapped and organization_id > p_after;
        return next;
        v_at := organization_id;
        v_n := v_n + 1;
    end loop;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- pick_by_turns picks p_limit of an outbox that holds more: the first of each organization, the second of each, and so on, each
-- organization's in the order of their emission. What the last round has no room for are those that nobody waits for. With more
-- organizations than p_limit the next batch goes on where this one ends.
-- It reads one snapshot: of two events of an organization the later is never picked without the one before it.
create function pick_by_turns(p_limit int, p_after uuid, out taken tid[], out last_organization uuid)
language plpgsql stable
set enable_seqscan to off
set enable_bitmapscan to off
set plan_cache_mode to force_generic_plan
as $$
declare
    v_orgs  uuid[];
    v_share int;
    v_found bigint;
    v_more  bigint; -- organizations that may have more than their share
begin
    select array_agg(w.organization_id order by w.n) into v_orgs
      from waiting_organizations(p_after, p_limit) with ordinality w (organization_id, first_no, first_at, n);
    last_organization := case when cardinality(v_orgs) = p_limit then v_orgs[p_limit] else p_after end;
    v_share := ceil(p_limit::numeric / cardinality(v_orgs));
    loop
        select sum(c.n), count(*) filter (where c.n = v_share) into v_found, v_more
          from unnest(v_orgs) w (organization_id)
         cross join lateral (
            select count(*) as n
              from (select from outbox o where o.organization_id = w.organization_id order by o.organization_id, o.emit_no limit v_share) o
         ) c;
        exit when v_found >= p_limit or v_more = 0;
        v_share := v_share + ceil((p_limit - v_found)::numeric / v_more);
    end loop;
    taken := array(
        select o.at
          from unnest(v_orgs) with ordinality w (organization_id, n)
         cross join lateral (
            select o.ctid as at, o.event_type, row_number() over (order by o.emit_no) as turn
              from (
                select o.ctid, o.event_type, o.emit_no
                  from outbox o
                 where o.organization_id = w.organization_id
                 order by o.organization_id, o.emit_no
                 limit v_share) o
         ) o
         order by o.turn, is_interactive(o.event_type) desc, w.n
         limit p_limit);
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- relay_outbox relays up to p_limit events of the outbox and returns how many: all that are there, in the order of their emission,
-- or when there are more the organizations take turns. Of a job that was given up it makes receipts that say why. A batch leads
-- and what it needs is looked up by keys: as the inner side of a hash join it would be inserted in another order than that of its
-- places, which costs the indexes of deliveries more.
create or replace function relay_outbox(p_limit int) returns int
language plpgsql
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off
as $$
declare
    c_none    constant uuid := '00000000-0000-0000-0000-000000000000';
    v_state   relay_state;
    v_taken   tid[];
    v_placed  int;
    v_ordered record;
begin
    if not exists (select from outbox) then
        return 0;
    end if;
    -- Whoever holds this row relays. The next statement sees what the previous holder has committed.
    select * into v_state from relay_state for update;
    v_taken := array(select ctid from outbox limit p_limit + 1);
    if cardinality(v_taken) > p_limit then
        select taken, last_organization into v_taken, v_state.last_organization from pick_by_turns(p_limit, v_state.last_organization);
    end if;
    with relayed as (
        delete from outbox where ctid = any (v_taken) returning *
    ), batch as materialized (
        -- An event that has its place already has its deliveries too. The clock may have been set back since it was emitted.
        -- The places are looked up by their key: as a join, they may all be read.
        select t.*, greatest(least(t.created_at, now()), t.not_before) as due_at, is_interactive(t.event_type) as interactive,
               v_state.last_seq + row_number() over (order by t.emit_no) as seq,
               case when is_command(t.event_type) then (select j.reason from discarded_job j where j.event_id = t.event_id) end as given_up
          from relayed t
         where (select p.seq from event_position p where p.event_id = t.event_id) is null
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
         where exists (select from webhook_subscriptions where deleted_at is null)
           and (split_part(b.event_type, '.', 1) <> 'webhook' or not exists (
                -- A subscription is never told of itself: its own failures would feed it for ever.
                select from event_log e
                 where e.id = b.event_id
                   and s.id::text in (e.entity_id::text, e.payload ->> 'subscription_id')))
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
    select (select count(*) from batch) as placed,
           array_agg(consumer_id) as consumers, array_agg(destination) as destinations, array_agg(organization_id) as orgs, array_agg(lane) as lanes
      into v_ordered
      from ordered;
    v_placed := v_ordered.placed;
    if v_ordered.lanes is not null then
        perform advance_lanes(v_ordered.consumers, v_ordered.destinations, v_ordered.orgs, v_ordered.lanes);
    end if;
    update relay_state set last_seq = v_state.last_seq + v_placed, last_organization = v_state.last_organization;
    return cardinality(v_taken);
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- enqueue emits a command whose consumer gets it when p_not_before has come, 400 days ahead at most; null and the past are now.
--
-- With p_singleton_key it is the only one of the organization, the command and the key that is unfinished. While there is one,
-- p_policy decides: keep answers that one and emits nothing, replace discards it if it waits and emits this one, which
-- stands beside one that is in hand, and refuse raises. Callers with one key take turns until their transactions end.
create or replace function enqueue(
    p_command         text,
    p_entity_kind     text,
    p_entity_id       uuid,
    p_payload         jsonb default '{}',
    p_metadata        jsonb default '{}',
    p_not_before      timestamptz default null,
    p_singleton_key   text default null,
    p_policy          text default 'keep',
    p_organization_id uuid default null
) returns table (id uuid, created_at timestamptz, not_before timestamptz, kept boolean)
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    v_session  uuid := nullif(current_setting('app.organization_id', true), '')::uuid;
    v_org      uuid := coalesce(p_organization_id, v_session);
    v_now      timestamptz := clock_timestamp();
    v_later    timestamptz := case when p_not_before > v_now then p_not_before end;
    v_metadata jsonb := coalesce(p_metadata, '{}');
    v_last     bigint := last_emit_no();
    v_id       uuid;
    v_kept     boolean := true;
begin
    if v_org is null then
        raise exception 'an organization is required' using errcode = '22023', column = 'organization_id';
    elsif v_session <> v_org then
        raise exception 'the organization must be the one of the session' using errcode = '42501', column = 'organization_id';
    elsif p_command is null or p_command !~ '^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$' or length(p_command) > 100 or not is_command(p_command) then
        raise exception 'must be a command: entity.action in lower snake case, ending in _requested, or message.queued'
            using errcode = '22023', column = 'command';
    elsif p_not_before > v_now + interval '400 days' then
        raise exception 'must be at most 400 days ahead' using errcode = '22023', column = 'not_before';
    elsif p_policy is null or p_policy not in ('keep', 'replace', 'refuse') then
        raise exception 'must be keep, replace or refuse' using errcode = '22023', column = 'policy';
    elsif p_singleton_key is null and p_policy <> 'keep' then
        raise exception 'needs a singleton_key' using errcode = '22023', column = 'policy';
    elsif length(p_singleton_key) not between 1 and 255 then
        raise exception 'must have 1 to 255 characters' using errcode = '22023', column = 'singleton_key';
    elsif jsonb_typeof(v_metadata) <> 'object' then
        raise exception 'must be a JSON object' using errcode = '22023', column = 'metadata';
    end if;

    select d.event_id into v_id from event_dedup d where d.organization_id = v_org and d.key = v_metadata ->> 'idempotency_key';
    if v_id is null and p_singleton_key is not null then
        insert into job_singleton as s (organization_id, command, singleton_key, check_after)
        values (v_org, p_command, p_singleton_key, v_now)
        on conflict (organization_id, command, singleton_key) do update set singleton_key = excluded.singleton_key
        returning s.event_id into v_id;
        if job_state(v_id) is null then
            v_id := null;
        elsif p_policy = 'refuse' then
            raise exception 'a job of this command and singleton_key is unfinished' using errcode = '23505', constraint = 'job_singleton_pkey';
        elsif p_policy = 'replace' then
            perform discard_job(v_id, 'replaced by a later job');
            v_id := null;
        elsif v_metadata ? 'idempotency_key' then
            insert into event_dedup (organization_id, key, event_id) values (v_org, v_metadata ->> 'idempotency_key', v_id) on conflict do nothing;
        end if;
    end if;
    if v_id is null then
        v_kept := false;
        v_id := append_event(p_command, p_entity_kind, p_entity_id, p_payload,
            v_metadata || jsonb_strip_nulls(jsonb_build_object('not_before', v_later, 'singleton_key', p_singleton_key)), v_org, v_later);
        with early as (
            delete from outbox o where o.organization_id = v_org and o.emit_no > v_last and o.event_id = v_id and o.not_before > v_now returning o.*
        )
        insert into waiting_job (event_id, organization_id, event_type, created_at, lane, not_before)
        select o.event_id, o.organization_id, o.event_type, o.created_at, o.lane, o.not_before from early o;
        update job_singleton s
           set event_id = v_id, check_after = coalesce(v_later, v_now) + interval '1 day'
         where s.organization_id = v_org and s.command = p_command and s.singleton_key = p_singleton_key;
    end if;
    return query
        select e.id, e.created_at, coalesce(w.not_before, e.created_at), v_kept
          from event_log e
          left join waiting_job w on w.event_id = e.id
         where e.id = v_id and e.organization_id = v_org;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- installation_pressure is the level of all organizations together: what the relay is behind by, in events and in time, read from
-- both ends of the outbox, which are those of its organizations. The numbers: a relay takes 1000 events at a time, so ten of its turns are more than a burst, and a
-- hundred mean that it stands or is slower than what is emitted; /readyz gives it 30 seconds, and twenty times that is no
-- hiccup. A transaction that was open for long commits old events: age alone, with less than one turn of the relay behind
-- it, is never high.
create or replace function installation_pressure(p_before text default 'normal') returns text
language plpgsql stable security definer
set search_path = pg_catalog, public, pg_temp
as $$
declare
    c_turn   constant bigint := 1000;
    v_each   record;
    v_first  bigint;
    v_last   bigint;
    v_at     timestamptz;
    v_behind bigint;
    v_age    text;
begin
    for v_each in select * from waiting_organizations('00000000-0000-0000-0000-000000000000', null) loop
        v_last := greatest(v_last, (
            select o.emit_no from outbox o where o.organization_id = v_each.organization_id order by o.organization_id desc, o.emit_no desc limit 1));
        if v_first is null or v_each.first_no < v_first then
            v_first := v_each.first_no;
            v_at := v_each.first_at;
        end if;
    end loop;
    if v_first is null then
        return 'normal';
    end if;
    v_behind := v_last - v_first + 1;
    v_age := pressure_level(extract(epoch from clock_timestamp() - v_at)::bigint, 30, 600, p_before);
    return worst_pressure(
        pressure_level(v_behind, 10 * c_turn, 100 * c_turn, p_before),
        case when v_behind > c_turn then v_age when v_age <> 'normal' then 'elevated' else 'normal' end);
end $$;
-- +goose StatementEnd

revoke execute on function waiting_organizations(uuid, int), pick_by_turns(int, uuid) from public;

-- +goose Down
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
-- enqueue emits a command whose consumer gets it when p_not_before has come, 400 days ahead at most; null and the past are now.
--
-- With p_singleton_key it is the only one of the organization, the command and the key that is unfinished. While there is one,
-- p_policy decides: keep answers that one and emits nothing, replace discards it if it waits and emits this one, which
-- stands beside one that is in hand, and refuse raises. Callers with one key take turns until their transactions end.
create or replace function enqueue(
    p_command         text,
    p_entity_kind     text,
    p_entity_id       uuid,
    p_payload         jsonb default '{}',
    p_metadata        jsonb default '{}',
    p_not_before      timestamptz default null,
    p_singleton_key   text default null,
    p_policy          text default 'keep',
    p_organization_id uuid default null
) returns table (id uuid, created_at timestamptz, not_before timestamptz, kept boolean)
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
#variable_conflict use_column
declare
    v_session  uuid := nullif(current_setting('app.organization_id', true), '')::uuid;
    v_org      uuid := coalesce(p_organization_id, v_session);
    v_now      timestamptz := clock_timestamp();
    v_later    timestamptz := case when p_not_before > v_now then p_not_before end;
    v_metadata jsonb := coalesce(p_metadata, '{}');
    v_last     bigint := last_emit_no();
    v_id       uuid;
    v_kept     boolean := true;
begin
    if v_org is null then
        raise exception 'an organization is required' using errcode = '22023', column = 'organization_id';
    elsif v_session <> v_org then
        raise exception 'the organization must be the one of the session' using errcode = '42501', column = 'organization_id';
    elsif p_command is null or p_command !~ '^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$' or length(p_command) > 100 or not is_command(p_command) then
        raise exception 'must be a command: entity.action in lower snake case, ending in _requested, or message.queued'
            using errcode = '22023', column = 'command';
    elsif p_not_before > v_now + interval '400 days' then
        raise exception 'must be at most 400 days ahead' using errcode = '22023', column = 'not_before';
    elsif p_policy is null or p_policy not in ('keep', 'replace', 'refuse') then
        raise exception 'must be keep, replace or refuse' using errcode = '22023', column = 'policy';
    elsif p_singleton_key is null and p_policy <> 'keep' then
        raise exception 'needs a singleton_key' using errcode = '22023', column = 'policy';
    elsif length(p_singleton_key) not between 1 and 255 then
        raise exception 'must have 1 to 255 characters' using errcode = '22023', column = 'singleton_key';
    elsif jsonb_typeof(v_metadata) <> 'object' then
        raise exception 'must be a JSON object' using errcode = '22023', column = 'metadata';
    end if;

    select d.event_id into v_id from event_dedup d where d.organization_id = v_org and d.key = v_metadata ->> 'idempotency_key';
    if v_id is null and p_singleton_key is not null then
        insert into job_singleton as s (organization_id, command, singleton_key, check_after)
        values (v_org, p_command, p_singleton_key, v_now)
        on conflict (organization_id, command, singleton_key) do update set singleton_key = excluded.singleton_key
        returning s.event_id into v_id;
        if job_state(v_id) is null then
            v_id := null;
        elsif p_policy = 'refuse' then
            raise exception 'a job of this command and singleton_key is unfinished' using errcode = '23505', constraint = 'job_singleton_pkey';
        elsif p_policy = 'replace' then
            perform discard_job(v_id, 'replaced by a later job');
            v_id := null;
        elsif v_metadata ? 'idempotency_key' then
            insert into event_dedup (organization_id, key, event_id) values (v_org, v_metadata ->> 'idempotency_key', v_id) on conflict do nothing;
        end if;
    end if;
    if v_id is null then
        v_kept := false;
        v_id := append_event(p_command, p_entity_kind, p_entity_id, p_payload,
            v_metadata || jsonb_strip_nulls(jsonb_build_object('not_before', v_later, 'singleton_key', p_singleton_key)), v_org, v_later);
        with early as (
            delete from outbox o where o.emit_no > v_last and o.event_id = v_id and o.not_before > v_now returning o.*
        )
        insert into waiting_job (event_id, organization_id, event_type, created_at, lane, not_before)
        select o.event_id, o.organization_id, o.event_type, o.created_at, o.lane, o.not_before from early o;
        update job_singleton s
           set event_id = v_id, check_after = coalesce(v_later, v_now) + interval '1 day'
         where s.organization_id = v_org and s.command = p_command and s.singleton_key = p_singleton_key;
    end if;
    return query
        select e.id, e.created_at, coalesce(w.not_before, e.created_at), v_kept
          from event_log e
          left join waiting_job w on w.event_id = e.id
         where e.id = v_id and e.organization_id = v_org;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- installation_pressure is the level of all organizations together: what the relay is behind by, in events and in time, read from
-- both ends of the outbox. The numbers: a relay takes 1000 events at a time, so ten of its turns are more than a burst, and a
-- hundred mean that it stands or is slower than what is emitted; /readyz gives it 30 seconds, and twenty times that is no
-- hiccup. A transaction that was open for long commits old events: age alone, with less than one turn of the relay behind
-- it, is never high.
create or replace function installation_pressure(p_before text default 'normal') returns text
language plpgsql stable security definer
set search_path = pg_catalog, public, pg_temp
as $$
declare
    c_turn   constant bigint := 1000;
    v_first  bigint;
    v_at     timestamptz;
    v_behind bigint;
    v_age    text;
begin
    select emit_no, created_at into v_first, v_at from outbox order by emit_no limit 1;
    if v_first is null then
        return 'normal';
    end if;
    select emit_no - v_first + 1 into v_behind from outbox order by emit_no desc limit 1;
    v_age := pressure_level(extract(epoch from clock_timestamp() - v_at)::bigint, 30, 600, p_before);
    return worst_pressure(
        pressure_level(v_behind, 10 * c_turn, 100 * c_turn, p_before),
        case when v_behind > c_turn then v_age when v_age <> 'normal' then 'elevated' else 'normal' end);
end $$;
-- +goose StatementEnd

drop function pick_by_turns(int, uuid);
drop function waiting_organizations(uuid, int);
alter table relay_state drop column last_organization;
alter table outbox drop constraint outbox_pkey;
alter table outbox add constraint outbox_pkey primary key (emit_no);
