-- +goose Up

-- Who has paused a consumer, and why.
alter table consumers
    add column paused_by     text,
    add column paused_reason text,
    add constraint consumers_paused_check check (paused_at is not null or paused_by is null and paused_reason is null);

-- +goose StatementBegin
-- pressure_level is the level of a measure: normal, elevated from p_elevated on, high from p_high on. A level that was reached
-- ends at half of what it began at, so that it does not flap.
create function pressure_level(p_value bigint, p_elevated bigint, p_high bigint, p_before text) returns text
language sql immutable parallel safe
as $$
    select case when p_value >= case when p_before = 'high' then p_high / 2 else p_high end then 'high'
                when p_value >= case when p_before in ('elevated', 'high') then p_elevated / 2 else p_elevated end then 'elevated'
                else 'normal' end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- worst_pressure is the worst of some levels.
create function worst_pressure(variadic p_levels text[]) returns text
language sql immutable parallel safe
as $$
    select case when 'high' = any (p_levels) then 'high' when 'elevated' = any (p_levels) then 'elevated' else 'normal' end
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- installation_pressure is the level of all organizations together: what the relay is behind by, in events and in time, read from
-- both ends of the outbox. The numbers: a relay takes 1000 events at a time, so ten of its turns are more than a burst, and a
-- hundred mean that it stands or is slower than what is emitted; /readyz gives it 30 seconds, and twenty times that is no
-- hiccup. A transaction that was open for long commits old events: age alone, with less than one turn of the relay behind
-- it, is never high.
create function installation_pressure(p_before text default 'normal') returns text
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

-- +goose StatementBegin
-- organization_pressure is the level of one organization: how much of its work is due, or waits behind such in its lane, and
-- not in hand. It counts no further than to the highest level. What a person has stopped (a paused consumer, a disabled
-- subscription, a paused order, a suspended organization) and what waits for its next attempt says nothing about how busy anybody is. The numbers: 16
-- slots that take 100 ms each do 5000 in half a minute and 20000 in two minutes.
create function organization_pressure(p_organization_id uuid, p_before text default 'normal') returns text
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

-- +goose StatementBegin
-- pressure is the level that an emission for an organization meets: normal, elevated or high. At high a program should emit
-- later what can be emitted later; emit_event itself refuses nothing.
create function pressure(p_organization_id uuid) returns text
language sql stable security definer
set search_path = pg_catalog, public, pg_temp
as $$
    select worst_pressure(installation_pressure(), organization_pressure(p_organization_id))
$$;
-- +goose StatementEnd

revoke execute on function installation_pressure(text), organization_pressure(uuid, text), pressure(uuid) from public;

-- +goose Down
drop function pressure(uuid);
drop function organization_pressure(uuid, text);
drop function installation_pressure(text);
drop function worst_pressure(variadic text[]);
drop function pressure_level(bigint, bigint, bigint, text);
alter table consumers drop constraint consumers_paused_check, drop column paused_reason, drop column paused_by;
