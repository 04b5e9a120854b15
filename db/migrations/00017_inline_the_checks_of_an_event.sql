-- +goose Up

-- Its body asks how a value is stored, which is only stable. What claims to be immutable and is not, is not inlined but
-- parsed and planned in every transaction, which costs more than all that an emission writes.
alter function event_fault(text, text, jsonb, jsonb, uuid, uuid) stable;

-- +goose Down
alter function event_fault(text, text, jsonb, jsonb, uuid, uuid) immutable;
