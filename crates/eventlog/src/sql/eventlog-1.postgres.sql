-- Events, one row for each key. `at` is microseconds since 1970, `created_at` milliseconds.
-- `kind` and `outcome` are numbers, which the program knows.
CREATE SEQUENCE tidegate_eventlog_id AS bigint;
CREATE TABLE tidegate_eventlog (
    id bigint PRIMARY KEY,
    -- The idempotency key, mostly the event id.
    key text NOT NULL UNIQUE,
    event_id uuid NOT NULL,
    execution_id uuid NOT NULL,
    -- The logger that sent it; none for events of the API's own.
    logger bigint,
    created_at bigint NOT NULL,
    at bigint NOT NULL,
    kind smallint NOT NULL,
    outcome smallint NOT NULL,
    application_id text NOT NULL,
    correlation_id text NOT NULL,
    process_name text NOT NULL,
    target_system text NOT NULL,
    originating_system text NOT NULL,
    batch_id text,
    account_id text,
    trace_id text,
    step_sequence bigint,
    -- The event as it was posted, without the properties of the transport. Not `json`: its bytes stay.
    body text NOT NULL,
    -- The words of `details`, which come split and folded.
    words tsvector NOT NULL
);
ALTER SEQUENCE tidegate_eventlog_id OWNED BY tidegate_eventlog.id;
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
CREATE INDEX tidegate_eventlog_by_words ON tidegate_eventlog USING gin (words);

-- Ids that are not the key of their event: of events with a key of their own, of repeats that came with
-- another id, and of repeats by another logger (0 for none). A repeat counts in the books of its logger.
CREATE TABLE tidegate_eventlog_alias (
    event_id uuid NOT NULL,
    event bigint NOT NULL,
    logger bigint NOT NULL,
    is_repeat boolean NOT NULL,
    PRIMARY KEY (event_id, event, logger)
);
CREATE INDEX tidegate_eventlog_alias_by_event ON tidegate_eventlog_alias (event);

-- The spill directories that events came through.
CREATE TABLE tidegate_eventlog_logger (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    first_seen_at bigint NOT NULL
);

CREATE TABLE tidegate_correlation_link (
    correlation_id text PRIMARY KEY,
    account_id text NOT NULL,
    application_id text,
    customer_id text,
    card_number_last4 text,
    -- Whether retention keeps the events of the correlation.
    retain boolean NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL
);
CREATE INDEX tidegate_correlation_link_by_account ON tidegate_correlation_link (account_id);

CREATE TABLE tidegate_process (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    process_name text NOT NULL UNIQUE,
    display_name text NOT NULL,
    description text NOT NULL,
    owning_team text NOT NULL,
    expected_steps bigint,
    sla_ms bigint,
    is_active boolean NOT NULL,
    -- Whether retention keeps the events of the process.
    retain boolean NOT NULL,
    created_at bigint NOT NULL
);
