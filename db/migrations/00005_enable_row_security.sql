-- +goose Up

-- API requests run under this role, which owns nothing and cannot bypass the policies below. Roles belong to the whole
-- cluster: another database of it may have made this one, at this very moment even.
-- +goose StatementBegin
do $$
begin
    if not exists (select from pg_roles where rolname = 'deskcomm_api') then
        create role deskcomm_api nologin;
    end if;
exception when duplicate_object or unique_violation then
    null;
end $$;
-- +goose StatementEnd
-- +goose StatementBegin
do $$
begin
    if not pg_has_role(current_user, 'deskcomm_api', 'member') then
        execute format('grant deskcomm_api to %I', current_user);
    end if;
end $$;
-- +goose StatementEnd
grant usage on schema public to deskcomm_api;

-- +goose StatementBegin
-- current_organization is the organization of this transaction, or null when none was set.
create function current_organization() returns uuid
language sql stable parallel safe
as $$
    select nullif(current_setting('app.organization_id', true), '')::uuid
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- One policy for every table of an organization: its rows and no others, to read and to write.
do $$
declare
    v_table text;
begin
    for v_table in
        select c.relname
          from pg_class c
          join pg_attribute a on a.attrelid = c.oid and a.attname = 'organization_id' and not a.attisdropped
         where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
    loop
        execute format('alter table %I enable row level security', v_table);
        execute format('create policy own_organization on %I using (organization_id = current_organization())'
            ' with check (organization_id = current_organization())', v_table);
    end loop;
end $$;
-- +goose StatementEnd

alter table organizations enable row level security;
create policy own_organization on organizations using (id = current_organization());

-- What the API reads and writes. The log is written through emit_event alone.
grant select on organizations, event_log, event_position, consumers, delivery, receipt, dead_delivery, attempt,
    webhook_subscriptions, channel_sessions, inbound_webhooks, contacts, conversations, messages, message_reactions,
    api_tokens, idempotency_keys, audit_log to deskcomm_api;
grant insert on delivery, receipt, webhook_subscriptions, channel_sessions, api_tokens, idempotency_keys, audit_log to deskcomm_api;
grant update on dead_delivery, webhook_subscriptions, channel_sessions, api_tokens to deskcomm_api;
grant update (updated_at) on delivery to deskcomm_api; -- what locking its rows asks for
grant delete on delivery, frozen_body, idempotency_keys to deskcomm_api;
grant select on frozen_body to deskcomm_api;
revoke execute on function emit_event(text, text, uuid, jsonb, jsonb, uuid), relay_events(int), ensure_event_partitions(int),
    due_flows(smallint, uuid, int), lock_due(smallint, int), lock_by_turns(smallint, int, text[]),
    lock_fair(smallint, int, int, int, int, uuid, uuid[], uuid[], int[]),
    claim_deliveries(text[], int[], int[], int[], int[], uuid[], text[], uuid[], uuid[], int[], boolean, interval, text[]) from public;
grant execute on function emit_event(text, text, uuid, jsonb, jsonb, uuid) to deskcomm_api;

-- +goose Down
revoke all on all tables in schema public from deskcomm_api;
revoke all on all functions in schema public from deskcomm_api;
revoke usage on schema public from deskcomm_api;
-- +goose StatementBegin
do $$
declare
    v_policy record;
begin
    for v_policy in select tablename from pg_policies where schemaname = 'public' and policyname = 'own_organization' loop
        execute format('drop policy own_organization on %I', v_policy.tablename);
        execute format('alter table %I disable row level security', v_policy.tablename);
    end loop;
end $$;
-- +goose StatementEnd
drop function current_organization();
