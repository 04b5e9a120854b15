-- +goose Up

-- The feed of an organization: its events after a place, without a look at what others emit in between. Building it keeps
-- the relay waiting and no emission, so it need not be built beside the traffic.
create index event_position_organization_idx on event_position (organization_id, seq);

-- +goose Down
drop index event_position_organization_idx;
