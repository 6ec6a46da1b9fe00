//! PostgreSQL.

use tidegate_core::EventId;
use tidegate_core::books::{Books, Posting};
use tidegate_store::posting::{self, Columns};
use tidegate_store::sql::{OwnColumns, SqlConnection as _, SqlFuture};
use tidegate_store::sqlx::{self, PgConnection, Row};
use tidegate_store::{Postgres, span_ms};

use super::insert::Inserter;
use super::statements::{Statements, Words};
use super::store::{OutboxConnection, OutboxDatabase, SqlContext, claimed_row};
use crate::port::{BatchSettlement, ClaimedRows, RowClaim, SettledTo};
use crate::{NewOutboxEvent, OutboxOptions};

const RENEW_RELAY: &str = "INSERT INTO tidegate_lease (name, owner, token, until)
    VALUES ({lease} || $1::text, $1::text, 1, clock_timestamp() + $2::int8 * interval '1 millisecond')
    ON CONFLICT (name) DO UPDATE SET until = excluded.until";
const RENEW_BUCKETS: &str = "UPDATE tidegate_lease l
    SET until = clock_timestamp() + $4::int8 * interval '1 millisecond'
    FROM unnest($2::int8[], $3::int8[]) h(bucket, token)
    WHERE l.name = {lease} || h.bucket AND l.token = h.token AND l.owner = $1
    RETURNING h.bucket, l.token";
const COUNT_RELAYS: &str = "SELECT count(*) FROM tidegate_lease
    WHERE starts_with(name, {lease}) AND name = {lease} || owner AND until > clock_timestamp()";
/// In one order, so that two relays cannot wait for each other.
const ACQUIRE: &str = "INSERT INTO tidegate_lease AS l (name, owner, token, until)
    SELECT {lease} || f.bucket, $1::text, 1, clock_timestamp() + $3::int8 * interval '1 millisecond'
    FROM (SELECT b.bucket FROM generate_series(0, {buckets} - 1) b(bucket)
          LEFT JOIN tidegate_lease o ON o.name = {lease} || b.bucket
          WHERE o.name IS NULL OR o.until < clock_timestamp() ORDER BY b.bucket LIMIT $2::int8) f
    ON CONFLICT (name) DO UPDATE
    SET owner = excluded.owner, token = l.token + 1, until = excluded.until
    WHERE l.until < clock_timestamp()
    RETURNING substr(name, length({lease}) + 1)::int8, token";
const RELEASE: &str =
    "UPDATE tidegate_lease l SET until = clock_timestamp() - interval '1 millisecond'
    FROM unnest($2::int8[], $3::int8[]) h(bucket, token)
    WHERE l.name = {lease} || h.bucket AND l.token = h.token AND l.owner = $1";
/// The next rows, and how far the table goes in the same snapshot.
const CLAIM: &str = "WITH asked AS MATERIALIZED (
        SELECT a.bucket, a.after
        FROM unnest($1::int8[], $2::int8[], $3::int8[]) a(bucket, token, after)
        JOIN tidegate_lease l ON l.name = {lease} || a.bucket AND l.token = a.token
            AND l.until > clock_timestamp()),
    held AS MATERIALIZED (SELECT count(*) = cardinality($1::int8[]) AS ok FROM asked),
    next AS MATERIALIZED (
        SELECT e.id, e.bucket, e.event_id, e.aggregate_id, e.aggregate_type, e.type, e.topic, e.payload,
            e.headers::text AS headers, e.attempts,
            (extract(epoch FROM e.created_at) * 1000)::int8 AS created_ms
        FROM {table}_claimable((SELECT array_agg(bucket ORDER BY bucket) FROM asked),
            (SELECT array_agg(after ORDER BY bucket) FROM asked), $4, $5, $6) e
        WHERE (SELECT ok FROM held)),
    noted AS (
        INSERT INTO {table}_claim (lane, locked_by, locked_at, ids)
        SELECT $7, $8, clock_timestamp(), array_agg(n.id) FROM next n HAVING count(*) > 0
        ON CONFLICT (lane) DO UPDATE
        SET locked_by = excluded.locked_by, locked_at = excluded.locked_at, ids = excluded.ids)
    SELECT n.*, h.ok, coalesce((SELECT max(id) FROM {table}), 0)
    FROM held h LEFT JOIN next n ON true ORDER BY n.id";
