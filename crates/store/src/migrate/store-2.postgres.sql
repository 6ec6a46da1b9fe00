-- Answers of requests with an `Idempotency-Key`. Times are milliseconds since 1970.
CREATE TABLE tidegate_idempotency (
    scope text NOT NULL,
    key text NOT NULL,
    -- The request, as a hash in the shape of an id.
    fingerprint uuid NOT NULL,
    -- Grows with every request that took the key over.
    token bigint NOT NULL,
    -- Until when the request that has the key may answer; null once it did.
    locked_until bigint,
    status bigint,
    body text,
    expires_at bigint NOT NULL,
    PRIMARY KEY (scope, key)
) WITH (fillfactor = 70);
CREATE INDEX tidegate_idempotency_expires ON tidegate_idempotency (expires_at);
