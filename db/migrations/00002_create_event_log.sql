-- +goose Up

-- The log: immutable, one partition a month, cut by the instant inside the id, so that a look-up by id reads one
-- partition. Nothing references it and it references nothing: emission checks that the organization exists.
create table event_log (
    id              uuid not null,
    organization_id uuid not null,
    event_type      text not null,
    entity_kind     text not null,
    entity_id       uuid,
    payload         jsonb not null,
    metadata        jsonb not null,
    created_at      timestamptz not null,
    constraint event_log_pkey primary key (id),
    constraint event_log_type_check check (event_type ~ '^[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*$')
) partition by range (id);
create index event_log_organization_idx on event_log (organization_id, id);
create index event_log_type_idx on event_log (organization_id, event_type, id);

-- A row is an event that has not been relayed yet.
create table outbox (
    emit_no         bigint generated always as identity primary key,
    event_id        uuid not null,
    organization_id uuid not null,
    event_type      text not null,
    created_at      timestamptz not null
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- The first event that was emitted with an idempotency key; later ones are answered with its id.
create table event_dedup (
    organization_id uuid not null,
    key             text not null check (length(key) between 1 and 255),
    event_id        uuid not null,
    expires_at      timestamptz not null default clock_timestamp() + interval '7 days',
    primary key (organization_id, key)
);
create index event_dedup_expiry_idx on event_dedup (expires_at);

-- The place of each event in the one order that all readers see. Dense, and given when the event is visible to all,
-- so a reader at seq n misses nothing by asking for seq > n. The unique event_id is what makes relaying repeatable.
create table event_position (
    seq             bigint primary key,
    event_id        uuid not null unique,
    organization_id uuid not null,
    event_type      text not null
);

-- One row: the last place given. Its row lock is what makes relays take turns.
create table relay_state (
    id       boolean primary key default true check (id),
    last_seq bigint not null default 0
);
insert into relay_state default values;

-- +goose StatementBegin
-- ensure_event_partitions makes the partitions of last month, this month and the next p_months, and returns how many
-- it made. Two callers at once take turns.
create function ensure_event_partitions(p_months int) returns int
language plpgsql
as $$
declare
    v_month timestamp := date_trunc('month', clock_timestamp() at time zone 'UTC') - interval '1 month';
    v_name  text;
    v_made  int := 0;
begin
    perform pg_advisory_xact_lock(hashtextextended('ensure_event_partitions', 0));
    for i in 0 .. p_months + 1 loop
        v_name := to_char(v_month, '"event_log_y"YYYY"m"MM');
        if to_regclass(v_name) is null then
            execute format('create table %I partition of event_log for values from (%L) to (%L)', v_name,
                uuid_v7_floor(v_month at time zone 'UTC'),
                uuid_v7_floor((v_month + interval '1 month') at time zone 'UTC'));
            v_made := v_made + 1;
        end if;
        v_month := v_month + interval '1 month';
    end loop;
    return v_made;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- uuid_v7_floor is the smallest UUIDv7 of an instant: the border of a partition, the start of a period in a query.
create function uuid_v7_floor(p_at timestamptz) returns uuid
language sql immutable parallel safe
as $$
    select (lpad(to_hex((extract(epoch from p_at) * 1000)::bigint), 12, '0') || '70008000000000000000')::uuid
$$;
-- +goose StatementEnd

select ensure_event_partitions(3);

-- +goose StatementBegin
-- emit_event appends an event in the caller's transaction and returns its id. It asks nobody who will read it.
-- A metadata key idempotency_key that the organization has used already returns the first event's id.
create function emit_event(
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

-- +goose Down
drop function emit_event(text, text, uuid, jsonb, jsonb, uuid);
drop function ensure_event_partitions(int);
drop table relay_state;
drop table event_position;
drop table event_dedup;
drop table outbox;
drop table event_log;
drop function uuid_v7_floor(timestamptz);
