-- +goose Up

-- +goose StatementBegin
-- uuid_v7 makes a time-ordered UUID of an instant of the database's clock: 48 bits of milliseconds, 12 bits of the
-- fraction of a millisecond (RFC 9562 §6.2, method 3), 62 random bits.
create function uuid_v7(p_at timestamptz default clock_timestamp()) returns uuid
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

-- +goose StatementBegin
create function touch_updated_at() returns trigger
language plpgsql
as $$
begin
    new.updated_at := clock_timestamp();
    return new;
end $$;
-- +goose StatementEnd

-- One row: facts about this installation, such as the fingerprint of the key that its secrets are encrypted with.
create table installation (
    id                     boolean primary key default true check (id),
    master_key_fingerprint text,
    setup_token_hash       bytea,
    setup_expires_at       timestamptz,
    created_at             timestamptz not null default clock_timestamp()
);
insert into installation default values;

create table organizations (
    id                uuid primary key default uuid_v7(),
    name              text not null check (name <> '' and length(name) <= 200),
    status            text not null default 'active' check (status in ('active', 'suspended', 'redacted', 'archived')),
    suspended_at      timestamptz,
    suspended_reason  text,
    timezone          text not null default 'America/Sao_Paulo',
    locale            text not null default 'pt-BR',
    settings          jsonb not null default '{}',
    created_at        timestamptz not null default clock_timestamp(),
    updated_at        timestamptz not null default clock_timestamp(),
    constraint organizations_suspended_check check ((status = 'suspended') = (suspended_at is not null))
);
create trigger organizations_touch before update on organizations for each row execute function touch_updated_at();

-- A session carries the session_version it began with and ends when that is no longer the user's.
create table users (
    id              uuid primary key default uuid_v7(),
    email           text not null check (length(email) <= 254),
    name            text not null default '' check (length(name) <= 200),
    password_hash   text not null,
    session_version int not null default 1,
    created_at      timestamptz not null default clock_timestamp(),
    updated_at      timestamptz not null default clock_timestamp()
);
create unique index users_email_idx on users (lower(email));
create trigger users_touch before update on users for each row execute function touch_updated_at();

create table user_organizations (
    organization_id uuid not null references organizations (id) on delete cascade,
    user_id         uuid not null references users (id) on delete cascade,
    role            text not null check (role in ('viewer', 'agent', 'manager', 'admin')),
    accepted_at     timestamptz,
    revoked_at      timestamptz,
    created_at      timestamptz not null default clock_timestamp(),
    primary key (organization_id, user_id)
);
create index user_organizations_user_idx on user_organizations (user_id);

create table platform_admins (
    user_id    uuid primary key references users (id) on delete cascade,
    scope      text not null default 'full' check (scope in ('full', 'support_readonly')),
    reason     text not null default '',
    revoked_at timestamptz,
    created_at timestamptz not null default clock_timestamp()
);

-- Browser sessions, with the columns that scs/pgxstore names in its statements.
create table sessions (
    token  text primary key,
    data   bytea not null,
    expiry timestamptz not null
);
create index sessions_expiry_idx on sessions (expiry);

-- Tries to log in, by a hash of the e-mail address, alone and together with where the try came from.
create table login_throttle (
    key        bytea primary key check (length(key) = 32),
    failures   int not null default 0,
    allowed_at timestamptz not null default clock_timestamp(),
    updated_at timestamptz not null default clock_timestamp()
);
create index login_throttle_updated_idx on login_throttle (updated_at);

-- Only a hash of the token is kept; the prefix names it to people.
create table api_tokens (
    id              uuid primary key default uuid_v7(),
    organization_id uuid not null references organizations (id) on delete cascade,
    name            text not null check (length(name) between 2 and 100),
    prefix          text not null,
    token_hash      bytea not null unique,
    scopes          text[] not null check (cardinality(scopes) > 0),
    expires_at      timestamptz,
    last_used_at    timestamptz,
    revoked_at      timestamptz,
    created_at      timestamptz not null default clock_timestamp()
);
create index api_tokens_organization_idx on api_tokens (organization_id, id);

-- The answer to a POST that carried an Idempotency-Key, encrypted, since it may hold a token that is shown once.
create table idempotency_keys (
    organization_id uuid not null references organizations (id) on delete cascade,
    endpoint        text not null,
    key             text not null check (length(key) between 1 and 255),
    request_hash    bytea not null,
    status_code     smallint not null,
    response        bytea not null,
    created_at      timestamptz not null default clock_timestamp(),
    expires_at      timestamptz not null default clock_timestamp() + interval '24 hours',
    primary key (organization_id, endpoint, key)
);
create index idempotency_keys_expiry_idx on idempotency_keys (expires_at);

-- Append-only. Never free text about a customer: erasure does not reach it.
create table audit_log (
    id              uuid primary key default uuid_v7(),
    organization_id uuid references organizations (id) on delete cascade,
    actor_kind      text not null check (actor_kind in ('user', 'token', 'cli', 'system')),
    actor_id        uuid,
    actor_name      text not null default '',
    action          text not null,
    resource_type   text not null,
    resource_id     uuid,
    request_id      text,
    metadata        jsonb not null default '{}',
    created_at      timestamptz not null default clock_timestamp()
);
create index audit_log_organization_idx on audit_log (organization_id, id);

-- +goose Down
drop table audit_log;
drop table idempotency_keys;
drop table api_tokens;
drop table login_throttle;
drop table sessions;
drop table platform_admins;
drop table user_organizations;
drop table users;
drop table organizations;
drop table installation;
drop function touch_updated_at();
drop function uuid_v7(timestamptz);
