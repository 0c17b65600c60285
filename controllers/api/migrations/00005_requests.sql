-- +goose Up
-- Creates that were made under a key of the client's, so that one that is sent again makes nothing new. Rows go after a day.
CREATE TABLE requests (
    request_key TEXT   NOT NULL PRIMARY KEY,
    kind        TEXT   NOT NULL,
    name        TEXT   NOT NULL,
    uid         TEXT   NOT NULL,
    body_hash   TEXT   NOT NULL,
    made_at     BIGINT NOT NULL
);
CREATE INDEX requests_made ON requests (made_at);

-- +goose Down
DROP TABLE requests;
