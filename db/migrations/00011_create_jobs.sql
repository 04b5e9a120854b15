-- +goose Up

-- Jobs. A job is a command: an event that asks for work, whose consumer does it. Until its time it stays here, out of the
-- way of every claim: deliveries that are due in days would be stepped over by each claim, one for each organization.
create table waiting_job (
    event_id        uuid primary key,
    organization_id uuid not null,
    event_type      text not null,
    created_at      timestamptz not null,
    lane            bigint,
    not_before      timestamptz not null
);
create index waiting_job_due_idx on waiting_job (not_before);

-- Jobs that were given up before they had their place. The relay gives them one like any event, and gives up what it has made
-- of them in the same transaction.
create table discarded_job (
    event_id        uuid primary key,
    organization_id uuid not null,
    reason          text not null
);

-- Who holds a singleton key. Nothing is done here when a job ends: whether the event is unfinished is looked up by whoever
-- asks for the key next. Rows are looked at again after check_after, and deleted when their job has ended.
create table job_singleton (
    organization_id uuid not null,
    command         text not null,
    singleton_key   text not null check (length(singleton_key) between 1 and 255),
    event_id        uuid, -- null only within the transaction that takes the key
    check_after     timestamptz not null,
    primary key (organization_id, command, singleton_key)
);
create index job_singleton_check_idx on job_singleton (check_after);

-- Receipts of what was discarded have one event each where a person or a later job discarded it.
create index receipt_discarded_idx on receipt (first_event_id) where outcome = 'discarded';

-- Commands that are enqueued by the clock. next_at is an instant, computed when the one before it was fired; retry_at keeps a
-- schedule that cannot be fired from being tried each second. revision counts changes of the expression.
create table schedule (
    id              uuid primary key default uuid_v7(),
    organization_id uuid not null references organizations (id) on delete cascade,
    name            text not null check (length(name) between 1 and 100),
    command         text not null,
    entity_kind     text not null,
    payload         jsonb not null default '{}',
    expression      text not null check (length(expression) between 1 and 100),
    zone            text not null check (length(zone) between 1 and 100),
    missed          text not null check (missed in ('skip', 'once', 'all')),
    missed_max      smallint not null default 100 check (missed_max between 1 and 1000),
    enabled         boolean not null default true,
    revision        int not null default 1,
    next_at         timestamptz not null,
    last_fired_at   timestamptz,
    failures        int not null default 0,
    last_error      text,
    retry_at        timestamptz,
    created_at      timestamptz not null default clock_timestamp(),
    updated_at      timestamptz not null default clock_timestamp(),
    constraint schedule_name_key unique (organization_id, name)
);
create index schedule_due_idx on schedule (next_at) where enabled;
create trigger schedule_touch before update on schedule for each row execute function touch_updated_at();

-- What became of each instant: fired as event_id, or left out with those before it, left_out in all.
create table schedule_fire (
    schedule_id     uuid not null references schedule (id) on delete cascade,
    due_at          timestamptz not null,
    organization_id uuid not null,
    event_id        uuid,
    left_out        int not null default 0,
    fired_at        timestamptz not null default clock_timestamp(),
    primary key (schedule_id, due_at)
);
create index schedule_fire_age_idx on schedule_fire (fired_at);

-- +goose StatementBegin
do $$
declare
    v_table text;
begin
    foreach v_table in array '{waiting_job,discarded_job,job_singleton,schedule,schedule_fire}'::text[] loop
        execute format('alter table %I enable row level security', v_table);
        execute format('create policy own_organization on %I using (organization_id = current_organization())'
            ' with check (organization_id = current_organization())', v_table);
    end loop;
end $$;
-- +goose StatementEnd
grant select on waiting_job, schedule, schedule_fire to deskcomm_api;
grant insert, update, delete on schedule to deskcomm_api;

-- +goose StatementBegin
-- is_command tells the types that ask for work from the facts.
create function is_command(p_event_type text) returns boolean
language sql immutable parallel safe
as $$
    select p_event_type like '%\_requested' or p_event_type = 'message.queued'
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- job_state is 'waiting' or 'in hand', or null for a job that has ended. A webhook is told of a command and does not do
-- it, so a receiver that hangs does not keep a job unfinished. What may have had its effect is in hand.
create function job_state(p_event_id uuid) returns text
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
-- discard_deliveries ends what waits of an event, each with a receipt that says why, and returns how many it ended. What is in
-- hand or may have had its effect is left alone.
create function discard_deliveries(p_event_id uuid, p_reason text) returns int
language plpgsql
as $$
declare
    v_gone record;
