-- Rights to something for a time; the token grows with every new owner.
CREATE TABLE tidegate_lease (
    name text PRIMARY KEY,
    owner text NOT NULL,
    token bigint NOT NULL,
    until timestamptz NOT NULL
) WITH (fillfactor = 70);

-- The books: how many events moved from where to where, and the sum of their ids modulo 2^128,
-- which has the shape of an id. Rows are added with what they describe and summed up later.
CREATE TABLE tidegate_posting (
    component text NOT NULL,
    bucket text NOT NULL,
    from_place text,
    to_place text,
    count bigint NOT NULL,
    id_sum uuid NOT NULL
);
