-- The same tables as on PostgreSQL. Times are milliseconds since 1970, ids are text, lists of ids
-- are JSON. There is one writer, so ids are in the order of commits and nothing comes late.
CREATE TABLE tidegate_event (
    id integer PRIMARY KEY AUTOINCREMENT,
    -- What a claim could not read would stop every claim, so it does not come in.
    event_id text NOT NULL CHECK (typeof(event_id) = 'text' AND length(CAST(event_id AS blob)) = 36
        AND event_id GLOB '????????-????-????-????-????????????'
        AND length(replace(event_id, '-', '')) = 32
        AND replace(event_id, '-', '') NOT GLOB '*[^0-9a-f]*'),
    -- From 1970 to the end of 9999.
    created_at integer NOT NULL
        CHECK (typeof(created_at) = 'integer' AND created_at BETWEEN 0 AND 253402300799999),
    -- SQLite's own functions on texts end at a zero byte and would not see what is behind it.
    type text NOT NULL CHECK (typeof(type) = 'text' AND length(CAST(type AS blob)) BETWEEN 1 AND 255
        AND instr(CAST(type AS blob), x'00') = 0),
    key text CHECK (key IS NULL OR typeof(key) = 'text' AND length(CAST(key AS blob)) <= 1024
        AND instr(CAST(key AS blob), x'00') = 0),
    payload text NOT NULL CHECK (typeof(payload) = 'text' AND json_valid(payload)
        AND instr(CAST(payload AS blob), x'00') = 0),
    headers text CHECK (headers IS NULL OR typeof(headers) = 'text' AND json_valid(headers)
        AND json_type(headers) = 'object' AND instr(CAST(headers AS blob), x'00') = 0)
);
CREATE INDEX tidegate_event_by_event_id ON tidegate_event (event_id);

CREATE TABLE tidegate_queue (
    name text PRIMARY KEY,
    registry integer NOT NULL DEFAULT 1,
    cursor integer NOT NULL DEFAULT 0,
    states_cleaned_until integer NOT NULL DEFAULT -1
);
INSERT INTO tidegate_queue (name) VALUES ('queue');

CREATE TABLE tidegate_batch (
    id integer PRIMARY KEY AUTOINCREMENT,
    token integer NOT NULL DEFAULT 1,
    attempts integer NOT NULL DEFAULT 1,
    -- How many of its leases ran out before this one.
    abandoned integer NOT NULL DEFAULT 0,
    -- Whether its owner is known to have heard of the claim: asked for of suspects only, by a renewal.
    is_confirmed integer NOT NULL DEFAULT 1,
    -- Empty after it was given back: that lease did not run out.
    locked_by text NOT NULL,
    locked_until integer NOT NULL,
    claimed_at integer NOT NULL,
    ids text NOT NULL
);

CREATE TABLE tidegate_event_row (
    id integer PRIMARY KEY,
    lane text NOT NULL,
    key text,
    place text NOT NULL,
    attempts integer NOT NULL,
    -- As of a batch.
    abandoned integer NOT NULL DEFAULT 0,
    is_confirmed integer NOT NULL DEFAULT 1,
    token integer NOT NULL DEFAULT 0,
    -- From when on it may be claimed; null while parked.
    due_at integer,
    locked_by text,
    updated_at integer NOT NULL
);
CREATE INDEX tidegate_event_row_due ON tidegate_event_row (lane, due_at, id);
CREATE INDEX tidegate_event_row_key ON tidegate_event_row (key, id) WHERE key IS NOT NULL;
CREATE INDEX tidegate_event_row_parked ON tidegate_event_row (key)
    WHERE key IS NOT NULL AND due_at IS NULL;
CREATE INDEX tidegate_event_row_claimed ON tidegate_event_row (place) WHERE locked_by IS NOT NULL;

CREATE TABLE tidegate_canceled (
    id integer PRIMARY KEY
);

CREATE TABLE tidegate_handler_set (
    id integer PRIMARY KEY AUTOINCREMENT,
    handlers text NOT NULL UNIQUE
);

CREATE TABLE tidegate_log_batch (
    id integer PRIMARY KEY AUTOINCREMENT,
    finalized_at integer NOT NULL,
    ids text NOT NULL
);
CREATE INDEX tidegate_log_batch_finalized ON tidegate_log_batch (finalized_at);

CREATE TABLE tidegate_log (
    id integer PRIMARY KEY,
    batch integer NOT NULL,
    ordinal integer NOT NULL,
    attempts integer NOT NULL,
    handlers integer,
    is_failed integer NOT NULL,
    errors text
);

CREATE TABLE tidegate_sequence (
    batch integer PRIMARY KEY,
    position integer NOT NULL UNIQUE,
    count integer NOT NULL
);

CREATE TABLE tidegate_handler_state (
    id integer NOT NULL,
    handler_id text NOT NULL,
    result text NOT NULL,
    attempts integer NOT NULL,
    error text,
    updated_at integer NOT NULL,
    PRIMARY KEY (id, handler_id)
) WITHOUT ROWID;

CREATE TABLE event_handler (
    type text NOT NULL,
    handler_id text NOT NULL,
    registered_at integer NOT NULL,
    PRIMARY KEY (type, handler_id)
) WITHOUT ROWID;

