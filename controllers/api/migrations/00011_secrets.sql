-- +goose Up
-- How the secrets in spec were encrypted: the envelope of package secrets, as JSON, and the id of its key. Empty if there are
-- none.
ALTER TABLE objects ADD COLUMN sealed TEXT NOT NULL DEFAULT '';
ALTER TABLE objects ADD COLUMN sealed_key TEXT NOT NULL DEFAULT '';
CREATE INDEX objects_sealed ON objects (sealed_key, kind) WHERE sealed_key <> '';
-- The id of the key that body_hash was made with, so that nobody can try out what the body was. Empty for a plain SHA-256.
ALTER TABLE requests ADD COLUMN hash_key TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE requests DROP COLUMN hash_key;
DROP INDEX objects_sealed;
ALTER TABLE objects DROP COLUMN sealed_key;
ALTER TABLE objects DROP COLUMN sealed;
