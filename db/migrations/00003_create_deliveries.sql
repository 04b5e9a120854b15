-- +goose Up

-- The named readers of the log. A process registers those it has handlers for; a reader receives what is emitted after
-- it has first been registered. An external one is a program that reads by the SQL contract.
create table consumers (
    id           smallint generated always as identity primary key,
    name         text not null unique check (name ~ '^[a-z][a-z0-9]*(-[a-z0-9]+)*-worker$'),
    event_types  text[] not null,
    effect       text not null check (effect in ('local', 'at_least_once', 'once')),
    retry_steps  interval[] not null,
    retry_jitter real not null check (retry_jitter between 0 and 1),
    max_attempts smallint not null check (max_attempts > 0),
    external     boolean not null default false,
    starts_at    timestamptz not null default clock_timestamp(),
    updated_at   timestamptz not null default clock_timestamp(),
    constraint consumers_steps_check check (max_attempts = 1 or cardinality(retry_steps) > 0)
);
create trigger consumers_touch before update on consumers for each row execute function touch_updated_at();

-- Who wants which events by webhook. A subscription is a destination: its id never gets another URL, and it receives
-- what is emitted after it was made.
create table webhook_subscriptions (
    id                   uuid primary key default uuid_v7(),
    organization_id      uuid not null references organizations (id) on delete cascade,
    url                  text not null check (length(url) <= 2000),
    event_types          text[] not null check (cardinality(event_types) between 1 and 100),
    secret_encrypted     bytea,
    enabled              boolean not null default true,
    consecutive_failures int not null default 0,
    last_status          smallint,
    last_error           text,
    last_delivered_at    timestamptz,
    deleted_at           timestamptz,
    created_at           timestamptz not null default clock_timestamp(),
    updated_at           timestamptz not null default clock_timestamp()
);
create index webhook_subscriptions_organization_idx on webhook_subscriptions (organization_id, id) where deleted_at is null;
create trigger webhook_subscriptions_touch before update on webhook_subscriptions for each row execute function touch_updated_at();

