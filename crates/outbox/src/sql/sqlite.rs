//! SQLite.

use tidegate_core::EventId;
use tidegate_core::books::{Books, Posting};
use tidegate_store::Sqlite;
use tidegate_store::posting;
use tidegate_store::sql::{SqlConnection, SqlFuture, SqlList};
use tidegate_store::sqlx::SqliteConnection;

use super::insert::Inserter;
use super::statements::{Statements, Words};
use super::store::{OutboxConnection, OutboxDatabase, SqlContext, claimed_row, lists};
use crate::port::{BatchSettlement, BucketLease, ClaimedRows, RowClaim};
use crate::{NewOutboxEvent, OutboxOptions};

const PAIRS: &str = "(SELECT b.value AS bucket, t.value AS token FROM json_each($2) b
    JOIN json_each($3) t ON t.key = b.key)";
const ACQUIRE: &str = "WITH RECURSIVE number(bucket) AS (
        SELECT 0 UNION ALL SELECT bucket + 1 FROM number WHERE bucket + 1 < {buckets})
    INSERT INTO tidegate_lease AS l (name, owner, token, until)
    SELECT {lease} || b.bucket, $1, 1, $4 + $3 FROM number b
    LEFT JOIN tidegate_lease o ON o.name = {lease} || b.bucket
    WHERE o.name IS NULL OR o.until < $4 ORDER BY b.bucket LIMIT $2
    ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, token = l.token + 1, until = excluded.until
    RETURNING CAST(substr(name, length({lease}) + 1) AS integer), token";
/// There is one writer, so no row becomes visible below one that is; there is nothing to pass over.
const CLAIM: &str =
    "SELECT e.id, e.bucket, e.event_id, e.aggregate_id, e.aggregate_type, e.type, e.topic,
        e.payload, e.headers, e.attempts, e.created_at
    FROM {table} e INDEXED BY {table}_sent
    WHERE e.status = 'PENDING' AND e.bucket IN (SELECT value FROM json_each($1))
      AND NOT EXISTS (
        SELECT 1 FROM {table} w
        WHERE w.status = 'PENDING' AND w.next_attempt_at IS NOT NULL
          AND w.aggregate_id = e.aggregate_id AND w.id <= e.id AND w.next_attempt_at > $3)
    ORDER BY e.id LIMIT $2";
const HELD: &str =
    "SELECT l.token FROM (SELECT b.value AS bucket, t.value AS token FROM json_each($1) b
        JOIN json_each($2) t ON t.key = b.key) h
    JOIN tidegate_lease l ON l.name = {lease} || h.bucket AND l.token = h.token";
const SETTLE_ROW: &str = "UPDATE {table} SET status = $3, sent = ($3 = 'SENT'), attempts = $4,
        sent_at = CASE WHEN $3 = 'SENT' THEN $9 END, locked_by = $5, locked_at = $9,
        last_error = coalesce($6, last_error),
        last_error_at = CASE WHEN $6 IS NULL THEN last_error_at ELSE $9 END,
        next_attempt_at = $9 + $7, topic = CASE WHEN $3 = 'SENT' THEN coalesce(topic, $8) ELSE topic END
    WHERE id = $1 AND attempts = $2 AND status = 'PENDING'";
const COLUMNS: &str = "id, event_id, aggregate_type, aggregate_id, type, topic, {payload},
    coalesce(length(CAST(payload AS blob)), 0), headers, created_at, status, attempts, locked_by, locked_at,
    sent_at, last_error_at, next_attempt_at, last_error";
const CLEAN: &str = "DELETE FROM {table} WHERE id IN (
        SELECT id FROM {table} INDEXED BY {table}_created_at
        WHERE created_at < $3 - $1 AND status = 'SENT' AND sent_at < $3 - $1 ORDER BY created_at LIMIT $2)
    RETURNING event_id, status, attempts";

impl OutboxDatabase for Sqlite {
    fn now_ms(&self) -> Option<i64> {
        Some(Sqlite::now_ms(self))
    }

