-- Ids are taken only by transactions that have a transaction id already, here and for groups of the
-- log. So whoever may still bring an id that was skipped has a transaction id below every one that is
-- given out later; and once all of those have ended, the id is there or was rolled back.
CREATE SEQUENCE tidegate_event_id AS bigint;

-- Events, appended once and never rewritten. Where an event is stands elsewhere: above the newest
-- cursor or in a gap it waits, in a batch it is claimed, with a row of its own it is an exception,
-- with a log row it is finished.
CREATE TABLE tidegate_event (
    id bigint PRIMARY KEY DEFAULT
        CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('tidegate_event_id') END,
    event_id uuid NOT NULL,
    -- What could not be read after a claim, or not be indexed at its settling, does not come in.
    created_at timestamptz NOT NULL DEFAULT now() CHECK (
        created_at BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999+00'),
    type text NOT NULL CHECK (octet_length(type) BETWEEN 1 AND 255),
    key text CHECK (octet_length(key) <= 1024),
    payload json NOT NULL,
    headers jsonb CHECK (jsonb_typeof(headers) = 'object')
);
ALTER SEQUENCE tidegate_event_id OWNED BY tidegate_event.id;
-- Ids grow with time, so a few bytes per thousand events are enough to find one.
CREATE INDEX tidegate_event_by_event_id ON tidegate_event USING brin (event_id)
    WITH (pages_per_range = 16, autosummarize = on);

-- One row per queue: its lock, and what changes rarely.
CREATE TABLE tidegate_queue (
    name text PRIMARY KEY,
    registry bigint NOT NULL DEFAULT 1,
    sequenced_below bigint NOT NULL DEFAULT 0,
    states_cleaned_until timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);
INSERT INTO tidegate_queue (name) VALUES ('queue');

-- How far events were claimed. Each claim adds a row and the newest counts, because a single row
-- rewritten at each claim would pile up dead versions under an old snapshot.
CREATE TABLE tidegate_cursor (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    position bigint NOT NULL
);
INSERT INTO tidegate_cursor (position) VALUES (0);

-- Ids below the cursor that were not there yet when it passed. Every transaction that may still bring
-- one has an id below the horizon: once all of those have ended, what is missing was rolled back.
--
-- The horizon is the id of a transaction that saw the gap before it had an id of its own. An id above
-- those of the gap was committed when the gap was found; so those of the gap were taken before, by
-- transactions that had their ids by then; and ids of transactions grow. The claim that finds a gap
-- cannot give it a horizon: it has its own id before it looks. Nor is the xmax of a snapshot one: it
-- follows the last transaction that ended, and those that run may be above it.
CREATE TABLE tidegate_gap (
    first_id bigint PRIMARY KEY,
    last_id bigint NOT NULL,
    horizon xid8
);

-- Who may still bring an id of a gap that was looked into: of the transactions below the horizons of
-- the gaps from the last stretch up to this one, those that ran when the look began. Nothing comes
-- into these gaps before one of them ends, so until then nobody looks. Gaps above the last stretch are
-- looked into at each claim.
CREATE TABLE tidegate_gap_look (
    last_id bigint PRIMARY KEY,
    awaited xid8[] NOT NULL
);

-- Claims: one lease for many events. Its token grows with every owner.
CREATE TABLE tidegate_batch (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    token bigint NOT NULL DEFAULT 1,
    attempts integer NOT NULL DEFAULT 1,
    -- How many of its leases ran out before this one.
    abandoned integer NOT NULL DEFAULT 0,
    -- Whether its owner is known to have heard of the claim: asked for of suspects only, by a renewal.
    is_confirmed boolean NOT NULL DEFAULT true,
    -- Empty after it was given back: that lease did not run out.
    locked_by text NOT NULL,
    locked_until timestamptz NOT NULL,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Whether some of its events were settled, so that it lists what is not its own any more.
    is_parted boolean NOT NULL DEFAULT false,
    ids bigint[] NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01);

-- Events with a state of their own: retried, parked behind their key, or left to other processes.
-- The lane says which handlers are wanted: `type:handler,handler`.
CREATE TABLE tidegate_event_row (
    id bigint PRIMARY KEY,
    lane text NOT NULL,
    key text,
    place text NOT NULL,
    attempts integer NOT NULL,
    -- As of a batch.
    abandoned integer NOT NULL DEFAULT 0,
    is_confirmed boolean NOT NULL DEFAULT true,
    token bigint NOT NULL DEFAULT 0,
    -- From when on it may be claimed: its retry, the end of its lease, or never while parked.
    due_at timestamptz NOT NULL,
    locked_by text,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01);
CREATE INDEX tidegate_event_row_due ON tidegate_event_row (lane, due_at, id);
CREATE INDEX tidegate_event_row_key ON tidegate_event_row (key, id) WHERE key IS NOT NULL;
CREATE INDEX tidegate_event_row_key_due ON tidegate_event_row (key, id)
    WHERE key IS NOT NULL AND due_at < 'infinity';
CREATE INDEX tidegate_event_row_parked ON tidegate_event_row (key)
    WHERE key IS NOT NULL AND due_at = 'infinity';
-- What is being worked on is counted every few seconds, and is little beside what waits.
CREATE INDEX tidegate_event_row_claimed ON tidegate_event_row (place) WHERE locked_by IS NOT NULL;

-- Events that were canceled before anybody claimed them; the claim passes over them.
CREATE TABLE tidegate_canceled (
    id bigint PRIMARY KEY
);

-- Which handlers finished an event together: most events have the same, so they are named once.
CREATE TABLE tidegate_handler_set (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    handlers text NOT NULL UNIQUE
);

-- What finished together, in the order in which it did.
CREATE SEQUENCE tidegate_log_batch_id AS bigint;
CREATE TABLE tidegate_log_batch (
    id bigint PRIMARY KEY DEFAULT
        CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('tidegate_log_batch_id') END,
    finalized_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ids bigint[] NOT NULL
);
ALTER SEQUENCE tidegate_log_batch_id OWNED BY tidegate_log_batch.id;
CREATE INDEX tidegate_log_batch_finalized ON tidegate_log_batch USING brin (finalized_at)
    WITH (pages_per_range = 16, autosummarize = on);

-- One narrow row per finished event; the event itself stays where it is.
CREATE TABLE tidegate_log (
    id bigint PRIMARY KEY,
    batch bigint NOT NULL,
    ordinal integer NOT NULL,
    attempts integer NOT NULL,
    handlers integer,
    is_failed boolean NOT NULL,
    errors jsonb
);

-- The order that projections read: written by the sequencer alone, without holes.
CREATE TABLE tidegate_sequence (
    batch bigint PRIMARY KEY,
    position bigint NOT NULL UNIQUE,
    count integer NOT NULL
);

CREATE TABLE tidegate_handler_state (
    id bigint NOT NULL,
    handler_id text NOT NULL,
    result text NOT NULL,
    attempts integer NOT NULL,
    error text,
    updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (id, handler_id)
);

CREATE TABLE event_handler (
    type text NOT NULL,
    handler_id text NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (type, handler_id)
);

CREATE TABLE event_projection (
    name text PRIMARY KEY,
    position bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    -- How often a rebuild was swapped in.
    rebuilds bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

CREATE TABLE event_inbox (
    handler_id text NOT NULL,
    event_id uuid NOT NULL,
    sub_task text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (handler_id, event_id, sub_task)
);
-- They are removed with their event.
CREATE INDEX event_inbox_by_event_id ON event_inbox (event_id);

CREATE FUNCTION tidegate_new_event_id() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid()) PLACING
        substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
        FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid
$$;

-- The minute an id was born in, where it tells.
CREATE FUNCTION tidegate_bucket(event_id uuid) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'm' || CASE WHEN substr(t, 13, 1) = '7'
        THEN ('x0000' || substr(t, 1, 12))::bit(64)::bigint / 60000 ELSE 0 END
    FROM replace(event_id::text, '-', '') t
$$;

-- Four sums of 32 bits as one of 128, with the carries between them.
CREATE FUNCTION tidegate_id_sum(a bigint, b bigint, c bigint, d bigint) RETURNS uuid
LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex((a + ((b + ((c + (d >> 32)) >> 32)) >> 32)) & 4294967295), 8, '0')
        || lpad(to_hex((b + ((c + (d >> 32)) >> 32)) & 4294967295), 8, '0')
        || lpad(to_hex((c + (d >> 32)) & 4294967295), 8, '0')
        || lpad(to_hex(d & 4294967295), 8, '0'))::uuid
