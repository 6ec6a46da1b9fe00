-- Rights to something for a time; the token grows with every new owner. Times are milliseconds.
CREATE TABLE tidegate_lease (
    name text PRIMARY KEY,
    owner text NOT NULL,
    token integer NOT NULL,
    until integer NOT NULL
) WITHOUT ROWID;

-- The books: how many events moved from where to where, and the sum of their ids modulo 2^128,
-- which has the shape of an id. Rows are added with what they describe and summed up later.
CREATE TABLE tidegate_posting (
    component text NOT NULL,
    bucket text NOT NULL,
    from_place text,
    to_place text,
    count integer NOT NULL,
    id_sum text NOT NULL
);
