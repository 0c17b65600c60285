-- +goose Up
-- What happened to objects, one row for each write that tells something; see history.go. Rows go after a while. They outlive
-- their object, and may be of an earlier one of the name.
CREATE TABLE events (
    kind       TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    revision   BIGINT NOT NULL,
    uid        TEXT   NOT NULL,
    generation BIGINT NOT NULL,
    at         BIGINT NOT NULL,
    reason     TEXT   NOT NULL,
    message    TEXT   NOT NULL,
    principal  TEXT   NOT NULL,
    PRIMARY KEY (kind, name, revision)
);
CREATE INDEX events_at ON events (at);

-- +goose Down
DROP TABLE events;
