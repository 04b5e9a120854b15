-- +goose Up

-- A single expression, so that Postgres puts it into the statement that calls it: called by itself it would cost as much
-- as writing a row.
-- +goose StatementBegin
-- uuid_v7 is an id that sorts by its instant, to the microsecond.
create or replace function uuid_v7(p_at timestamptz default clock_timestamp()) returns uuid
language sql volatile parallel safe
as $$
    select encode(
        substring(int8send(trunc(extract(epoch from p_at) * 1000)::bigint) from 3 for 6)
        || int2send((28672 + (extract(microseconds from p_at)::bigint % 1000) * 4096 / 1000)::int2)
        || set_bit(set_bit(substring(uuid_send(gen_random_uuid()) from 9 for 8), 7, 1), 6, 0),
        'hex')::uuid
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- emit_events appends events in their order, all or none, and returns their ids. The arrays run in parallel; organizations
-- is one for all or one for each. What it refuses names the field as events.<index from 0>.<field>.
create function emit_events(
    p_event_types text[], p_entity_kinds text[], p_entity_ids uuid[], p_payloads jsonb[], p_metadatas jsonb[], p_organization_ids uuid[]
) returns uuid[]
language plpgsql security definer
set search_path = pg_catalog, public, pg_temp
as $$
declare
    v_session uuid := nullif(current_setting('app.organization_id', true), '')::uuid;
    v_single  uuid := case when cardinality(p_organization_ids) = 1 then p_organization_ids[1] end;
    v_began   timestamptz := clock_timestamp();
    v_fault   record;
    v_ids     uuid[];
begin
    select e.n, e.fault into v_fault
      from (
        select u.n, event_fault(u.event_type, u.entity_kind, coalesce(u.payload, '{}'), coalesce(u.metadata, '{}'), coalesce(v_single, u.org), v_session) as fault
          from unnest(p_event_types, p_entity_kinds, p_payloads, p_metadatas, p_organization_ids) with ordinality
            as u (event_type, entity_kind, payload, metadata, org, n)
      ) e
     where e.fault is not null
     limit 1;
    if v_fault.fault is not null then
        perform refuse_event(v_fault.fault, format('events.%s.', v_fault.n - 1));
    elsif exists (select from unnest(p_organization_ids) o where not exists (select from organizations where id = o)) then
        raise exception 'must be an organization that exists' using errcode = '23503', column = 'organization_id';
    elsif exists (select from unnest(p_metadatas) m where m ? 'idempotency_key') then
        -- One of them may have been emitted already, by an earlier one of them even.
        return (
            select array_agg(append_event(u.event_type, u.entity_kind, u.entity_id, u.payload, u.metadata, coalesce(v_single, u.org), null) order by u.n)
              from unnest(p_event_types, p_entity_kinds, p_entity_ids, p_payloads, p_metadatas, p_organization_ids) with ordinality
                as u (event_type, entity_kind, entity_id, payload, metadata, org, n));
    end if;
    with given as materialized (
        -- A microsecond apart, so that their ids sort as they do.
        select u.n, uuid_v7(u.at) as id, u.at, coalesce(v_single, u.org) as org, u.event_type, u.entity_kind, u.entity_id,
               coalesce(u.payload, '{}') as payload, coalesce(u.metadata, '{}') as metadata
          from (
            select u.*, v_began + u.n * interval '1 microsecond' as at
              from unnest(p_event_types, p_entity_kinds, p_entity_ids, p_payloads, p_metadatas, p_organization_ids) with ordinality
                as u (event_type, entity_kind, entity_id, payload, metadata, org, n)
            offset 0
          ) u
    ), appended as (
        insert into event_log (id, organization_id, event_type, entity_kind, entity_id, payload, metadata, created_at)
        select id, org, event_type, entity_kind, entity_id, payload, metadata || jsonb_build_object('emitted_at', extract(epoch from at)), at
          from given
    ), waiting as (
        insert into outbox (event_id, organization_id, event_type, created_at, lane)
        select id, org, event_type, at, event_lane(entity_kind, entity_id, metadata) from given order by n
    )
    select array_agg(id order by n) into v_ids from given;
    return coalesce(v_ids, '{}');
end $$;
-- +goose StatementEnd

revoke execute on function emit_events(text[], text[], uuid[], jsonb[], jsonb[], uuid[]) from public;
grant execute on function emit_events(text[], text[], uuid[], jsonb[], jsonb[], uuid[]) to deskcomm_api;

-- +goose Down
drop function emit_events(text[], text[], uuid[], jsonb[], jsonb[], uuid[]);

-- +goose StatementBegin
-- uuid_v7 makes a time-ordered UUID of an instant of the database's clock: 48 bits of milliseconds, 12 bits of the
-- fraction of a millisecond (RFC 9562 §6.2, method 3), 62 random bits.
create or replace function uuid_v7(p_at timestamptz default clock_timestamp()) returns uuid
language sql volatile parallel safe
as $$
    select encode(
        substring(int8send(us / 1000) from 3 for 6)
        || int2send((28672 + (us % 1000) * 4096 / 1000)::int2)
        || set_bit(set_bit(substring(uuid_send(gen_random_uuid()) from 9 for 8), 7, 1), 6, 0),
        'hex')::uuid
    from (select (extract(epoch from p_at) * 1000000)::bigint as us) t
$$;
-- +goose StatementEnd