/// Whether the rows are still as they were claimed is asked in a form that no partial index fits: the planner
/// believes those to be empty and would read them once per row. A division by zero takes everything back
/// where a row is not. A row that is sent says where to: the topic of the relay may be another one later.
const SETTLE_BATCH: &str = "WITH held AS MATERIALIZED (
        SELECT count(*) = cardinality($1::int8[]) AS ok FROM (
            SELECT 1 FROM unnest($1::int8[], $2::int8[]) h(bucket, token)
            JOIN tidegate_lease l ON l.name = {lease} || h.bucket AND l.token = h.token
            FOR SHARE OF l) f),
    changed AS (
        UPDATE {table} e SET status = s.status, sent = (s.status = 'SENT'), attempts = s.attempts,
            sent_at = CASE WHEN s.status = 'SENT' THEN clock_timestamp() END,
            locked_by = $3, locked_at = clock_timestamp(),
            last_error = coalesce(s.error, e.last_error),
            last_error_at = CASE WHEN s.error IS NULL THEN e.last_error_at ELSE clock_timestamp() END,
            next_attempt_at = clock_timestamp() + s.wait * interval '1 millisecond',
            topic = CASE WHEN s.status = 'SENT' THEN coalesce(e.topic, $17) ELSE e.topic END
        FROM unnest($4::int8[], $5::int4[], $6::text[], $7::int4[], $8::text[], $9::int8[])
            s(id, before, status, attempts, error, wait)
        WHERE e.id = s.id AND e.status || '' = 'PENDING' AND e.attempts = s.before
          AND (SELECT ok FROM held)
        RETURNING 1),
    posted AS (
        INSERT INTO tidegate_posting (component, bucket, from_place, to_place, count, id_sum)
        SELECT $10, p.* FROM unnest($11::text[], $12::text[], $13::text[], $14::int8[], $15::uuid[]) p
        WHERE (SELECT ok FROM held)),
    ended AS (UPDATE {table}_claim SET ids = '{}' WHERE lane = $16)
    SELECT h.ok, 1 / (CASE WHEN h.ok AND (SELECT count(*) FROM changed) <> cardinality($4::int8[])
        THEN 0 ELSE 1 END) FROM held h";
const SETTLE_ROW: &str =
    "UPDATE {table} SET status = $3::text, sent = ($3::text = 'SENT'), attempts = $4,
        sent_at = CASE WHEN $3::text = 'SENT' THEN clock_timestamp() END,
        locked_by = $5, locked_at = clock_timestamp(),
        last_error = coalesce($6::text, last_error),
        last_error_at = CASE WHEN $6::text IS NULL THEN last_error_at ELSE clock_timestamp() END,
        next_attempt_at = clock_timestamp() + $7::int8 * interval '1 millisecond',
        topic = CASE WHEN $3::text = 'SENT' THEN coalesce(topic, $8::text) ELSE topic END
    WHERE id = $1 AND attempts = $2 AND status = 'PENDING'";
const COLUMNS: &str = "id, event_id, aggregate_type, aggregate_id, type, topic, {payload},
    coalesce(octet_length(payload), 0)::int8, headers::text, (extract(epoch FROM created_at) * 1000)::int8, status, attempts, locked_by,
    (extract(epoch FROM locked_at) * 1000)::int8, (extract(epoch FROM sent_at) * 1000)::int8,
    (extract(epoch FROM last_error_at) * 1000)::int8, (extract(epoch FROM next_attempt_at) * 1000)::int8, last_error";
/// Rows that are purged come back with their place, for the postings. No row ends before it is made, so that the
/// index of `created_at` leads to the old ones. An order would lead the planner to the primary key, and so
/// through the whole table. The database knows no times long after the year 9999.
const PURGE: &str = "DELETE FROM {table} WHERE id IN (
        SELECT id FROM {table} WHERE status = $1::text
          AND created_at < to_timestamp(least($2::int8, 253402300799000)::float8 / 1000)
          AND (extract(epoch FROM coalesce(sent_at, last_error_at, created_at)) * 1000)::int8 < $2::int8
        LIMIT $3::int8 FOR UPDATE SKIP LOCKED)
    RETURNING event_id, status, attempts";
const CLEAN: &str = "DELETE FROM {table} WHERE id IN (
        SELECT id FROM {table} WHERE status = 'SENT'
          AND created_at < now() - $1::int8 * interval '1 millisecond'
          AND sent_at < clock_timestamp() - $1::int8 * interval '1 millisecond'
        LIMIT $2::int8 FOR UPDATE SKIP LOCKED)
    RETURNING event_id, status, attempts";

impl OutboxDatabase for Postgres {
    fn now_ms(&self) -> Option<i64> {
        None
    }