CREATE TABLE event_projection (
    name text PRIMARY KEY,
    position integer NOT NULL,
    updated_at integer NOT NULL,
    -- How often a rebuild was swapped in.
    rebuilds integer NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE TABLE event_inbox (
    handler_id text NOT NULL,
    event_id text NOT NULL,
    sub_task text NOT NULL,
    created_at integer NOT NULL,
    PRIMARY KEY (handler_id, event_id, sub_task)
) WITHOUT ROWID;
-- They are removed with their event.
CREATE INDEX event_inbox_by_event_id ON event_inbox (event_id);

CREATE VIEW event_queue AS
SELECT e.id, e.event_id, e.type, e.key, e.payload, e.headers, s.status, s.attempts, e.created_at,
    coalesce(s.updated_at, e.created_at) AS updated_at, s.next_attempt_at, s.locked_by, s.locked_until
FROM (
    SELECT f.id AS id, 'PENDING' AS status, 0 AS attempts, NULL AS updated_at,
        NULL AS next_attempt_at, NULL AS locked_by, NULL AS locked_until
    FROM tidegate_event f
    WHERE f.id > (SELECT q.cursor FROM tidegate_queue q WHERE q.name = 'queue')
      AND NOT EXISTS (SELECT 1 FROM tidegate_canceled x WHERE x.id = f.id)
    UNION ALL
    SELECT i.value, 'PROCESSING', b.attempts, b.claimed_at, NULL, b.locked_by, b.locked_until
    FROM tidegate_batch b, json_each(b.ids) i
    WHERE NOT EXISTS (SELECT 1 FROM tidegate_log l WHERE l.id = i.value)
      AND NOT EXISTS (SELECT 1 FROM tidegate_event_row r WHERE r.id = i.value)
    UNION ALL
    SELECT r.id, CASE WHEN r.locked_by IS NULL THEN 'PENDING' ELSE 'PROCESSING' END, r.attempts,
        r.updated_at, CASE WHEN r.locked_by IS NULL THEN r.due_at END,
        r.locked_by, CASE WHEN r.locked_by IS NOT NULL THEN r.due_at END
    FROM tidegate_event_row r
) s JOIN tidegate_event e ON e.id = s.id;

-- For whoever adds events by SQL: mints what is missing and writes the posting. The sum of one id
-- is the id. The SQLite of other programs may be older than ours: 3.38 will do.
CREATE TRIGGER event_queue_insert INSTEAD OF INSERT ON event_queue BEGIN
    SELECT RAISE(ABORT, 'event_queue: id cannot be set by an insert') WHERE NEW.id IS NOT NULL;
    SELECT RAISE(ABORT, 'event_queue: status cannot be set by an insert')
    WHERE NEW.status IS NOT NULL AND NEW.status <> 'PENDING';
    SELECT RAISE(ABORT, 'event_queue: attempts cannot be set by an insert')
    WHERE NEW.attempts IS NOT NULL AND NEW.attempts <> 0;
    SELECT RAISE(ABORT, 'event_queue: updated_at cannot be set by an insert')
    WHERE NEW.updated_at IS NOT NULL;
    SELECT RAISE(ABORT, 'event_queue: next_attempt_at cannot be set by an insert')
    WHERE NEW.next_attempt_at IS NOT NULL;
    SELECT RAISE(ABORT, 'event_queue: locked_by cannot be set by an insert')
    WHERE NEW.locked_by IS NOT NULL;
    SELECT RAISE(ABORT, 'event_queue: locked_until cannot be set by an insert')
    WHERE NEW.locked_until IS NOT NULL;
    INSERT INTO tidegate_event (event_id, created_at, type, key, payload, headers)
    SELECT lower(coalesce(NEW.event_id, printf('%08x-%04x-7%03x-%s%03x-%012x',
            t.ms >> 16, t.ms & 65535, abs(random() % 4096), substr('89ab', 1 + abs(random() % 4), 1),
            abs(random() % 4096), abs(random() % 281474976710656)))),
        coalesce(NEW.created_at, t.ms), NEW.type, NEW.key, NEW.payload, NEW.headers
    FROM (SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS integer) AS ms) t;
    INSERT INTO tidegate_posting (component, bucket, from_place, to_place, count, id_sum)
    SELECT 'queue', 'm' || CASE WHEN substr(x.t, 13, 1) = '7' THEN (
            WITH RECURSIVE digit(n, v) AS (
                SELECT 0, 0 UNION ALL
                SELECT n + 1, v * 16 + instr('0123456789abcdef', substr(x.t, n + 1, 1)) - 1
                FROM digit WHERE n < 12)
            SELECT v / 60000 FROM digit WHERE n = 12) ELSE 0 END,
        NULL, 'queued', 1, x.event_id
    FROM (SELECT event_id, replace(event_id, '-', '') AS t FROM tidegate_event
          WHERE id = last_insert_rowid()) x;
END;

CREATE VIEW event_log AS
SELECT e.id, e.event_id, e.type, e.key, e.payload, e.headers,
    CASE WHEN l.is_failed THEN 'COMPLETED_WITH_ERRORS' ELSE 'COMPLETED' END AS status,
    coalesce(l.errors, '[]') AS errors, l.attempts, e.created_at, b.finalized_at,
    s.position + l.ordinal AS position
FROM tidegate_log l JOIN tidegate_event e ON e.id = l.id
JOIN tidegate_log_batch b ON b.id = l.batch LEFT JOIN tidegate_sequence s ON s.batch = l.batch;

CREATE VIEW event_handler_state AS
SELECT s.id, s.handler_id, s.result, s.attempts, s.error, s.updated_at FROM tidegate_handler_state s
UNION ALL
SELECT l.id, h.value, 'SUCCESS', l.attempts, NULL, b.finalized_at
FROM tidegate_log_batch b, json_each(b.ids) i
JOIN tidegate_log l ON l.id = i.value AND l.batch = b.id
JOIN tidegate_handler_set t ON t.id = l.handlers,
    json_each('["' || replace(t.handlers, ',', '","') || '"]') h
WHERE b.finalized_at > (SELECT q.states_cleaned_until FROM tidegate_queue q WHERE q.name = 'queue');