    fn statements(options: &OutboxOptions) -> Statements {
        let words = Words::of(options);
        let fill = |text: &str| words.fill(text);
        let (in_list, in_show) = (
            COLUMNS.replace("{payload}", "NULL"),
            COLUMNS.replace("{payload}", "payload"),
        );
        let live = |last: &str| {
            format!(
                "FROM {{table}}_claim k JOIN tidegate_lease l ON l.name = {{lease}} || k.locked_by
                   AND l.until > {last}, json_each(k.ids) i
                 JOIN {{table}} e ON e.id = i.value AND e.status = 'PENDING'"
            )
        };
        Statements {
            renew_relay: fill(
                "INSERT INTO tidegate_lease (name, owner, token, until) VALUES ({lease} || $1, $1, 1, $3 + $2)
                 ON CONFLICT (name) DO UPDATE SET until = excluded.until",
            ),
            renew_buckets: fill(&format!(
                "UPDATE tidegate_lease SET until = $5 + $4 WHERE owner = $1 AND EXISTS (
                     SELECT 1 FROM {PAIRS} h WHERE tidegate_lease.name = {{lease}} || h.bucket
                       AND tidegate_lease.token = h.token)
                 RETURNING CAST(substr(name, length({{lease}}) + 1) AS integer), token"
            )),
            count_relays: fill(
                "SELECT count(*) FROM tidegate_lease WHERE name = {lease} || owner AND until > $1",
            ),
            acquire: fill(ACQUIRE),
            release: fill(&format!(
                "UPDATE tidegate_lease SET until = $4 - 1 WHERE owner = $1 AND EXISTS (
                     SELECT 1 FROM {PAIRS} h WHERE tidegate_lease.name = {{lease}} || h.bucket
                       AND tidegate_lease.token = h.token)"
            )),
            leave: [
                fill("DELETE FROM tidegate_lease WHERE name = {lease} || $1"),
                fill("DELETE FROM {table}_claim WHERE locked_by = $1"),
            ],
            claim: fill(CLAIM),
            note_claim: fill(
                "INSERT INTO {table}_claim (lane, locked_by, locked_at, ids) VALUES ($1, $2, $4, $3)
                 ON CONFLICT (lane) DO UPDATE SET locked_by = excluded.locked_by,
                     locked_at = excluded.locked_at, ids = excluded.ids",
            ),
            forget_claim: fill("UPDATE {table}_claim SET ids = '[]' WHERE lane = $1"),
            held: fill(HELD),
            settle_batch: fill(""),
            settle_row: fill(SETTLE_ROW),
            list: fill(&format!(
                "SELECT {in_list} FROM {{table}}_status WHERE id > $1
                   AND ($2 = '' AND status <> 'SENT' OR status = $2)
                   AND ($3 = '' OR aggregate_id = $3) ORDER BY id LIMIT $4"
            )),
            show: fill(&format!(
                "SELECT {in_show} FROM {{table}}_status WHERE id = $1 OR event_id = $2"
            )),
            retry: fill(
                "SELECT event_id, status, attempts FROM {table}
                 WHERE (status = 'DEAD' OR status = 'PENDING' AND next_attempt_at > $4)
                   AND (id = $1 OR event_id = $2 OR $3)",
            ),
            retry_row: fill(
                "UPDATE {table} SET status = 'PENDING', attempts = 0, next_attempt_at = NULL WHERE event_id = $1",
            ),
            purge: fill(
                "DELETE FROM {table} WHERE id IN (
                     SELECT id FROM {table} INDEXED BY {table}_created_at
                     WHERE created_at < $2 AND status = $1
                       AND coalesce(sent_at, last_error_at, created_at) < $2 ORDER BY created_at LIMIT $3)
                 RETURNING event_id, status, attempts",
            ),
            clean: fill(CLEAN),
            forget_relays: [
                fill(
                    "DELETE FROM tidegate_lease WHERE name = {lease} || owner AND until < $1 - 3600000",
                ),
                fill(
                    "DELETE FROM {table}_claim WHERE locked_at < $1 - 3600000 AND NOT EXISTS (
                         SELECT 1 FROM tidegate_lease l WHERE l.name = {lease} || locked_by)",
                ),
            ],
            waiting: fill(
                "SELECT count(*), count(next_attempt_at), $1 - min(created_at)
                 FROM {table} WHERE status = 'PENDING'",
            ),
            dead: fill("SELECT count(*) FROM {table} WHERE status = 'DEAD'"),
            claimed: fill(&format!(
                "SELECT count(DISTINCT CASE WHEN e.attempts = 0 THEN e.id END),
                     count(DISTINCT CASE WHEN e.attempts > 0 THEN e.id END) {}",
                live("$1")
            )),
            recount: fill(
                "SELECT id, event_id, status, attempts, aggregate_id, topic, coalesce(sent_at, last_error_at)
                 FROM {table} WHERE id > $1 ORDER BY id LIMIT $2",
            ),
        }
    }
}

impl OutboxConnection for SqliteConnection {
    fn insert<'c>(
        &'c mut self,
        inserter: &'c Inserter,
        events: &'c [NewOutboxEvent],
    ) -> SqlFuture<'c, Vec<EventId>> {
        Box::pin(inserter.on_sqlite(self, events))
    }

    fn books<'c>(&'c mut self, component: &'c str) -> SqlFuture<'c, Books> {
        Box::pin(posting::books_sqlite(self, component))
    }

    fn counts<'c>(&'c mut self, component: &'c str) -> SqlFuture<'c, Books> {
        Box::pin(posting::counts_sqlite(self, component))
    }

    fn post<'c>(&'c mut self, component: &'c str, postings: &'c [Posting]) -> SqlFuture<'c, ()> {
        Box::pin(posting::write_sqlite(self, component, postings))
    }

    fn claim<'c>(
        &'c mut self,
        text: &'c Statements,
        claim: &'c RowClaim,
        now: Option<i64>,
    ) -> SqlFuture<'c, ClaimedRows> {
        Box::pin(async move {
            let leases: Vec<BucketLease> = claim.buckets.iter().map(|one| one.lease).collect();
            let (buckets, tokens) = lists(&leases);
            let held: Vec<i64> = self
                .fetch_all(text.held.sql(), &[&SqlList(&buckets), &SqlList(&tokens)])
                .await?;
            let mut claimed = ClaimedRows {
                is_held: held.len() == leases.len(),
                up_to: i64::MAX,
                ..ClaimedRows::default()
            };
            if claimed.is_held {
                let (limit, now) = (i64::from(claim.limit), now.unwrap_or_default());
                let values: [&dyn tidegate_store::sql::SqlValue; 3] =
                    [&SqlList(&buckets), &limit, &now];
                for row in &self.rows(text.claim.sql(), &values).await? {
                    claimed.rows.push(claimed_row(row)?);
                }
                claimed.has_more = i64::try_from(claimed.rows.len()).is_ok_and(|n| n >= limit);
            }
            Ok(claimed)
        })
    }

    /// Statements are calls of a function here, so one for many rows would save nothing.
    fn settle_at_once<'c>(
        &'c mut self,
        _: &'c SqlContext,
        _: &'c BatchSettlement,
        _: &'c [Posting],
    ) -> SqlFuture<'c, Option<bool>> {
        Box::pin(async { Ok(None) })
    }
}