-- Unfinished work: one row for each event, consumer and destination. due_at is the instant from which it may be
-- claimed: at once, at the next attempt, or when the lease under which it is held has run out. A suspect was in the hands
-- of a process that died; crashes counts those that it suffered alone. effect_at is when what must not be repeated may
-- have begun.
create table delivery (
    consumer_id      smallint not null,
    destination      uuid not null,
    organization_id  uuid not null,
    lane             bigint not null default 0,
    seq              bigint not null,
    event_id         uuid not null,
    due_at           timestamptz not null,
    lease_token      bigint,
    attempts         smallint not null default 0,
    earlier_attempts smallint not null default 0,
    suspect          boolean not null default false,
    crashes          smallint not null default 0,
    effect_at        timestamptz,
    last_error       text,
    updated_at       timestamptz not null default clock_timestamp(),
    primary key (consumer_id, destination, organization_id, lane, seq)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
-- What waits, what is held, and what is claimed alone: each row is in one of them, so that no claim walks over the others.
create index delivery_due_idx on delivery (consumer_id, due_at) where lease_token is null and not suspect;
-- The same rows by whom they are for, so that a claim steps from one to the next over any backlog.
create index delivery_flow_idx on delivery (consumer_id, organization_id, destination, due_at) where lease_token is null and not suspect;
create index delivery_leased_idx on delivery (consumer_id, due_at) where lease_token is not null;
create index delivery_suspect_idx on delivery (consumer_id, due_at) where lease_token is null and suspect;
create index delivery_seq_idx on delivery (seq);

-- Larger than every token before it, so that an older owner is told by its token alone.
create sequence lease_token_seq;

-- Finished work, one row for each settled batch, consumer, organization and outcome. The arrays run in parallel.
create table receipt (
    id              bigint generated always as identity primary key,
    organization_id uuid not null,
    consumer_id     smallint not null,
    outcome         text not null check (outcome in ('done', 'skipped', 'discarded')),
    reason          text,
    first_event_id  uuid not null,
    last_event_id   uuid not null,
    event_ids       uuid[] not null,
    destinations    uuid[] not null,
    attempts        smallint[] not null,
    settled_at      timestamptz not null default clock_timestamp()
);
-- Ids are ordered by time and so are receipts, hence a block range is enough to find the few that may hold an event.
create index receipt_events_idx on receipt using brin (first_event_id, last_event_id) with (pages_per_range = 8, autosummarize = on);

-- What a person decides about: a delivery that spent its attempts or can never succeed, or whose effect may have happened,
-- with a copy of its event, so that no partition of the log has to be kept for it. The row stays when it has been decided.
create table dead_delivery (
    delivery_id      uuid primary key,
    organization_id  uuid not null,
    consumer_id      smallint not null,
    destination      uuid not null,
    lane             bigint not null,
    seq              bigint not null,
    event_id         uuid not null,
    event_type       text not null,
    entity_kind      text not null,
    entity_id        uuid,
    payload          jsonb not null,
    metadata         jsonb not null,
    event_created_at timestamptz not null,
    attempts         smallint not null,
    earlier_attempts smallint not null,
    last_error       text not null,
    state            text not null default 'dead' check (state in ('dead', 'uncertain', 'replayed', 'confirmed', 'discarded')),
    reason           text,
    died_at          timestamptz not null default clock_timestamp(),
    resolved_at      timestamptz,
    constraint dead_delivery_resolved_check check ((state in ('dead', 'uncertain')) = (resolved_at is null))
);
-- One for each filter of the list, in the list's order, and the same for who sees all organizations.
create index dead_delivery_open_idx on dead_delivery (organization_id, died_at desc, delivery_id desc) where state in ('dead', 'uncertain');
create index dead_delivery_type_idx on dead_delivery (organization_id, event_type, died_at desc, delivery_id desc) where state in ('dead', 'uncertain');
create index dead_delivery_kind_idx on dead_delivery (organization_id, entity_kind, died_at desc, delivery_id desc) where state in ('dead', 'uncertain');
create index dead_delivery_consumer_idx on dead_delivery (organization_id, consumer_id, died_at desc, delivery_id desc) where state in ('dead', 'uncertain');
create index dead_delivery_everywhere_idx on dead_delivery (died_at desc, delivery_id desc) where state in ('dead', 'uncertain');
create index dead_delivery_everywhere_type_idx on dead_delivery (event_type, died_at desc, delivery_id desc) where state in ('dead', 'uncertain');
create index dead_delivery_everywhere_kind_idx on dead_delivery (entity_kind, died_at desc, delivery_id desc) where state in ('dead', 'uncertain');
create index dead_delivery_everywhere_consumer_idx on dead_delivery (consumer_id, died_at desc, delivery_id desc) where state in ('dead', 'uncertain');
create index dead_delivery_event_idx on dead_delivery (organization_id, event_id);

-- What each try of a consumer that calls outside found.
create table attempt (
    delivery_id     uuid not null,
    number          smallint not null,
    organization_id uuid not null,
    consumer_id     smallint not null,
    destination     uuid not null,
    event_id        uuid not null,
    outcome         text not null check (outcome in ('done', 'retry', 'postponed', 'dead', 'uncertain', 'skipped')),
    error           text,
    status_code     smallint,
    response        text,
    started_at      timestamptz not null,
    duration        interval not null,
    primary key (organization_id, delivery_id, number)
);

-- The exact bytes sent to a destination, kept from the first attempt until the delivery is settled, so that each
-- attempt sends the same.
create table frozen_body (
    delivery_id     uuid primary key,
    organization_id uuid not null,
    destination     uuid not null,
    body            bytea not null,
    created_at      timestamptz not null default clock_timestamp()
);
create index frozen_body_destination_idx on frozen_body (destination);

-- +goose StatementBegin
-- relay_events gives the visible events of the outbox their place, makes a delivery for each of their consumers, and
-- empties the outbox of them, up to p_limit at a time. It returns how many events it moved. A delivery is due from when
-- its event was emitted, so that the transaction that relays it may claim it too.
create function relay_events(p_limit int) returns int
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

-- +goose StatementBegin
-- retry_delay is the wait after the given number of attempts: the step of the consumer's ladder and a random share of
-- it on top.
create function retry_delay(p_steps interval[], p_jitter real, p_attempts int) returns interval
language sql volatile
as $$
    select p_steps[least(greatest(p_attempts, 1), cardinality(p_steps))] * (1 + random() * p_jitter)
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- delivery_id is the identity of the delivery of an event to a destination of a consumer: the UUIDv5 of the three, as
-- bus.DeliveryID computes it. Its SHA-1 is written out, because Postgres has none without an extension.
create function delivery_id(p_event uuid, p_consumer text, p_destination uuid) returns uuid
language plpgsql immutable strict parallel safe
as $$
declare
    c_mask constant bigint := 4294967295;
    v_text bytea := '\xce410f0aca5e4a0689a0bfe57222d74f'::bytea || convert_to(
        p_event || ':' || p_consumer || ':' || coalesce(nullif(p_destination::text, '00000000-0000-0000-0000-000000000000'), ''), 'UTF8');
    v_len  int := octet_length(v_text);
    h      bigint[] := array[1732584193, 4023233417, 2562383102, 271733878, 3285377520];
    w      bigint[];
    a bigint; b bigint; c bigint; d bigint; e bigint; f bigint; k bigint; x bigint;
    v_hash bytea := '';
begin
    v_text := v_text || '\x80'::bytea || decode(repeat('00', (119 - v_len % 64) % 64), 'hex') || int8send(v_len * 8::bigint);
    for v_block in 0 .. octet_length(v_text) / 64 - 1 loop
        for i in 0 .. 15 loop
            x := 0;
            for n in 0 .. 3 loop
                x := (x << 8) | get_byte(v_text, v_block * 64 + i * 4 + n);
            end loop;
            w[i] := x;
        end loop;
        for i in 16 .. 79 loop
            x := w[i - 3] # w[i - 8] # w[i - 14] # w[i - 16];
            w[i] := ((x << 1) | (x >> 31)) & c_mask;
        end loop;
        a := h[1]; b := h[2]; c := h[3]; d := h[4]; e := h[5];
        for i in 0 .. 79 loop
            if i < 20 then
                f := (b & c) | (~b & d); k := 1518500249;
            elsif i < 40 then
                f := b # c # d; k := 1859775393;
            elsif i < 60 then
                f := (b & c) | (b & d) | (c & d); k := 2400959708;
            else
                f := b # c # d; k := 3395469782;
            end if;
            x := ((((a << 5) | (a >> 27)) & c_mask) + (f & c_mask) + e + k + w[i]) & c_mask;
            e := d; d := c; c := ((b << 30) | (b >> 2)) & c_mask; b := a; a := x;
        end loop;
        h := array[(h[1] + a) & c_mask, (h[2] + b) & c_mask, (h[3] + c) & c_mask, (h[4] + d) & c_mask, (h[5] + e) & c_mask];
    end loop;
    for i in 1 .. 4 loop
        v_hash := v_hash || substr(int8send(h[i]), 5);
    end loop;
    v_hash := set_byte(v_hash, 6, (get_byte(v_hash, 6) & 15) | 80);
    v_hash := set_byte(v_hash, 8, (get_byte(v_hash, 8) & 63) | 128);
    return encode(v_hash, 'hex')::uuid;
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- due_flows lists the pairs of organization and destination that have work due for a consumer and may have it done: those
-- of the organizations after p_after, around the circle, until p_organizations have been met. Each pair costs one step
-- in its index, however much waits there, and a suspended organization costs one in all. The number of steps is bounded.
create function due_flows(p_consumer smallint, p_after uuid, p_organizations int) returns table (organization_id uuid, destination uuid)
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
-- lock_due locks due deliveries of a consumer that nobody else is about to take and returns where they are. Those that are
-- due longest come first; p_limit is how many it locks at most.
create function lock_due(p_consumer smallint, p_limit int) returns tid[]
language plpgsql
as $$
begin
    return (select coalesce(array_agg(d.at), '{}')
      from (
        select d.ctid as at
          from delivery d
         where d.consumer_id = p_consumer
           and d.lease_token is null
           and not d.suspect
           and d.due_at <= now()
           and (select o.status from organizations o where o.id = d.organization_id) = 'active'
           and coalesce((select s.enabled from webhook_subscriptions s where s.id = d.destination), true)
         order by d.due_at
         limit p_limit
           for update of d skip locked
      ) d);
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- lock_by_turns locks due deliveries of the given types, or of all when '*' is among them, up to p_limit: the first of
-- each organization, then the second of each, and so on. It is for readers whose slots nobody knows, where a share has no
-- whole to be a part of.
create function lock_by_turns(p_consumer smallint, p_limit int, p_types text[]) returns tid[]
language plpgsql
as $$
begin
    return (with flow as materialized (
        -- An organization may have none of the types, so all have to be asked. Beginning anywhere is what gives
        -- each its turn when there are more of them than p_limit.
        select f.organization_id, f.destination
          from due_flows(p_consumer, gen_random_uuid(), case when '*' = any (p_types) then greatest(p_limit, 2) else 5000 end) f
    ), waiting as (
        select f.organization_id, f.destination, d.due_at, row_number() over (partition by f.organization_id order by d.due_at) as turn
          from flow f
         cross join lateral (
            select d.due_at
              from delivery d
             where d.consumer_id = p_consumer
               and (d.organization_id, d.destination) between (f.organization_id, f.destination) and (f.organization_id, f.destination)
               and d.lease_token is null
               and not d.suspect
               and d.due_at <= now()
               and ('*' = any (p_types) or (select p.event_type from event_position p where p.seq = d.seq) = any (p_types))
             order by d.organization_id, d.destination, d.due_at
             limit p_limit
         ) d
    ), quota as (
        select t.organization_id, t.destination, count(*) as n
          from (select w.organization_id, w.destination from waiting w order by w.turn, w.due_at limit p_limit) t
         group by t.organization_id, t.destination
    )
    select coalesce(array_agg(d.at), '{}')
      from quota q
     cross join lateral (
        select d.ctid as at
          from delivery d
         where d.consumer_id = p_consumer
           and (d.organization_id, d.destination) between (q.organization_id, q.destination) and (q.organization_id, q.destination)
           and d.lease_token is null
           and not d.suspect
           and d.due_at <= now()
           and ('*' = any (p_types) or (select p.event_type from event_position p where p.seq = d.seq) = any (p_types))
         order by d.organization_id, d.destination, d.due_at
         limit q.n
           for update of d skip locked
     ) d);
end $$;
-- +goose StatementEnd

-- +goose StatementBegin
-- lock_fair locks due deliveries as the shares allow: up to p_limit of anybody and up to p_overflow more of organizations
-- below their share. p_orgs, p_destinations and p_held are what is in hand already.
--
-- Work that keeps within the shares is taken as it became due, if that is all there is. Else the organizations with due work take turns, after
-- p_after, those with the least in hand first, each up to its share, of which one destination has at most half while
-- another of them has due work. A destination below that half may have one of p_side slots when a greedy one beside it
-- has used up the organization's share. What is free after that is for the one organization that still has due work, if
-- it is the only one, for the destinations with the least in hand first.
--
-- Pairs are looked up by ranges and in the order of their index: by equality, the planner may take the index of what is due
-- and walk over all that others have in it.
create function lock_fair(
    p_consumer smallint, p_limit int, p_overflow int, p_side int, p_share int, p_after uuid, p_orgs uuid[], p_destinations uuid[], p_held int[]
) returns tid[]
language plpgsql
as $$
declare
    c_none         constant uuid := '00000000-0000-0000-0000-000000000000';
    v_room         int := p_limit + p_overflow;
    v_half         int := greatest(p_share / 2, 1);
    v_fits         boolean;
    v_flow_orgs    uuid[];
    v_flow_targets uuid[];
    v_orgs         int;
    v_alone        boolean; -- with one destination, and the shares would not give it more than the rest does
    v_taken        tid[] := '{}';
    v_rest         tid[];
    v_single       uuid;
begin
    if p_share = 0 then
        return lock_due(p_consumer, p_limit);
    end if;
    with head as (
        select d.organization_id, d.destination
          from delivery d
         where d.consumer_id = p_consumer
           and d.lease_token is null
           and not d.suspect
           and d.due_at <= now()
         order by d.due_at
         limit v_room
    ), flow as (
        select organization_id, destination, count(*) as n from head group by organization_id, destination
    ), held as (
        select h.organization_id, h.destination, h.n from unnest(p_orgs, p_destinations, p_held) h (organization_id, destination, n)
    ), used as (
        select f.n, sum(f.n) over (partition by f.organization_id)
                   + coalesce((select sum(h.n) from held h where h.organization_id = f.organization_id), 0) as by_organization,
               case when f.destination = c_none then 0 else f.n
                   + coalesce((select sum(h.n) from held h where h.organization_id = f.organization_id and h.destination = f.destination), 0)
               end as by_destination
          from flow f
    )
    select coalesce(bool_and(by_organization <= p_share and by_destination <= v_half), true)
           and coalesce(sum(n), 0) < v_room
      into v_fits
      from used;
    if v_fits then
        return lock_due(p_consumer, v_room);
    end if;

    select coalesce(array_agg(f.organization_id order by f.n), '{}'), coalesce(array_agg(f.destination order by f.n), '{}'),
           count(distinct f.organization_id) filter (where (
               select coalesce(sum(h.n), 0) < p_share from unnest(p_orgs, p_held) h (o, n) where h.o = f.organization_id))
      into v_flow_orgs, v_flow_targets, v_orgs
      from (select f.*, row_number() over () as n from due_flows(p_consumer, p_after, greatest(v_room + cardinality(p_orgs), 2)) f) f;

    v_alone := cardinality(v_flow_orgs) = 1
        and p_limit >= p_share - (select coalesce(sum(h.n), 0) from unnest(p_orgs, p_held) h (o, n) where h.o = v_flow_orgs[1]);
    with flow as materialized (
        select f.organization_id, f.destination, f.n, count(*) over (partition by f.organization_id) as flows,
               coalesce((select sum(h.n) from unnest(p_orgs, p_held) h (o, n) where h.o = f.organization_id), 0) as by_organization,
               coalesce((select sum(h.n) from unnest(p_orgs, p_destinations, p_held) h (o, d, n)
                          where h.o = f.organization_id and h.d = f.destination), 0) as by_destination,
               (select coalesce(max(h.n), 0) > v_half from unnest(p_orgs, p_held) h (o, n) where h.o = f.organization_id) as greedy
          from unnest(v_flow_orgs, v_flow_targets) with ordinality f (organization_id, destination, n)
         where not v_alone
    ), waiting as (
        select f.*, d.due_at, f.by_destination + row_number() over (partition by f.n order by d.due_at) as in_destination
          from flow f
         cross join lateral (
            select d.due_at
              from delivery d
             where d.consumer_id = p_consumer
               and (d.organization_id, d.destination) between (f.organization_id, f.destination) and (f.organization_id, f.destination)
               and d.lease_token is null
               and not d.suspect
               and d.due_at <= now()
             order by d.organization_id, d.destination, d.due_at
             limit case when v_orgs >= v_room then 1 else least(p_share, v_room) end
         ) d
    ), placed as (
        select w.*, w.by_organization + row_number() over (partition by w.organization_id order by w.in_destination, w.due_at) as place
          from waiting w
         where w.flows = 1 and w.by_organization + w.in_destination - w.by_destination <= p_share or w.in_destination <= v_half
    ), turns as (
        select p.*, row_number() over (partition by p.place > p_share order by p.place, p.n) as turn,
               count(*) filter (where p.place <= p_share) over () as within
          from placed p
         where p.place <= p_share or p.destination <> c_none and p.greedy and p.in_destination <= v_half
    ), quota as (
        select t.organization_id, t.destination, count(*) as n
          from turns t
         where t.turn <= case when t.place <= p_share then v_room else least(p_side, v_room - t.within) end
         group by t.organization_id, t.destination
    )
    select coalesce(array_agg(d.at), '{}') into v_taken
      from quota q
     cross join lateral (
        select d.ctid as at
          from delivery d
         where d.consumer_id = p_consumer
           and (d.organization_id, d.destination) between (q.organization_id, q.destination) and (q.organization_id, q.destination)
           and d.lease_token is null
           and not d.suspect
           and d.due_at <= now()
         order by d.organization_id, d.destination, d.due_at
         limit q.n
           for update of d skip locked
     ) d;
    if cardinality(v_taken) >= p_limit then
        return v_taken;
    end if;

    -- Who still has work due, and where.
    select array_agg(f.organization_id), array_agg(f.destination), count(distinct f.organization_id)
      into v_flow_orgs, v_flow_targets, v_orgs
      from unnest(v_flow_orgs, v_flow_targets) f (organization_id, destination)
     cross join lateral (
        select
          from delivery d
         where d.consumer_id = p_consumer
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
    with flow as materialized (
        select f.destination,
               coalesce((select sum(h.n) from unnest(p_orgs, p_destinations, p_held) h (o, d, n) where h.o = v_single and h.d = f.destination), 0)
                   + (select count(*) from delivery d where d.ctid = any (v_taken) and d.organization_id = v_single and d.destination = f.destination)
                   as by_destination
          from unnest(v_flow_targets) f (destination)
    ), waiting as (
        select f.destination, d.due_at, f.by_destination + row_number() over (partition by f.destination order by d.due_at) as in_destination
          from flow f
         cross join lateral (
            select d.due_at
              from delivery d
             where d.consumer_id = p_consumer
               and (d.organization_id, d.destination) between (v_single, f.destination) and (v_single, f.destination)
               and d.lease_token is null
               and not d.suspect
               and d.due_at <= now()
               and d.ctid <> all (v_taken)
             order by d.organization_id, d.destination, d.due_at
             limit p_limit - cardinality(v_taken)
         ) d
    ), chosen as (
        select w.destination
          from waiting w
         order by w.in_destination, w.due_at
         limit p_limit - cardinality(v_taken)
    ), quota as (
        select destination, count(*) as n from chosen group by destination
    )
    select array_agg(d.at) into v_rest
      from quota q
     cross join lateral (
        select d.ctid as at
          from delivery d
         where d.consumer_id = p_consumer
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
create function claim_deliveries(
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

-- +goose Down
drop function claim_deliveries(text[], int[], int[], int[], int[], uuid[], text[], uuid[], uuid[], int[], boolean, interval, text[]);
drop function lock_fair(smallint, int, int, int, int, uuid, uuid[], uuid[], int[]);
drop function lock_by_turns(smallint, int, text[]);
drop function lock_due(smallint, int);
drop function due_flows(smallint, uuid, int);
drop function delivery_id(uuid, text, uuid);
drop function retry_delay(interval[], real, int);
drop function relay_events(int);
drop table frozen_body;
drop table attempt;
drop table dead_delivery;
drop table receipt;
drop sequence lease_token_seq;
drop table delivery;
drop table webhook_subscriptions;
drop table consumers;
