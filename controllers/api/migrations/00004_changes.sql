-- +goose Up
-- What was written lately, in an order in which nothing appears behind what has been read; see changes.go. Watches are told
-- from it. Rows go after a while.
CREATE TABLE changes (
    change     BIGINT  NOT NULL,
    kind       TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    written_at BIGINT  NOT NULL,
    PRIMARY KEY (change, kind, name)
);

-- One row. The epoch is that of the numbers in changes: a database that was restored elsewhere begins a new one. Up to
-- trimmed, changes have gone.
CREATE TABLE feed (
    id      BIGINT NOT NULL PRIMARY KEY,
    epoch   TEXT   NOT NULL,
    trimmed BIGINT NOT NULL
);

-- +goose Down
DROP TABLE feed;
DROP TABLE changes;
