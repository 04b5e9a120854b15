-- +goose Up

-- The functions on the way of every event are single expressions, so that Postgres puts them into the statements that
-- call them: called by themselves each would cost as much as writing a row.

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
create or replace function event_lane(p_entity_kind text, p_entity_id uuid, p_metadata jsonb) returns bigint
language sql immutable parallel safe
as $$
    select coalesce(hashtextextended(coalesce(p_metadata ->> 'order_key', p_entity_kind || ':' || p_entity_id::text), 0) | 2, 0)
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
create or replace function append_event(
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

revoke execute on function emit_events(text[], text[], uuid[], jsonb[], jsonb[], uuid[]), refuse_event(text, text) from public;
grant execute on function emit_events(text[], text[], uuid[], jsonb[], jsonb[], uuid[]) to deskcomm_api;

-- +goose Down
drop function emit_events(text[], text[], uuid[], jsonb[], jsonb[], uuid[]);
-- +goose StatementBegin
-- append_event appends an event in the caller's transaction and returns its id. Its consumers get it when it is relayed, or
-- not before p_not_before if that is later.
create or replace function append_event(
    p_event_type text, p_entity_kind text, p_entity_id uuid, p_payload jsonb, p_metadata jsonb, p_organization_id uuid, p_not_before timestamptz
) returns uuid
language plpgsql
as $$
declare
    v_session  uuid := nullif(current_setting('app.organization_id', true), '')::uuid;
    v_org      uuid := coalesce(p_organization_id, v_session);
    v_metadata jsonb := coalesce(p_metadata, '{}');
    v_at       timestamptz := clock_timestamp();
    v_id       uuid := uuid_v7(v_at);
    v_first    uuid;
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
    elsif jsonb_typeof(v_metadata) <> 'object' then
        raise exception 'must be a JSON object' using errcode = '22023', column = 'metadata';
    elsif octet_length(coalesce(p_payload, '{}')::text) > 8388608 then
        -- A number such as 1e131071 takes a few bytes to store and as many digits to read: whoever reads it fails.
        raise exception 'must have at most 8 MiB with its numbers written out' using errcode = '22023', column = 'payload';
    elsif octet_length(v_metadata::text) > 65536 then
        raise exception 'must have at most 64 KiB' using errcode = '22023', column = 'metadata';
    elsif not exists (select from organizations where id = v_org) then
        raise exception 'must be an organization that exists' using errcode = '23503', column = 'organization_id';
    elsif v_metadata ? 'order_key'
        and (jsonb_typeof(v_metadata -> 'order_key') <> 'string' or length(v_metadata ->> 'order_key') not between 1 and 255) then
        raise exception 'must be a text of 1 to 255 characters' using errcode = '22023', column = 'metadata.order_key';
    end if;

    if v_metadata ? 'idempotency_key' then
        if jsonb_typeof(v_metadata -> 'idempotency_key') <> 'string' or length(v_metadata ->> 'idempotency_key') not between 1 and 255 then
            raise exception 'must be a text of 1 to 255 characters' using errcode = '22023', column = 'metadata.idempotency_key';
        end if;
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
        values (v_id, v_org, p_event_type, p_entity_kind, p_entity_id, coalesce(p_payload, '{}'),
            v_metadata || jsonb_build_object('emitted_at', extract(epoch from v_at)), v_at)
    )
    insert into outbox (event_id, organization_id, event_type, created_at, lane, not_before)
    values (v_id, v_org, p_event_type, v_at, event_lane(p_entity_kind, p_entity_id, v_metadata), p_not_before);
    return v_id;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- event_lane is the lane of an event for who reads by key: the hash of its order_key, or else of the entity that it is
-- about. Without either it is 0, outside of any order.
create or replace function event_lane(p_entity_kind text, p_entity_id uuid, p_metadata jsonb) returns bigint
language sql immutable parallel safe
as $$
    select case when h in (0, 1) then 2 else coalesce(h, 0) end
      from hashtextextended(coalesce(p_metadata ->> 'order_key', p_entity_kind || ':' || p_entity_id), 0) h
$$;
-- +goose StatementEnd

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

drop function refuse_event(text, text);
drop function event_fault(text, text, jsonb, jsonb, uuid, uuid);
