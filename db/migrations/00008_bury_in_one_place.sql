-- +goose Up

-- +goose StatementBegin
-- bury_delivery ends a delivery that the caller holds as dead or uncertain, for a person to decide about, with a copy of its
-- event, and p_reason if a person has ended it. Its id it returns. What waited behind it in its lane is the caller's to advance.
create function bury_delivery(p_held delivery, p_attempts int, p_error text, p_state text, p_reason text default null) returns uuid
language plpgsql
as $$
declare
    v_id uuid := delivery_id(p_held.event_id, (select c.name from consumers c where c.id = p_held.consumer_id), p_held.destination);
begin
    delete from delivery d
     where d.consumer_id = p_held.consumer_id and d.destination = p_held.destination and d.organization_id = p_held.organization_id
       and d.lane = p_held.lane and d.seq = p_held.seq;
    insert into dead_delivery (delivery_id, organization_id, consumer_id, destination, lane, seq, event_id, event_type, entity_kind,
           entity_id, payload, metadata, event_created_at, attempts, earlier_attempts, last_error, state, reason)
    select v_id, p_held.organization_id, p_held.consumer_id, p_held.destination, p_held.lane, p_held.seq, e.id, e.event_type, e.entity_kind,
           e.entity_id, e.payload, e.metadata, e.created_at, p_attempts, p_held.earlier_attempts, p_error, p_state, p_reason
      from event_log e
     where e.id = p_held.event_id and e.organization_id = p_held.organization_id
    on conflict (delivery_id) do update
       set state = excluded.state, attempts = excluded.attempts, earlier_attempts = excluded.earlier_attempts,
           last_error = excluded.last_error, died_at = clock_timestamp(), resolved_at = null, reason = excluded.reason;
    return v_id;
end $$;
-- +goose StatementEnd

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
-- nack_event settles a claimed event as failed: due again by the worker's ladder, or dead when its attempts are spent.
create or replace function nack_event(p_event_id uuid, p_worker text, p_error text, p_token bigint default null) returns void
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
    perform bury_delivery(v_held, v_attempts, v_error, 'dead');
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- decide_dead brings what waits for a person to p_state and audits it: the deliveries of an event to p_worker, or to
-- anybody when that is null, and then no uncertain one. It returns how many, and raises when there is none.
create or replace function decide_dead(p_event_id uuid, p_worker text, p_state text, p_action text, p_reason text) returns int
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
        insert into delivery (consumer_id, destination, organization_id, lane, seq, event_id, due_at, earlier_attempts, last_error, interactive)
        select consumer_id, destination, organization_id, lane, seq, event_id, case when lane = 0 then clock_timestamp() else 'infinity' end,
               attempts + earlier_attempts, last_error, is_interactive(event_type)
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
    perform reorder_lanes(array_agg(d.consumer_id), array_agg(d.destination), array_agg(d.organization_id), array_agg(d.lane))
       from dead_delivery d
      where d.organization_id = any (array(select o.id from organizations o)) and d.event_id = p_event_id and p_state = 'replayed';
    return v_n;
end $$;
-- +goose StatementEnd

revoke execute on function bury_delivery(delivery, int, text, text, text), free_lapsed(text[]) from public;
grant execute on function bury_delivery(delivery, int, text, text, text) to deskcomm_api; -- a person takes one out of its lane

-- +goose Down
drop function free_lapsed(text[]);
drop function bury_delivery(delivery, int, text, text, text);

-- +goose StatementBegin
-- nack_event settles a claimed event as failed: due again by the worker's ladder, or dead when its attempts are spent.
create or replace function nack_event(p_event_id uuid, p_worker text, p_error text, p_token bigint default null) returns void
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
-- decide_dead brings what waits for a person to p_state and audits it: the deliveries of an event to p_worker, or to
-- anybody when that is null, and then no uncertain one. It returns how many, and raises when there is none.
create or replace function decide_dead(p_event_id uuid, p_worker text, p_state text, p_action text, p_reason text) returns int
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
