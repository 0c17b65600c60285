-- Times are microseconds since 1970, UTC; documents are JSON. Both are so on every engine.

-- +goose Up
CREATE TABLE objects (
    kind               TEXT    NOT NULL,
    name               TEXT    NOT NULL,
    uid                TEXT    NOT NULL,
    labels             TEXT    NOT NULL,
    generation         BIGINT  NOT NULL,
    revision           BIGINT  NOT NULL,
    created_at         BIGINT  NOT NULL,
    changed_at         BIGINT  NOT NULL,
    deleted_at         BIGINT,
    finalizers         TEXT    NOT NULL,
    paused             BOOLEAN NOT NULL,
    retry_request      TEXT    NOT NULL,
    retry_requested_at BIGINT,
    spec               TEXT    NOT NULL,
    status             TEXT    NOT NULL,
    reconciliation     TEXT    NOT NULL,
    -- Since when the object is, or will be, owed a reconcile if nobody writes to it any more; see OwedSince.
    owed_since         BIGINT,
    -- A tombstone: the object is not there any more, but its deletion has not been notified.
    gone               BOOLEAN NOT NULL,
    -- The latest write that controllers must hear of, and the latest that they have heard of. The row is dirty while they
    -- differ: it is its own outbox.
    notify_reason      TEXT    NOT NULL,
    notify_revision    BIGINT  NOT NULL,
    notified_revision  BIGINT  NOT NULL,
    PRIMARY KEY (kind, name)
);

-- What is owed a reconcile, in the order in which it is listed. Objects that are settled for good are not in it, and those
-- that sleep cost one entry, not one row: a whole listing is one pass over the index, however much of it is due.
CREATE INDEX objects_owed ON objects (kind, name, owed_since) WHERE owed_since IS NOT NULL;

-- The relay's work list: empty most of the time, however many objects there are.
CREATE INDEX objects_dirty ON objects (kind, name) WHERE notified_revision < notify_revision;

-- The revision that objects of a shard start above, so that a name which is used again does not repeat a revision: an
-- If-Match meant for the earlier object would hit the later one.
CREATE TABLE floors (
    shard    BIGINT PRIMARY KEY,
    revision BIGINT NOT NULL
);

-- +goose Down
DROP TABLE floors;
DROP TABLE objects;