begin
    -- The current ones of their lanes come first, see advance_lanes: whoever ends one of those right now, and then makes the
    -- next one current, would wait for what is deleted here.
    perform advance_lanes(array_agg(d.consumer_id), array_agg(d.destination), array_agg(d.organization_id), array_agg(d.lane))
       from event_position p
       join delivery d on d.seq = p.seq and d.organization_id = p.organization_id
      where p.event_id = p_event_id and d.lane <> 0
     having count(*) > 0;
    with held as materialized (
        select d.consumer_id, d.destination, d.organization_id, d.lane, d.seq
          from event_position p
          join delivery d on d.seq = p.seq and d.organization_id = p.organization_id
         where p.event_id = p_event_id and d.lease_token is null and d.effect_at is null
         order by d.consumer_id, d.destination, d.organization_id, d.lane, d.seq -- as every statement that locks several
           for update of d
    ), gone as (
        delete from delivery d
         using held h
         where d.consumer_id = h.consumer_id and d.destination = h.destination and d.organization_id = h.organization_id
           and d.lane = h.lane and d.seq = h.seq
        returning d.*
    ), thawed as (
        delete from frozen_body b
         using gone g
          join consumers c on c.id = g.consumer_id
         where b.delivery_id = delivery_id(g.event_id, c.name, g.destination)
    ), receipts as (
        insert into receipt (organization_id, consumer_id, outcome, reason, first_event_id, last_event_id, event_ids, destinations, attempts)
        select organization_id, consumer_id, 'discarded', p_reason, event_id, event_id, array[event_id], array[destination], array[attempts]
          from gone
    )
    select count(*) as n, array_agg(consumer_id) as consumers, array_agg(destination) as destinations, array_agg(organization_id) as orgs,
           array_agg(lane) as lanes
      into v_gone
      from gone;
    if v_gone.n > 0 then
        perform advance_lanes(v_gone.consumers, v_gone.destinations, v_gone.orgs, v_gone.lanes);
    end if;
    return v_gone.n;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- discard_job gives a job up that waits, wherever it does, and returns whether it still did.
create function discard_job(p_event_id uuid, p_reason text) returns boolean
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
-- enqueue emits a command whose consumer gets it when p_not_before has come, 400 days ahead at most; null and the past are now.
--
-- With p_singleton_key it is the only one of the organization, the command and the key that is unfinished. While there is one,
-- p_policy decides: keep answers that one and emits nothing, replace discards it if it waits and emits this one, which
-- stands beside one that is in hand, and refuse raises. Callers with one key take turns until their transactions end.
create function enqueue(
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
-- end_job gives up a job of the organization that waits and returns discarded, or why it did not: missing, in hand, finished.
create function end_job(p_event_id uuid, p_organization_id uuid, p_reason text) returns text
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
-- cancel_job gives up a job that waits, for a worker that speaks SQL, and audits it.
create function cancel_job(p_event_id uuid, p_reason text) returns void
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

alter function relay_events(int) rename to relay_outbox;
-- +goose StatementBegin
-- relay_events is relay_outbox, after it has put the jobs whose time has come into the outbox. They are for whoever reads at
-- that time, so they count as emitted then.
create function relay_events(p_limit int) returns int
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

revoke execute on function relay_events(int), job_state(uuid), discard_deliveries(uuid, text), discard_job(uuid, text),
    enqueue(text, text, uuid, jsonb, jsonb, timestamptz, text, text, uuid), end_job(uuid, uuid, text), cancel_job(uuid, text) from public;
grant execute on function enqueue(text, text, uuid, jsonb, jsonb, timestamptz, text, text, uuid), end_job(uuid, uuid, text) to deskcomm_api;

-- +goose Down
-- Jobs that wait have no place to wait in: they run at once, or are not at all. Neither is for a migration to decide.
-- +goose StatementBegin
do $$
begin
    if exists (select from waiting_job) or exists (select from discarded_job) or exists (select from schedule) then
        raise exception 'jobs wait or schedules exist: cancel and delete them, and let the relay run';
    end if;
end $$;
-- +goose StatementEnd
drop function relay_events(int);
alter function relay_outbox(int) rename to relay_events;
drop function cancel_job(uuid, text);
drop function end_job(uuid, uuid, text);
drop function enqueue(text, text, uuid, jsonb, jsonb, timestamptz, text, text, uuid);
drop function discard_job(uuid, text);
drop function discard_deliveries(uuid, text);
drop function job_state(uuid);
drop function is_command(text);
drop index receipt_discarded_idx;
drop table schedule_fire;
drop table schedule;
drop table job_singleton;
drop table discarded_job;
drop table waiting_job;
