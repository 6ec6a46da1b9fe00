-- The same tables as on PostgreSQL. Times are milliseconds since 1970, ids are text, lists of ids are JSON.
-- There is one writer, so ids are in the order of commits and nothing comes late.
CREATE TABLE {table} (
    id integer PRIMARY KEY AUTOINCREMENT,
    event_id text CHECK (event_id IS NULL OR typeof(event_id) = 'text' AND length(event_id) = 36
        AND length(replace(event_id, '-', '')) = 32 AND NOT replace(event_id, '-', '') GLOB '*[^0-9a-fA-F]*'),
    aggregate_type text CHECK (typeof(aggregate_type) IN ('text', 'null')),
    aggregate_id text NOT NULL CHECK (typeof(aggregate_id) = 'text' AND length(CAST(aggregate_id AS blob)) <= 1024),
    type text NOT NULL CHECK (typeof(type) = 'text' AND length(CAST(type AS blob)) BETWEEN 1 AND 255),
    topic text CHECK (typeof(topic) IN ('text', 'null') AND length(CAST(topic AS blob)) BETWEEN 1 AND 249),
    -- A blob would stop every claim that meets it.
    payload text CHECK (typeof(payload) IN ('text', 'null')),
    headers text CHECK (headers IS NULL OR json_valid(headers) AND json_type(headers) = 'object'),
    created_at integer CHECK (typeof(created_at) IN ('integer', 'null')),
    sent integer NOT NULL DEFAULT 0,
    status text NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'SENT', 'DEAD')),
    attempts integer NOT NULL DEFAULT 0 CHECK (typeof(attempts) = 'integer' AND attempts >= 0),
    locked_at integer,
    locked_by text,
    sent_at integer,
    last_error_at integer,
    next_attempt_at integer,
    last_error text,
    -- Relays share out the keys by this: the length of the key and its last three characters.
    bucket integer NOT NULL GENERATED ALWAYS AS ((length(aggregate_id) * 7
        + coalesce(unicode(substr(aggregate_id, -1, 1)), 0) + coalesce(unicode(substr(aggregate_id, -2, 1)), 0) * 31
        + coalesce(unicode(substr(aggregate_id, -3, 1)), 0) * 17) % {buckets}) STORED,
    CHECK (sent = (status = 'SENT'))
);
CREATE INDEX {table}_sent ON {table} (id, bucket) WHERE status = 'PENDING';
CREATE INDEX {table}_next_attempt_at ON {table} (aggregate_id, next_attempt_at)
    WHERE status = 'PENDING' AND next_attempt_at IS NOT NULL;
CREATE INDEX {table}_created_at ON {table} (created_at);
CREATE INDEX {table}_event_id ON {table} (event_id);
CREATE INDEX {table}_dead ON {table} (id) WHERE status = 'DEAD';

CREATE TABLE {table}_claim (
    lane text PRIMARY KEY,
    locked_by text NOT NULL,
    locked_at integer NOT NULL,
    ids text NOT NULL
) WITHOUT ROWID;

CREATE VIEW {table}_status AS
SELECT e.id, e.event_id, e.aggregate_type, e.aggregate_id, e.type, e.topic, e.payload, e.headers, e.created_at,
    e.sent, CASE WHEN c.id IS NOT NULL AND e.status = 'PENDING' THEN 'CLAIMED' ELSE e.status END AS status,
    e.attempts, coalesce(c.locked_at, e.locked_at) AS locked_at, coalesce(c.locked_by, e.locked_by) AS locked_by,
    e.sent_at, e.last_error_at, e.next_attempt_at, e.last_error
FROM {table} e LEFT JOIN (
    SELECT i.value AS id, max(k.locked_at) AS locked_at, k.locked_by AS locked_by
    FROM {table}_claim k JOIN tidegate_lease l ON l.name = '{component}/' || k.locked_by
        AND l.until > CAST(round((julianday('now') - 2440587.5) * 86400000) AS integer), json_each(k.ids) i
    GROUP BY i.value) c ON c.id = e.id;

-- For whoever adds events by SQL: mints what is missing and writes the posting. Our own insert brings all
-- three along; it writes its posting itself, and says so by a relay that is none.
CREATE TRIGGER {table}_added AFTER INSERT ON {table} BEGIN
    UPDATE {table} SET
        event_id = lower(coalesce(NEW.event_id, (SELECT printf('%08x-%04x-7%03x-%s%03x-%012x',
            t.ms >> 16, t.ms & 65535, abs(random() % 4096), substr('89ab', 1 + abs(random() % 4), 1),
            abs(random() % 4096), abs(random() % 281474976710656))
            FROM (SELECT CAST(round((julianday('now') - 2440587.5) * 86400000) AS integer) AS ms) t))),
        created_at = coalesce(NEW.created_at, CAST(round((julianday('now') - 2440587.5) * 86400000) AS integer)),
        locked_by = nullif(NEW.locked_by, 'tidegate.outbox_posted')
    WHERE id = NEW.id;
    INSERT INTO tidegate_posting (component, bucket, from_place, to_place, count, id_sum)
    SELECT '{component}', 'm' || CASE WHEN substr(x.t, 13, 1) = '7' THEN (
            WITH RECURSIVE digit(n, v) AS (
                SELECT 0, 0 UNION ALL
                SELECT n + 1, v * 16 + instr('0123456789abcdef', substr(x.t, n + 1, 1)) - 1
                FROM digit WHERE n < 12)
            SELECT v / 60000 FROM digit WHERE n = 12) ELSE 0 END,
        NULL, 'queued', 1, x.event_id
    FROM (SELECT event_id, replace(event_id, '-', '') AS t FROM {table} WHERE id = NEW.id) x
    WHERE NEW.locked_by IS NOT 'tidegate.outbox_posted';
END;
