-- Events, one row for each key. `at` is microseconds since 1970, `created_at` milliseconds; ids are text.
-- `kind` and `outcome` are numbers, which the program knows.
CREATE TABLE tidegate_eventlog (
    id integer PRIMARY KEY AUTOINCREMENT,
    -- The idempotency key, mostly the event id.
    key text NOT NULL UNIQUE,
    event_id text NOT NULL,
    execution_id text NOT NULL,
    -- The logger that sent it; none for events of the API's own.
    logger integer,
    created_at integer NOT NULL,
    at integer NOT NULL,
    kind integer NOT NULL,
    outcome integer NOT NULL,
    application_id text NOT NULL,
    correlation_id text NOT NULL,
    process_name text NOT NULL,
    target_system text NOT NULL,
    originating_system text NOT NULL,
    batch_id text,
    account_id text,
    trace_id text,
    step_sequence integer,
    -- The event as it was posted, without the properties of the transport.
    body text NOT NULL
);
CREATE INDEX tidegate_eventlog_by_correlation ON tidegate_eventlog (correlation_id, at, id);
CREATE INDEX tidegate_eventlog_by_process ON tidegate_eventlog (process_name, at, id);
CREATE INDEX tidegate_eventlog_by_account ON tidegate_eventlog (account_id, at, id)
    WHERE account_id IS NOT NULL;
-- The list of traces reads the index alone.
CREATE INDEX tidegate_eventlog_by_trace ON tidegate_eventlog (trace_id, at, id, kind, outcome)
    WHERE trace_id IS NOT NULL;
CREATE INDEX tidegate_eventlog_by_batch ON tidegate_eventlog (batch_id, id)
    WHERE batch_id IS NOT NULL;
CREATE INDEX tidegate_eventlog_by_time ON tidegate_eventlog (at, trace_id);

-- The words of `details`. They come split and folded; this tokenizer parts them at spaces alone, because
-- all other characters in them are letters and digits.
CREATE VIRTUAL TABLE tidegate_eventlog_words USING fts5 (
    words, content = '', contentless_delete = 1, detail = none, prefix = '3', tokenize = 'ascii'
);

-- Ids that are not the key of their event: of events with a key of their own, of repeats that came with
-- another id, and of repeats by another logger (0 for none). A repeat counts in the books of its logger.
CREATE TABLE tidegate_eventlog_alias (
    event_id text NOT NULL,
    event integer NOT NULL,
    logger integer NOT NULL,
    is_repeat integer NOT NULL,
    PRIMARY KEY (event_id, event, logger)
) WITHOUT ROWID;
CREATE INDEX tidegate_eventlog_alias_by_event ON tidegate_eventlog_alias (event);

-- The spill directories that events came through.
CREATE TABLE tidegate_eventlog_logger (
    id integer PRIMARY KEY,
    name text NOT NULL UNIQUE,
    first_seen_at integer NOT NULL
);

CREATE TABLE tidegate_correlation_link (
    correlation_id text PRIMARY KEY,
    account_id text NOT NULL,
    application_id text,
    customer_id text,
    card_number_last4 text,
    -- Whether retention keeps the events of the correlation.
    retain integer NOT NULL,
    created_at integer NOT NULL,
    updated_at integer NOT NULL
) WITHOUT ROWID;
CREATE INDEX tidegate_correlation_link_by_account ON tidegate_correlation_link (account_id);

CREATE TABLE tidegate_process (
    id integer PRIMARY KEY AUTOINCREMENT,
    process_name text NOT NULL UNIQUE,
    display_name text NOT NULL,
    description text NOT NULL,
    owning_team text NOT NULL,
    expected_steps integer,
    sla_ms integer,
    is_active integer NOT NULL,
    -- Whether retention keeps the events of the process.
    retain integer NOT NULL,
    created_at integer NOT NULL
);
