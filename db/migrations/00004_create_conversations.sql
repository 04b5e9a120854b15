-- +goose Up

-- A WhatsApp number of an organization. The path token and the webhook secret authenticate what its gateway posts; only
-- a hash of the token is kept, and the secret is encrypted.
create table channel_sessions (
    id                       uuid primary key default uuid_v7(),
    organization_id          uuid not null references organizations (id) on delete cascade,
    name                     text not null check (length(name) between 1 and 54),
    kind                     text not null default 'waha' check (kind in ('waha')),
    phone_number             text check (phone_number ~ '^\+\d{8,15}$'),
    status                   text not null default 'STOPPED' check (status in ('STOPPED', 'STARTING', 'SCAN_QR_CODE',
        'PASSKEY_REQUIRED', 'PASSKEY_CONFIRMATION_REQUIRED', 'WORKING', 'FAILED')),
    status_changed_at        timestamptz,
    webhook_token_hash       bytea not null unique,
    webhook_secret_encrypted bytea,
    instance_token_hash      bytea not null unique,
    archived_at              timestamptz,
    created_at               timestamptz not null default clock_timestamp(),
    updated_at               timestamptz not null default clock_timestamp()
);
create unique index channel_sessions_name_idx on channel_sessions (organization_id, name) where archived_at is null;
create unique index channel_sessions_phone_idx on channel_sessions (organization_id, phone_number) where archived_at is null;
create trigger channel_sessions_touch before update on channel_sessions for each row execute function touch_updated_at();

-- Everything a gateway posted, byte for byte, once for each envelope. status tells what became of it; reason why.
create table inbound_webhooks (
    id                 uuid primary key default uuid_v7(),
    organization_id    uuid not null references organizations (id) on delete cascade,
    channel_session_id uuid not null references channel_sessions (id) on delete cascade,
    provider           text not null check (provider in ('waha')),
    external_id        text not null check (length(external_id) <= 200),
    event_name         text not null default '',
    headers            jsonb not null,
    raw_body           bytea not null,
    signature_valid    boolean not null,
    status             text not null check (status in ('processed', 'ignored', 'malformed', 'error', 'dead')),
    reason             text,
    attempts           smallint not null default 1,
    created_at         timestamptz not null default clock_timestamp(),
    processed_at       timestamptz
);
create unique index inbound_webhooks_envelope_idx on inbound_webhooks (channel_session_id, external_id);
create index inbound_webhooks_retry_idx on inbound_webhooks (created_at) where status = 'error';
create index inbound_webhooks_organization_idx on inbound_webhooks (organization_id, id);

-- A person on WhatsApp has a phone, a LID (an opaque number), or both. An absorbed contact stays, pointing at the one
-- that absorbed it.
create table contacts (
    id               uuid primary key default uuid_v7(),
    organization_id  uuid not null references organizations (id) on delete cascade,
    name             text,
    phone_number     text check (phone_number ~ '^\+\d{8,15}$'),
    wa_lid           text check (wa_lid ~ '^\d{1,32}$'),
    email            text,
    tags             text[] not null default '{}',
    source           text not null default 'whatsapp',
    is_merged_into   uuid references contacts (id),
    merged_at        timestamptz,
    last_activity_at timestamptz,
    created_at       timestamptz not null default clock_timestamp(),
    updated_at       timestamptz not null default clock_timestamp()
);
create unique index contacts_phone_idx on contacts (organization_id, phone_number) where is_merged_into is null;
create unique index contacts_lid_idx on contacts (organization_id, wa_lid) where is_merged_into is null;
create index contacts_organization_idx on contacts (organization_id, id);
create trigger contacts_touch before update on contacts for each row execute function touch_updated_at();

create table conversations (
    id                   uuid primary key default uuid_v7(),
    organization_id      uuid not null references organizations (id) on delete cascade,
    contact_id           uuid not null references contacts (id) on delete cascade,
    channel_session_id   uuid not null references channel_sessions (id) on delete cascade,
    channel              text not null default 'whatsapp',
    status               text not null default 'open' check (status in ('open', 'pending', 'claimed', 'ai_handling',
        'resolved', 'closed', 'archived')),
    chat_id              text not null,
    last_inbound_at      timestamptz,
    last_outbound_at     timestamptz,
    last_message_at      timestamptz,
    last_message_preview text,
    unread_count         int not null default 0,
    created_at           timestamptz not null default clock_timestamp(),
    updated_at           timestamptz not null default clock_timestamp()
);
create unique index conversations_contact_idx on conversations (organization_id, contact_id, channel_session_id);
create index conversations_organization_idx on conversations (organization_id, id);
create trigger conversations_touch before update on conversations for each row execute function touch_updated_at();

-- waha_message_id is the bare id: the only part that all events about a message share.
create table messages (
    id                 uuid primary key default uuid_v7(),
    organization_id    uuid not null references organizations (id) on delete cascade,
    conversation_id    uuid not null references conversations (id) on delete cascade,
    contact_id         uuid not null references contacts (id) on delete cascade,
    channel_session_id uuid not null references channel_sessions (id) on delete cascade,
    waha_message_id    text check (length(waha_message_id) <= 200),
    type               text not null check (type in ('text', 'image', 'video', 'audio', 'document', 'sticker', 'location',
        'contact', 'reaction', 'system', 'template')),
    direction          text not null check (direction in ('inbound', 'outbound')),
    status             text not null check (status in ('queued', 'received', 'sending', 'sent', 'delivered', 'read', 'failed')),
    sent_via           text check (sent_via in ('crm', 'external_device', 'automation', 'ai', 'user', 'system')),
    body               text not null default '',
    media_url          text,
    media_mime         text,
    media_filename     text,
    reply_to           text,
    metadata           jsonb not null default '{}',
    sent_at            timestamptz not null,
    delivered_at       timestamptz,
    read_at            timestamptz,
    edited_at          timestamptz,
    revoked_at         timestamptz,
    created_at         timestamptz not null default clock_timestamp(),
    updated_at         timestamptz not null default clock_timestamp()
);
create unique index messages_waha_idx on messages (channel_session_id, waha_message_id);
create index messages_conversation_idx on messages (organization_id, conversation_id, sent_at, id);
create index messages_organization_idx on messages (organization_id, id);
create trigger messages_touch before update on messages for each row execute function touch_updated_at();

-- The last reaction of each person to a message. It names the message by its bare id: a reaction may come first.
create table message_reactions (
    organization_id    uuid not null references organizations (id) on delete cascade,
    channel_session_id uuid not null references channel_sessions (id) on delete cascade,
    waha_message_id    text not null,
    reactor            text not null,
    emoji              text not null,
    reacted_at         timestamptz not null,
    primary key (channel_session_id, waha_message_id, reactor)
);

-- Receipts, edits and revocations of a message that has not arrived: WhatsApp promises no order.
create table parked_message_updates (
    id                 uuid primary key default uuid_v7(),
    organization_id    uuid not null references organizations (id) on delete cascade,
    channel_session_id uuid not null references channel_sessions (id) on delete cascade,
    waha_message_id    text not null,
    update             jsonb not null,
    created_at         timestamptz not null default clock_timestamp(),
    expires_at         timestamptz not null default clock_timestamp() + interval '24 hours'
);
create index parked_message_updates_message_idx on parked_message_updates (channel_session_id, waha_message_id, id);
create index parked_message_updates_expiry_idx on parked_message_updates (expires_at);

-- +goose Down
drop table parked_message_updates;
drop table message_reactions;
drop table messages;
drop table conversations;
drop table contacts;
drop table inbound_webhooks;
drop table channel_sessions;
