-- +goose Up
-- The version of the kind that spec is in. Empty for a kind without versions, and for what was written before it had any; kinds
-- says in base which one that is.
ALTER TABLE objects ADD COLUMN version TEXT NOT NULL DEFAULT '';
CREATE INDEX objects_version ON objects (kind, version) WHERE version <> '' AND NOT gone;
-- The version that schema is of, and, as JSON, the older ones that are served and the hook that converts.
ALTER TABLE kinds ADD COLUMN version TEXT NOT NULL DEFAULT '';
ALTER TABLE kinds ADD COLUMN base TEXT NOT NULL DEFAULT '';
ALTER TABLE kinds ADD COLUMN definition TEXT NOT NULL DEFAULT '';

-- +goose Down
ALTER TABLE kinds DROP COLUMN definition;
ALTER TABLE kinds DROP COLUMN base;
ALTER TABLE kinds DROP COLUMN version;
DROP INDEX objects_version;
ALTER TABLE objects DROP COLUMN version;
