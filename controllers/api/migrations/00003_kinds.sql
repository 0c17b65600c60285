-- +goose Up
CREATE TABLE kinds (
    kind       TEXT   NOT NULL PRIMARY KEY,
    schema     TEXT   NOT NULL,
    revision   BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL
);

-- +goose Down
DROP TABLE kinds;
