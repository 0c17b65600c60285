-- +goose Up
-- Bearer tokens. A token's text is nowhere: its secret is 256 random bits, and hash is their SHA-256, as hex.
CREATE TABLE tokens (
    id         TEXT   NOT NULL PRIMARY KEY,
    hash       TEXT   NOT NULL,
    name       TEXT   NOT NULL,
    role       TEXT   NOT NULL,
    -- A JSON array; an empty one means all kinds.
    kinds      TEXT   NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT
);

-- +goose Down
DROP TABLE tokens;