$$;

-- One posting per statement and minute, for whoever adds events by SQL. Our own publish brings its
-- posting along and says so for the one statement that follows. Whoever may add an event need not see
-- the books, nor have this schema in its search path.
CREATE FUNCTION tidegate_event_added() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF current_setting('tidegate.posted', true) = 'yes' THEN
        PERFORM set_config('tidegate.posted', '', true);
        RETURN NULL;
    END IF;
    INSERT INTO tidegate_posting (component, bucket, from_place, to_place, count, id_sum)
    SELECT 'queue', tidegate_bucket(event_id), NULL, 'queued', count(*), tidegate_id_sum(
        sum(('x' || substr(event_id::text, 1, 8))::bit(32)::bigint)::bigint,
        sum(('x' || substr(event_id::text, 10, 4) || substr(event_id::text, 15, 4))::bit(32)::bigint)::bigint,
        sum(('x' || substr(event_id::text, 20, 4) || substr(event_id::text, 25, 4))::bit(32)::bigint)::bigint,
        sum(('x' || substr(event_id::text, 29, 8))::bit(32)::bigint)::bigint)
    FROM added GROUP BY 2;
    RETURN NULL;
END $$;
-- Temporary tables last: one of the same name, made by whoever adds, would take the posting.
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION tidegate_event_added() SET search_path = %I, pg_temp', current_schema());
END $$;
CREATE TRIGGER tidegate_event_added AFTER INSERT ON tidegate_event
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION tidegate_event_added();