    fn statements(options: &OutboxOptions) -> Statements {
        let words = Words::of(options);
        let fill = |text: &str| words.fill(text);
        let (in_list, in_show) = (
            COLUMNS.replace("{payload}", "NULL::text"),
            COLUMNS.replace("{payload}", "payload"),
        );
        let live = "FROM {table}_claim k JOIN tidegate_lease l ON l.name = {lease} || k.locked_by
            AND l.until > clock_timestamp() CROSS JOIN LATERAL unnest(k.ids) i(id)
            JOIN {table} e ON e.id = i.id AND e.status = 'PENDING'";
        Statements {
            renew_relay: fill(RENEW_RELAY),
            renew_buckets: fill(RENEW_BUCKETS),
            count_relays: fill(COUNT_RELAYS),
            acquire: fill(ACQUIRE),
            release: fill(RELEASE),
            leave: [
                fill("DELETE FROM tidegate_lease WHERE name = {lease} || $1::text"),
                fill("DELETE FROM {table}_claim WHERE locked_by = $1"),
            ],
            claim: fill(CLAIM),
            note_claim: fill(""),
            forget_claim: fill("UPDATE {table}_claim SET ids = '{}' WHERE lane = $1"),
            held: fill(
                "SELECT l.token FROM tidegate_lease l
                 JOIN unnest($1::int8[], $2::int8[]) h(bucket, token)
                   ON l.name = {lease} || h.bucket AND l.token = h.token FOR SHARE OF l",
            ),
            settle_batch: fill(SETTLE_BATCH),
            settle_row: fill(SETTLE_ROW),
            list: fill(&format!(
                "SELECT {in_list} FROM {{table}}_status WHERE id > $1
                   AND ($2::text = '' AND status <> 'SENT' OR status = $2::text)
                   AND ($3::text = '' OR aggregate_id = $3::text) ORDER BY id LIMIT $4"
            )),
            show: fill(&format!(
                "SELECT {in_show} FROM {{table}}_status WHERE id = $1 OR event_id = $2"
            )),
            retry: fill(
                // It is due now. Without a time, rows of its key behind a lane's cursor would overtake it.
                "UPDATE {table} e SET status = 'PENDING', attempts = 0, next_attempt_at = clock_timestamp()
                 FROM (SELECT id, event_id, status, attempts FROM {table}
                       WHERE (status = 'DEAD' OR status = 'PENDING' AND next_attempt_at > clock_timestamp())
                         AND (id = $1 OR event_id = $2 OR $3::bool) FOR UPDATE) o
                 WHERE e.id = o.id RETURNING o.event_id, o.status, o.attempts",
            ),
            retry_row: fill(""),
            purge: fill(PURGE),
            clean: fill(CLEAN),
            forget_relays: [
                fill(
                    "DELETE FROM tidegate_lease WHERE starts_with(name, {lease}) AND name = {lease} || owner
                       AND until < clock_timestamp() - interval '1 hour'",
                ),
                fill(
                    "DELETE FROM {table}_claim k WHERE locked_at < clock_timestamp() - interval '1 hour'
                       AND NOT EXISTS (SELECT 1 FROM tidegate_lease l WHERE l.name = {lease} || k.locked_by)",
                ),
            ],
            waiting: fill(
                "SELECT count(*), count(*) FILTER (WHERE attempts > 0),
                     (extract(epoch FROM clock_timestamp() - min(created_at)) * 1000)::int8
                 FROM {table} WHERE status = 'PENDING'",
            ),
            dead: fill("SELECT count(*) FROM {table} WHERE status = 'DEAD'"),
            claimed: fill(&format!(
                "SELECT count(DISTINCT e.id) FILTER (WHERE e.attempts = 0),
                     count(DISTINCT e.id) FILTER (WHERE e.attempts > 0) {live}"
            )),
            recount: fill(
                "SELECT id, event_id, status, attempts, aggregate_id, topic,
                     (extract(epoch FROM coalesce(sent_at, last_error_at)) * 1000)::int8
                 FROM {table} WHERE id > $1 ORDER BY id LIMIT $2",
            ),
        }
    }
}

