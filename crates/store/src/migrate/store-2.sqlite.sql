-- Answers of requests with an `Idempotency-Key`. Times are milliseconds since 1970.
CREATE TABLE tidegate_idempotency (
    scope text NOT NULL,
    key text NOT NULL,
    -- The request, as a hash in the shape of an id.
    fingerprint text NOT NULL,
    -- Grows with every request that took the key over.
    token integer NOT NULL,
    -- Until when the request that has the key may answer; null once it did.
    locked_until integer,
    status integer,
    body text,
    expires_at integer NOT NULL,
    PRIMARY KEY (scope, key)
) WITHOUT ROWID;
CREATE INDEX tidegate_idempotency_expires ON tidegate_idempotency (expires_at);