-- Stretches of ids with gaps that something may have come into: those of which somebody who was awaited
-- has ended, and what is above all that were looked into before.
CREATE FUNCTION tidegate_stretches(p_now pg_snapshot, OUT after_id bigint, OUT last_id bigint)
RETURNS SETOF record LANGUAGE sql STABLE AS $$
    WITH stretch AS MATERIALIZED (
        SELECT coalesce(lag(l.last_id) OVER (ORDER BY l.last_id), 0) AS after_id, l.last_id,
            l.awaited <@ ARRAY(SELECT pg_snapshot_xip(p_now)) AS is_quiet
        FROM tidegate_gap_look l)
    SELECT s.after_id, s.last_id FROM stretch s WHERE NOT s.is_quiet
    UNION ALL
    SELECT above.id, 9223372036854775807
    FROM (SELECT coalesce(max(s.last_id), 0) AS id FROM stretch s) above
    WHERE EXISTS (SELECT 1 FROM tidegate_gap g WHERE g.first_id > above.id)
$$;

-- What came late: the events in gaps, at most p_limit. Forgets gaps that nothing comes into any more,
-- and notes who may still come into the others. The caller has the lock of the claim.
CREATE FUNCTION tidegate_late(p_limit integer, p_new_gaps bigint[]) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE
    -- Read before the look, so that whatever ended by then is seen by the look.
    v_now pg_snapshot := pg_current_snapshot();
    v_firsts bigint[];
    v_late bigint[];
    v_last bigint;
BEGIN
    -- At most so many gaps, so that nobody waits long for the lock; the others are for the next claim.
    SELECT coalesce(array_agg(g.first_id ORDER BY g.first_id), '{}'), max(g.last_id)
    INTO v_firsts, v_last FROM (
        SELECT g.first_id, g.last_id FROM tidegate_stretches(v_now) s
        JOIN tidegate_gap g ON g.first_id > s.after_id AND g.first_id <= s.last_id
        ORDER BY g.first_id LIMIT 5000) g;
    IF cardinality(v_firsts) < 5000 THEN
        v_last := 9223372036854775807;
    END IF;
    SELECT coalesce(array_agg(f.id ORDER BY f.id), '{}') INTO v_late FROM (
        -- The inner limit keeps it to one range of the index per gap; as a plain join every event
        -- there is would be read.
        SELECT e.id FROM unnest(v_firsts) f(id) JOIN tidegate_gap g ON g.first_id = f.id
        CROSS JOIN LATERAL (
            SELECT i.id FROM tidegate_event i
            WHERE i.id BETWEEN g.first_id AND g.last_id
              AND NOT EXISTS (SELECT 1 FROM tidegate_canceled c WHERE c.id = i.id)
            ORDER BY i.id LIMIT p_limit) e
        ORDER BY e.id LIMIT p_limit) f;
    IF cardinality(v_late) > 0 THEN
        WITH touched AS (
            DELETE FROM tidegate_gap g USING unnest(v_late) l(id)
            WHERE l.id BETWEEN g.first_id AND g.last_id
            RETURNING g.first_id, g.last_id, g.horizon, l.id),
        gap AS (
            -- A gap that several late events were in comes back once only.
            SELECT g.first_id, g.last_id, g.horizon FROM touched g),
        cut AS (
            SELECT g.first_id, g.last_id, g.horizon, l.id FROM gap g
            JOIN unnest(v_late) l(id) ON l.id BETWEEN g.first_id AND g.last_id),
        part AS (
            SELECT coalesce(lag(id) OVER w + 1, first_id) AS a, id - 1 AS b, horizon
            FROM cut WINDOW w AS (PARTITION BY first_id ORDER BY id)
            UNION ALL
            SELECT max(id) + 1, last_id, horizon FROM cut GROUP BY first_id, last_id, horizon)
        INSERT INTO tidegate_gap SELECT a, b, horizon FROM part WHERE a <= b;
    END IF;
    IF cardinality(v_late) < p_limit THEN
        -- It came to the end of all these gaps, their parts included.
        DELETE FROM tidegate_gap g USING tidegate_stretches(v_now) s
        WHERE g.first_id > s.after_id AND g.first_id <= least(s.last_id, v_last)
          AND g.horizon <= pg_snapshot_xmin(v_now);
        IF EXISTS (SELECT 1 FROM tidegate_gap) OR EXISTS (SELECT 1 FROM tidegate_gap_look) THEN
            PERFORM tidegate_looked(v_now, v_last);
        END IF;
    END IF;
    IF p_new_gaps IS NOT NULL THEN
        UPDATE tidegate_gap g SET horizon = pg_current_xact_id()
        WHERE g.horizon IS NULL AND g.first_id = ANY (p_new_gaps);
    END IF;
    RETURN v_late;
END $$;