impl OutboxConnection for PgConnection {
    fn insert<'c>(
        &'c mut self,
        inserter: &'c Inserter,
        events: &'c [NewOutboxEvent],
    ) -> SqlFuture<'c, Vec<EventId>> {
        Box::pin(inserter.on_postgres(self, events))
    }

    fn books<'c>(&'c mut self, component: &'c str) -> SqlFuture<'c, Books> {
        Box::pin(posting::books_postgres(self, component))
    }

    fn counts<'c>(&'c mut self, component: &'c str) -> SqlFuture<'c, Books> {
        Box::pin(posting::counts_postgres(self, component))
    }

    fn post<'c>(&'c mut self, component: &'c str, postings: &'c [Posting]) -> SqlFuture<'c, ()> {
        Box::pin(posting::write_postgres(self, component, postings))
    }

    /// The planner does not know the time of a prepared statement, and believes a third of all rows to be old.
    fn prefer_indexes(&mut self) -> SqlFuture<'_, ()> {
        Box::pin(async {
            self.execute_raw("SET LOCAL enable_seqscan = off").await?;
            Ok(())
        })
    }

    fn claim<'c>(
        &'c mut self,
        text: &'c Statements,
        claim: &'c RowClaim,
        _: Option<i64>,
    ) -> SqlFuture<'c, ClaimedRows> {
        Box::pin(async move {
            let of = |read: fn(&crate::port::BucketCursor) -> i64| {
                claim.buckets.iter().map(read).collect::<Vec<i64>>()
            };
            let (limit, per_bucket) = (i64::from(claim.limit), i64::from(claim.per_bucket));
            let rows = sqlx::query(text.claim.sql())
                .bind(of(|one| i64::from(one.lease.bucket)))
                .bind(of(|one| one.lease.token))
                .bind(of(|one| one.after))
                .bind(claim.up_to.unwrap_or(i64::MAX))
                .bind(per_bucket)
                .bind(limit)
                .bind(format!("{}/{}", claim.worker, claim.lane))
                .bind(&claim.worker)
                .fetch_all(self)
                .await?;
            let mut claimed = ClaimedRows::default();
            for row in &rows {
                claimed.is_held = row.try_get(11)?;
                claimed.up_to = row.try_get(12)?;
                if row.try_get::<Option<i64>, _>(0)?.is_some() {
                    claimed.rows.push(claimed_row(row)?);
                }
            }
            let count = |bucket: u32| {
                claimed
                    .rows
                    .iter()
                    .filter(|row| row.bucket == bucket)
                    .count()
            };
            let is_cut = |rows: usize, limit: i64| i64::try_from(rows).is_ok_and(|n| n >= limit);
            claimed.has_more = is_cut(claimed.rows.len(), limit)
                || claim
                    .buckets
                    .iter()
                    .any(|one| is_cut(count(one.lease.bucket), per_bucket));
            Ok(claimed)
        })
    }

    fn settle_at_once<'c>(
        &'c mut self,
        context: &'c SqlContext,
        settlement: &'c BatchSettlement,
        postings: &'c [Posting],
    ) -> SqlFuture<'c, Option<bool>> {
        Box::pin(async move {
            let (leases, rows) = (&settlement.leases, &settlement.rows);
            let small = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
            let mut errors: Vec<Option<&str>> = Vec::with_capacity(rows.len());
            let mut waits: Vec<Option<i64>> = Vec::with_capacity(rows.len());
            let mut words: Vec<&str> = Vec::with_capacity(rows.len());
            for row in rows {
                let (word, error, wait) = match &row.to {
                    SettledTo::Sent => ("SENT", None, None),
                    SettledTo::Retry { wait, error } => {
                        ("PENDING", Some(error.as_str()), Some(span_ms(*wait)))
                    }
                    SettledTo::Dead { error } => ("DEAD", Some(error.as_str()), None),
                };
                words.push(word);
                errors.push(error);
                waits.push(wait);
            }
            let posted = Columns::of(postings);
            let row = sqlx::query(context.text.settle_batch.sql())
                .bind(
                    leases
                        .iter()
                        .map(|l| i64::from(l.bucket))
                        .collect::<Vec<_>>(),
                )
                .bind(leases.iter().map(|l| l.token).collect::<Vec<_>>())
                .bind(&settlement.worker)
                .bind(rows.iter().map(|row| row.id).collect::<Vec<_>>())
                .bind(
                    rows.iter()
                        .map(|row| small(row.attempts_before))
                        .collect::<Vec<_>>(),
                )
                .bind(words)
                .bind(
                    rows.iter()
                        .map(|row| small(row.attempts()))
                        .collect::<Vec<_>>(),
                )
                .bind(errors)
                .bind(waits)
                .bind(&*context.component)
                .bind(posted.buckets)
                .bind(posted.froms)
                .bind(posted.tos)
                .bind(posted.counts)
                .bind(posted.sums)
                .bind(format!("{}/{}", settlement.worker, settlement.lane))
                .bind(context.topic.as_deref())
                .fetch_one(self)
                .await?;
            OwnColumns::get(&row, 0).map(Some)
        })
    }
}
