-- +goose Up
-- How the secrets in spec were encrypted: the envelope of package secrets, as JSON. Empty if there are none.
ALTER TABLE objects ADD COLUMN sealed TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE objects DROP COLUMN sealed;