-- Notes a look, begun at p_now, that came to the end of all gaps up to p_last that needed one.
CREATE FUNCTION tidegate_looked(p_now pg_snapshot, p_last bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_running xid8[] := ARRAY(SELECT pg_snapshot_xip(p_now));
    v_above bigint;
    v_end bigint;
    v_horizon xid8;
BEGIN
    SELECT coalesce(max(l.last_id), 0) INTO v_above FROM tidegate_gap_look l;
    -- A stretch that was looked into in part is parted.
    INSERT INTO tidegate_gap_look (last_id, awaited)
    SELECT p_last, l.awaited FROM tidegate_gap_look l WHERE l.last_id > p_last
    ORDER BY l.last_id LIMIT 1 ON CONFLICT DO NOTHING;
    UPDATE tidegate_gap_look l
    SET awaited = ARRAY(SELECT x FROM unnest(l.awaited) x WHERE x = ANY (v_running))
    WHERE l.last_id <= p_last AND NOT l.awaited <@ v_running;
    -- Whoever may bring an id of the gaps above runs, or has ended and was seen, where the horizon is
    -- not above the snapshot. Those from the first one on of which that is not so wait for the next look.
    SELECT max(g.last_id), max(g.horizon::text::numeric)::text::xid8 INTO v_end, v_horizon
    FROM tidegate_gap g WHERE g.first_id > v_above AND g.first_id <= p_last
      AND g.first_id < coalesce((
          SELECT min(h.first_id) FROM tidegate_gap h WHERE h.first_id > v_above
            AND (h.horizon IS NULL OR h.horizon > pg_snapshot_xmax(p_now))), 9223372036854775807);
    IF v_end IS NOT NULL THEN
        INSERT INTO tidegate_gap_look (last_id, awaited)
        VALUES (v_end, ARRAY(SELECT x FROM unnest(v_running) x WHERE x < v_horizon));
    END IF;
    -- Neighbors that await the same are one, and where nobody is awaited there is no gap.
    DELETE FROM tidegate_gap_look l USING (
        SELECT n.last_id, n.awaited = lead(n.awaited) OVER (ORDER BY n.last_id) AS is_same
        FROM tidegate_gap_look n) n
    WHERE l.last_id = n.last_id AND (n.is_same OR l.awaited = '{}');
END $$;

-- Claims what waits: late events first, then fresh ones. One at a time, by the lock on the queue's
-- row, and in one statement, so that a client that stands still never holds the lock. Where nothing
-- waits, it takes no lock and writes nothing: most looks are such, and a lock is a commit to be
-- synced.
CREATE FUNCTION tidegate_claim(p_limit integer, p_owner text, p_lease_ms bigint,
    OUT batch bigint, OUT claimed bigint[], OUT registry bigint) LANGUAGE plpgsql AS $$
DECLARE
    v_cursor bigint;
    v_new_gaps bigint[];
    v_late bigint[] := '{}';
    v_fresh bigint[];
    v_last bigint;
BEGIN
    -- With one snapshot for all statements it would not see what the claim before it did.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'tidegate_claim needs read committed, and this transaction is %',
            current_setting('transaction_isolation');
    END IF;
    claimed := '{}';
    SELECT q.registry INTO registry FROM tidegate_queue q WHERE q.name = 'queue';
    SELECT c.position INTO v_cursor FROM tidegate_cursor c ORDER BY c.id DESC LIMIT 1;
    -- By the order of the index: for a mere "is there one" the whole table might be read.
    SELECT e.id INTO v_last FROM tidegate_event e WHERE e.id > v_cursor ORDER BY e.id LIMIT 1;
    IF EXISTS (SELECT 1 FROM tidegate_gap) THEN
        -- Before the lock, which gives this transaction its id: gaps that are there by now may have
        -- that id as their horizon. A part of such a gap begins with its number or is left for later.
        IF pg_current_xact_id_if_assigned() IS NULL THEN
            SELECT array_agg(g.first_id) INTO v_new_gaps FROM tidegate_gap g WHERE g.horizon IS NULL
                AND g.first_id > coalesce((SELECT max(l.last_id) FROM tidegate_gap_look l), 0);
        END IF;
        IF v_last IS NULL AND NOT EXISTS (SELECT 1 FROM tidegate_stretches(pg_current_snapshot())) THEN
            RETURN;
        END IF;
    ELSIF v_last IS NULL THEN
        RETURN;
    END IF;
    SELECT q.registry INTO registry FROM tidegate_queue q WHERE q.name = 'queue' FOR UPDATE;
    SELECT c.position INTO v_cursor FROM tidegate_cursor c ORDER BY c.id DESC LIMIT 1;
    IF EXISTS (SELECT 1 FROM tidegate_gap) THEN
        v_late := tidegate_late(p_limit, v_new_gaps);
    END IF;
    SELECT array_agg(f.id ORDER BY f.id), max(f.id) INTO v_fresh, v_last FROM (
        SELECT e.id FROM tidegate_event e WHERE e.id > v_cursor
        ORDER BY e.id LIMIT p_limit - cardinality(v_late)) f;
    IF v_last IS NOT NULL THEN
        IF v_last - v_cursor > cardinality(v_fresh) THEN
            INSERT INTO tidegate_gap (first_id, last_id)
            SELECT g.a, g.b FROM (
                SELECT lag(f.id, 1, v_cursor) OVER (ORDER BY f.id) + 1 AS a, f.id - 1 AS b
                FROM unnest(v_fresh) f(id)) g WHERE g.a <= g.b;
        END IF;
        INSERT INTO tidegate_cursor (position) VALUES (v_last);
        IF EXISTS (SELECT 1 FROM tidegate_canceled) THEN
            SELECT array_agg(f.id ORDER BY f.id) INTO v_fresh FROM unnest(v_fresh) f(id)
            WHERE NOT EXISTS (SELECT 1 FROM tidegate_canceled c WHERE c.id = f.id);
        END IF;
    END IF;
    claimed := v_late || coalesce(v_fresh, '{}');
    IF cardinality(claimed) > 0 THEN
        INSERT INTO tidegate_batch (locked_by, locked_until, ids)
        VALUES (p_owner, clock_timestamp() + p_lease_ms * interval '1 millisecond', claimed)
        RETURNING id INTO batch;
    END IF;
END $$;

-- What of a batch is not finished and has no row of its own. An event that is gone altogether is not
-- waited for: nobody could settle it.
CREATE FUNCTION tidegate_remaining(p_ids bigint[]) RETURNS bigint[] LANGUAGE sql STABLE AS $$
    SELECT coalesce(array_agg(i.id ORDER BY i.n), '{}') FROM unnest(p_ids) WITH ORDINALITY i(id, n)
    WHERE NOT EXISTS (SELECT 1 FROM tidegate_log l WHERE l.id = i.id)
      AND NOT EXISTS (SELECT 1 FROM tidegate_event_row r WHERE r.id = i.id)
      AND EXISTS (SELECT 1 FROM tidegate_event e WHERE e.id = i.id)
$$;

-- Which of these events are finished, have a row of their own, or were removed by now. Volatile, so that
-- it looks with a snapshot of its own: the caller holds the lock of their batch, may have waited for it, and would
-- not see what the one before it did.
CREATE FUNCTION tidegate_settled(p_ids bigint[]) RETURNS bigint[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN ARRAY(SELECT i.id FROM unnest(p_ids) i(id)
        WHERE EXISTS (SELECT 1 FROM tidegate_log l WHERE l.id = i.id)
           OR EXISTS (SELECT 1 FROM tidegate_event_row r WHERE r.id = i.id)
           OR NOT EXISTS (SELECT 1 FROM tidegate_event e WHERE e.id = i.id));
END $$;

-- The number of an advisory lock, other than that of a queue in another schema: `retention` is held by
-- whoever removes events, shared by whoever notes how far a projection is for the first time; `registry`
-- by whoever registers handlers, shared by whoever settles.
CREATE FUNCTION tidegate_lock(p_what text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT hashtextextended('tidegate.' || p_what, 'tidegate_queue'::regclass::oid::bigint)
$$;

-- The version of the registry, which stays what it is until this transaction ends; none while somebody
-- registers. Volatile, so that it looks with a snapshot of its own: the caller may have waited for the
-- lock of what it settles. It does not wait itself, because it has that lock.
CREATE FUNCTION tidegate_registry() RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF NOT pg_try_advisory_xact_lock_shared(tidegate_lock('registry')) THEN RETURN NULL; END IF;
    RETURN (SELECT q.registry FROM tidegate_queue q WHERE q.name = 'queue');
END $$;

-- Adds handlers; those that are there stay. In one statement, as the claim: it holds the claim's lock, and
-- the one that every settle asks for.
CREATE FUNCTION tidegate_register(p_types text[], p_handlers text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT * FROM unnest(p_types, p_handlers)
        EXCEPT SELECT h.type, h.handler_id FROM event_handler h) THEN RETURN; END IF;
    -- Whoever settles by the registry as it was has committed before it changes.
    PERFORM pg_advisory_xact_lock(tidegate_lock('registry'));
    INSERT INTO event_handler (type, handler_id) SELECT * FROM unnest(p_types, p_handlers)
    ON CONFLICT DO NOTHING;
    IF FOUND THEN
        UPDATE tidegate_queue q SET registry = q.registry + 1 WHERE q.name = 'queue';
    END IF;
END $$;

-- Takes over one batch whose lease ran out, or at most p_limit events of it. Batches below p_floor
-- are known to be gone, so their dead versions need not be looked at.
--
-- Where two leases ran out, the events are suspects: one of them may take processes down. They are handed
-- out one at a time, to whoever asks for suspects, after everything else, and each time one lease later,
-- ten at most. A lease of theirs counts when it was renewed: otherwise the answer may have been lost, and
-- nobody handled them. With p_patience only suspects are looked for that have waited so many leases more.
CREATE FUNCTION tidegate_take_over(p_limit integer, p_owner text, p_lease_ms bigint, p_floor bigint,
    p_suspects boolean, p_patience integer, OUT batch bigint, OUT new_token bigint, OUT new_attempts integer,
    OUT new_abandoned integer, OUT claimed bigint[])
LANGUAGE plpgsql AS $$
DECLARE
    v_rest bigint[];
    v_until timestamptz := clock_timestamp() + p_lease_ms * interval '1 millisecond';
    v_limit integer := p_limit;
BEGIN
    SELECT b.id, b.token + 1, b.attempts + 1, a.n, b.ids
    INTO batch, new_token, new_attempts, new_abandoned, claimed
    FROM tidegate_batch b
    CROSS JOIN LATERAL (
        SELECT b.abandoned + (b.locked_by <> '' AND b.is_confirmed)::integer AS n) a
    WHERE b.id >= p_floor AND b.locked_until < clock_timestamp()
      AND (a.n < 2 AND p_patience = 0 OR a.n >= 2 AND p_suspects AND b.locked_until <= clock_timestamp()
          - (least(a.n - 2, 10) + p_patience) * p_lease_ms * interval '1 millisecond')
    ORDER BY a.n >= 2, b.id LIMIT 1 FOR UPDATE OF b SKIP LOCKED;
    IF batch IS NULL THEN RETURN; END IF;
    IF new_abandoned >= 2 THEN v_limit := least(p_limit, 1); END IF;
    claimed := tidegate_remaining(claimed);
    IF cardinality(claimed) = 0 THEN
        DELETE FROM tidegate_batch b WHERE b.id = batch;
    ELSIF cardinality(claimed) > v_limit THEN
        v_rest := claimed[v_limit + 1:];
        claimed := claimed[:v_limit];
        UPDATE tidegate_batch b SET ids = v_rest, is_parted = false, token = new_token
        WHERE b.id = batch;
        INSERT INTO tidegate_batch (attempts, abandoned, is_confirmed, locked_by, locked_until, ids)
        VALUES (new_attempts, new_abandoned, new_abandoned < 2, p_owner, v_until, claimed) RETURNING id, token INTO batch, new_token;
    ELSE
        UPDATE tidegate_batch b SET token = new_token, attempts = new_attempts,
            abandoned = new_abandoned, is_confirmed = new_abandoned < 2, locked_by = p_owner,
            locked_until = v_until, claimed_at = clock_timestamp(), is_parted = false, ids = claimed
        WHERE b.id = batch;
    END IF;
END $$;

-- Which of these events of one batch have an earlier one of their key that is not finished.
CREATE FUNCTION tidegate_blocked(p_batch bigint, p_ids bigint[]) RETURNS SETOF bigint
LANGUAGE sql STABLE AS $$
    WITH mine AS MATERIALIZED (
        SELECT e.id, e.key FROM tidegate_event e WHERE e.id = ANY (p_ids) AND e.key IS NOT NULL),
    busy AS MATERIALIZED (
        SELECT e.key, min(e.id) AS id FROM tidegate_batch b
        CROSS JOIN LATERAL unnest(b.ids) i(id) JOIN tidegate_event e ON e.id = i.id
        WHERE b.id <> p_batch AND e.key IN (SELECT m.key FROM mine m)
          AND NOT EXISTS (SELECT 1 FROM tidegate_log l WHERE l.id = i.id)
          AND NOT EXISTS (SELECT 1 FROM tidegate_event_row r WHERE r.id = i.id)
        GROUP BY e.key)
    SELECT m.id FROM mine m LEFT JOIN busy USING (key)
    WHERE busy.id < m.id
       OR EXISTS (SELECT 1 FROM tidegate_event_row r WHERE r.key = m.key AND r.id < m.id)
$$;

-- Lets the first waiting event of each key go, and holds back the others. It takes the lock of the
-- claim: an event is then either seen here or sees what was finished.
--
-- It waits for a later event of its key that is being handled: one that was given back has such. A batch
-- that was claimed after the row was written knew of the row, and what it has of the key is parked.
CREATE FUNCTION tidegate_release(p_keys text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM tidegate_queue q WHERE q.name = 'queue' FOR UPDATE;
    WITH wanted AS MATERIALIZED (SELECT DISTINCT k.key FROM unnest(p_keys) k(key)),
    busy AS MATERIALIZED (
        SELECT e.key, min(e.id) AS id, min(b.claimed_at) AS since FROM tidegate_batch b
        CROSS JOIN LATERAL unnest(b.ids) i(id) JOIN tidegate_event e ON e.id = i.id
        WHERE e.key IN (SELECT w.key FROM wanted w)
          AND NOT EXISTS (SELECT 1 FROM tidegate_log l WHERE l.id = i.id)
          AND NOT EXISTS (SELECT 1 FROM tidegate_event_row r WHERE r.id = i.id)
        GROUP BY e.key),
    head AS MATERIALIZED (
        SELECT w.key, h.id, h.due_at, h.updated_at FROM wanted w CROSS JOIN LATERAL (
            SELECT r.id, r.due_at, r.updated_at FROM tidegate_event_row r WHERE r.key = w.key
            ORDER BY r.id LIMIT 1) h),
    freed AS (
        UPDATE tidegate_event_row r SET due_at = clock_timestamp() FROM head h
        LEFT JOIN busy USING (key)
        WHERE r.id = h.id AND h.due_at = 'infinity'
          AND (busy.id IS NULL OR (busy.id > h.id AND busy.since > h.updated_at))
          -- One that was canceled before it was claimed has nothing earlier left once the cursor is there.
          AND h.id <= (SELECT c.position FROM tidegate_cursor c ORDER BY c.id DESC LIMIT 1)
          AND NOT EXISTS (SELECT 1 FROM tidegate_event_row o WHERE o.key = h.key
              AND o.due_at < 'infinity' AND o.locked_by IS NOT NULL))
    UPDATE tidegate_event_row r SET due_at = 'infinity' FROM head h
    WHERE r.key = h.key AND r.id > h.id AND r.due_at < 'infinity' AND r.locked_by IS NULL;
END $$;

-- Gives an event that was completed with errors back to the handlers that did not succeed, and says
-- whether there was one. In one statement, as the claim. With a key it waits for its turn, like another.
CREATE FUNCTION tidegate_give_back(p_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_attempts integer;
    v_event tidegate_event;
    v_lane text;
BEGIN
    -- No claim is under way that would not see the row.
    PERFORM 1 FROM tidegate_queue q WHERE q.name = 'queue' FOR UPDATE;
    SELECT * INTO v_event FROM tidegate_event e WHERE e.id = p_id;
    IF NOT FOUND THEN RETURN false; END IF;
    DELETE FROM tidegate_log l WHERE l.id = p_id AND l.is_failed RETURNING l.attempts INTO v_attempts;
    IF NOT FOUND THEN RETURN false; END IF;
    DELETE FROM tidegate_handler_state s WHERE s.id = p_id AND s.result <> 'SUCCESS';
    SELECT v_event.type || ':' || coalesce(string_agg(h.handler_id, ',' ORDER BY h.handler_id COLLATE "C"), '')
    INTO v_lane FROM event_handler h
    WHERE h.type = v_event.type AND NOT EXISTS (
        SELECT 1 FROM tidegate_handler_state s WHERE s.id = p_id AND s.handler_id = h.handler_id);
    -- It may have had a row before, and whoever stood still may have a claim of that. Tokens go on from the
    -- time in microseconds, so that they are above all earlier ones.
    INSERT INTO tidegate_event_row (id, lane, key, place, attempts, token, due_at)
    VALUES (p_id, v_lane, v_event.key, 'queued', v_attempts,
        (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
        CASE WHEN v_event.key IS NULL THEN clock_timestamp() ELSE 'infinity' END);
    -- The sum of one id is the id.
    INSERT INTO tidegate_posting (component, bucket, from_place, to_place, count, id_sum)
    VALUES ('queue', tidegate_bucket(v_event.event_id), 'dead_lettered', 'queued', 1, v_event.event_id);
    IF v_event.key IS NOT NULL THEN PERFORM tidegate_release(ARRAY[v_event.key]); END IF;
    RETURN true;
END $$;

CREATE VIEW event_queue AS
SELECT e.id, e.event_id, e.type, e.key, e.payload, e.headers, s.status, s.attempts, e.created_at,
    coalesce(s.updated_at, e.created_at) AS updated_at, s.next_attempt_at, s.locked_by, s.locked_until
FROM (
    SELECT f.id, 'PENDING' AS status, 0 AS attempts, NULL::timestamptz AS updated_at,
        NULL::timestamptz AS next_attempt_at, NULL::text AS locked_by, NULL::timestamptz AS locked_until
    FROM tidegate_event f
    WHERE f.id > (SELECT c.position FROM tidegate_cursor c ORDER BY c.id DESC LIMIT 1)
      AND NOT EXISTS (SELECT 1 FROM tidegate_canceled x WHERE x.id = f.id)
    UNION ALL
    SELECT f.id, 'PENDING', 0, NULL, NULL, NULL, NULL
    FROM tidegate_gap g CROSS JOIN LATERAL (
        SELECT i.id FROM tidegate_event i
        WHERE i.id BETWEEN g.first_id AND g.last_id
          AND NOT EXISTS (SELECT 1 FROM tidegate_canceled x WHERE x.id = i.id)
        ORDER BY i.id OFFSET 0) f
    UNION ALL
    SELECT i.id, 'PROCESSING', b.attempts, b.claimed_at, NULL, b.locked_by, b.locked_until
    FROM tidegate_batch b CROSS JOIN LATERAL unnest(b.ids) i(id)
    WHERE NOT EXISTS (SELECT 1 FROM tidegate_log l WHERE l.id = i.id)
      AND NOT EXISTS (SELECT 1 FROM tidegate_event_row r WHERE r.id = i.id)
    UNION ALL
    SELECT r.id, CASE WHEN r.locked_by IS NULL THEN 'PENDING' ELSE 'PROCESSING' END, r.attempts,
        r.updated_at, CASE WHEN r.locked_by IS NULL AND r.due_at < 'infinity' THEN r.due_at END,
        r.locked_by, CASE WHEN r.locked_by IS NOT NULL THEN r.due_at END
    FROM tidegate_event_row r
) s JOIN tidegate_event e ON e.id = s.id;

-- Ends an event that nobody handles, and says whether it did: one that waits, with a row of its own or not
-- claimed yet, and one whose lease is over. In one statement, as the claim: it holds the claim's lock, and so
-- waits for nobody who has the event locked, late as that may be: such an event is somebody's still.
CREATE FUNCTION tidegate_cancel(p_id bigint, p_errors jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_batch bigint;
    v_place text;
    v_attempts integer;
    v_key text;
    v_event_id uuid;
BEGIN
    -- The claim waits for us, so nobody takes the event meanwhile.
    PERFORM 1 FROM tidegate_queue q WHERE q.name = 'queue' FOR UPDATE;
    SELECT e.event_id INTO v_event_id FROM tidegate_event e WHERE e.id = p_id;
    DELETE FROM tidegate_event_row r WHERE r.id = (
        SELECT o.id FROM tidegate_event_row o WHERE o.id = p_id
            AND (o.locked_by IS NULL OR o.due_at < clock_timestamp()) FOR UPDATE SKIP LOCKED)
    RETURNING r.place, r.attempts, r.key INTO v_place, v_attempts, v_key;
    IF NOT FOUND THEN
        -- Whoever has it late needs the lock of the batch, and finds then that it has left the batch.
        SELECT b.id, b.attempts INTO v_batch, v_attempts FROM tidegate_batch b
        WHERE p_id = ANY (b.ids) AND b.locked_until < clock_timestamp() FOR UPDATE SKIP LOCKED;
        IF FOUND AND tidegate_settled(ARRAY[p_id]) = '{}' THEN
            UPDATE tidegate_batch b SET is_parted = true WHERE b.id = v_batch;
            SELECT e.key INTO v_key FROM tidegate_event e WHERE e.id = p_id;
            v_place := 'queued';
        END IF;
    END IF;
    IF v_place IS NULL THEN
        -- Whoever settles takes no lock of ours: a row that came since is for the next try.
        INSERT INTO tidegate_canceled SELECT q.id FROM event_queue q
        WHERE q.id = p_id AND q.status = 'PENDING'
            AND NOT EXISTS (SELECT FROM tidegate_event_row r WHERE r.id = p_id)
        ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN RETURN false; END IF;
        v_place := 'queued';
        v_attempts := 0;
    END IF;
    WITH together AS (
        INSERT INTO tidegate_log_batch (ids) VALUES (ARRAY[p_id]) RETURNING id)
    INSERT INTO tidegate_log (id, batch, ordinal, attempts, is_failed, errors)
    SELECT p_id, together.id, 0, v_attempts, true, p_errors FROM together;
    -- The sum of one id is the id.
    INSERT INTO tidegate_posting (component, bucket, from_place, to_place, count, id_sum)
    VALUES ('queue', tidegate_bucket(v_event_id), v_place, 'dead_lettered', 1, v_event_id);
    IF v_key IS NOT NULL THEN PERFORM tidegate_release(ARRAY[v_key]); END IF;
    RETURN true;
END $$;

-- Says what may not be given to an insert into `event_queue`.
CREATE FUNCTION tidegate_not_yours(p_column text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'event_queue: % cannot be set by an insert', p_column
        USING ERRCODE = 'check_violation', HINT = 'The queue itself keeps id, status, attempts, '
            'updated_at, next_attempt_at, locked_by and locked_until.';
END $$;

-- A rule and not a trigger: it turns the whole statement into one on the table, so that many rows
-- make one posting.
CREATE RULE event_queue_insert AS ON INSERT TO event_queue DO INSTEAD
    INSERT INTO tidegate_event (event_id, type, key, payload, headers, created_at)
    VALUES (coalesce(NEW.event_id, tidegate_new_event_id()),
        CASE WHEN NEW.id IS NOT NULL THEN tidegate_not_yours('id')
            WHEN NEW.status <> 'PENDING' THEN tidegate_not_yours('status')
            WHEN NEW.attempts <> 0 THEN tidegate_not_yours('attempts')
            WHEN NEW.updated_at IS NOT NULL THEN tidegate_not_yours('updated_at')
            WHEN NEW.next_attempt_at IS NOT NULL THEN tidegate_not_yours('next_attempt_at')
            WHEN NEW.locked_by IS NOT NULL THEN tidegate_not_yours('locked_by')
            WHEN NEW.locked_until IS NOT NULL THEN tidegate_not_yours('locked_until')
            ELSE NEW.type END,
        NEW.key, NEW.payload, NEW.headers, coalesce(NEW.created_at, now()))
    RETURNING id, event_id, type, key, payload, headers, 'PENDING'::text, 0, created_at, created_at,
        NULL::timestamptz, NULL::text, NULL::timestamptz;

CREATE VIEW event_log AS
SELECT e.id, e.event_id, e.type, e.key, e.payload, e.headers,
    CASE WHEN l.is_failed THEN 'COMPLETED_WITH_ERRORS' ELSE 'COMPLETED' END AS status,
    coalesce(l.errors, '[]'::jsonb) AS errors, l.attempts, e.created_at, b.finalized_at,
    s.position + l.ordinal AS position
FROM tidegate_log l JOIN tidegate_event e ON e.id = l.id
JOIN tidegate_log_batch b ON b.id = l.batch LEFT JOIN tidegate_sequence s ON s.batch = l.batch;

CREATE VIEW event_handler_state AS
SELECT s.id, s.handler_id, s.result, s.attempts, s.error, s.updated_at FROM tidegate_handler_state s
UNION ALL
SELECT l.id, h.handler_id, 'SUCCESS', l.attempts, NULL, b.finalized_at
FROM tidegate_log_batch b CROSS JOIN LATERAL unnest(b.ids) i(id)
JOIN tidegate_log l ON l.id = i.id AND l.batch = b.id
JOIN tidegate_handler_set t ON t.id = l.handlers
CROSS JOIN LATERAL unnest(string_to_array(t.handlers, ',')) h(handler_id)
WHERE b.finalized_at > (SELECT q.states_cleaned_until FROM tidegate_queue q WHERE q.name = 'queue');
