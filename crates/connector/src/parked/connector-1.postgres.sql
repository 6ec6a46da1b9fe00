-- Records of bindings that wait in the store: behind an earlier record of their key, or because they fit into no
-- topic. A row counts once the offset of its record is committed, or marked as settled above it.
CREATE TABLE eventbus_parked (
    component text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    record_offset bigint NOT NULL,
    event_id uuid NOT NULL,
    key bytea,
    value bytea,
    headers text NOT NULL,
    timestamp_ms bigint NOT NULL,
    tier integer NOT NULL,
    delivery integer NOT NULL,
    due_ms bigint NOT NULL,
    target text,
    PRIMARY KEY (component, topic, partition, record_offset)
);
CREATE INDEX eventbus_parked_event_id ON eventbus_parked (event_id);

-- Settled records above a committed offset that do not fit into the text of the commit, which names the row.
-- Rows are written before that commit and never changed.
CREATE TABLE eventbus_progress (
    component text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    id bigint NOT NULL,
    next_offset bigint NOT NULL,
    lengths bytea NOT NULL,
    PRIMARY KEY (component, topic, partition, id)
);
