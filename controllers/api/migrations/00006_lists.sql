-- +goose Up
-- The state of an object, once more, for lists that select by it.
ALTER TABLE objects ADD COLUMN state TEXT NOT NULL DEFAULT 'Pending';
UPDATE objects SET state = CAST(reconciliation AS json_type) ->> 'state' WHERE CAST(reconciliation AS json_type) ->> 'state' IS NOT NULL;
CREATE INDEX objects_state ON objects (kind, state, name) WHERE NOT gone;
CREATE INDEX objects_created ON objects (kind, created_at, name) WHERE NOT gone;
CREATE INDEX objects_changed ON objects (kind, changed_at, name) WHERE NOT gone;

-- +goose Down
DROP INDEX objects_changed;
DROP INDEX objects_created;
DROP INDEX objects_state;
ALTER TABLE objects DROP COLUMN state;
