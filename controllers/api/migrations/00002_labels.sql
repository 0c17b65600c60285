-- +goose Up
-- The labels of objects that are there, once more, for lists that select by them.
CREATE TABLE labels (
    kind  TEXT NOT NULL,
    label TEXT NOT NULL,
    value TEXT NOT NULL,
    name  TEXT NOT NULL,
    PRIMARY KEY (kind, label, value, name)
);
CREATE INDEX labels_of ON labels (kind, name);
INSERT INTO labels (kind, label, value, name)
    SELECT objects.kind, e.key, e.value, objects.name FROM objects,
    json_members(CAST(CASE WHEN objects.labels = 'null' THEN '{}' ELSE objects.labels END AS json_type)) AS e
    WHERE NOT objects.gone;

-- +goose Down
DROP TABLE labels;
