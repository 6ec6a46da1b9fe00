//! Settling events that have a row of their own.

use std::collections::BTreeSet;

use sqlx::PgConnection;
use sqlx::types::Uuid;
use tidegate_store::sqlx;

use super::super::super::COMPONENT;
use super::super::super::columns::posting_of;
use super::super::uuid;
use super::{TransitionColumns, claim_of};
use crate::port::Transition;

/// Postings of rows, one by one, because each counts only where its own token still holds.
#[derive(Default)]
pub(super) struct RowPostings {
    ids: Vec<i64>,
    tokens: Vec<i64>,
    buckets: Vec<String>,
    froms: Vec<String>,
    tos: Vec<String>,
    event_ids: Vec<Uuid>,
}

impl RowPostings {
    pub(super) fn of(rows: &[&Transition]) -> Self {
        let mut postings = Self::default();
        for one in rows {
            if let Some((bucket, from, to)) = posting_of(one) {
                let (id, token) = claim_of(one);
                postings.ids.push(id);
                postings.tokens.push(token);
                postings.buckets.push(bucket.to_string());
                postings.froms.push(from.to_string());
                postings.tos.push(to.to_string());
                postings.event_ids.push(uuid(one.claim.event_id));
            }
        }
        postings
    }
}

/// Settles those of the claims that still hold, and gives them; none where the registry is another.
///
/// They are locked in the order of their numbers, as by a renewal beside it: otherwise the two might wait for
/// each other.
///
/// A held row is known by number and token, and everything that is written joins it by both. The
/// row's own token does not matter after that: the lock keeps it.
pub(super) async fn settle_rows(
    connection: &mut PgConnection,
    claims: Vec<(i64, i64)>,
    columns: TransitionColumns,
    postings: RowPostings,
    registry: Option<i64>,
) -> Result<Option<BTreeSet<(i64, i64)>>, sqlx::Error> {
    let (ids, tokens): (Vec<i64>, Vec<i64>) = claims.into_iter().unzip();
    let (is_same, ids, tokens): (Option<bool>, Vec<i64>, Vec<i64>) = sqlx::query_as(
        "WITH locked AS MATERIALIZED (
             SELECT r.id, r.token FROM tidegate_event_row r
             JOIN unnest($1::int8[], $2::int8[]) w(id, token)
                 ON r.id = w.id AND r.token = w.token
             WHERE r.locked_by IS NOT NULL ORDER BY r.id FOR UPDATE OF r),
         known AS MATERIALIZED (
             SELECT CASE WHEN $26::int8 IS NULL THEN true WHEN l.n >= 0
                 THEN tidegate_registry() IS NOT DISTINCT FROM $26 END AS is_same
             FROM (SELECT count(*) AS n FROM locked) l),
         held AS MATERIALIZED (
             SELECT id, token FROM locked WHERE (SELECT is_same FROM known)),
         final AS MATERIALIZED (
             SELECT f.* FROM
                 unnest($3::int8[], $4::int8[], $5::int4[], $6::bool[], $7::text[])
                 f(id, token, handlers, is_failed, errors) JOIN held USING (id, token)),
         gone AS (
             DELETE FROM tidegate_event_row r USING final
             WHERE r.id = final.id RETURNING r.id, r.attempts),
         together AS (
             INSERT INTO tidegate_log_batch (ids)
             SELECT array_agg(id ORDER BY id) FROM gone HAVING count(*) > 0 RETURNING id),
         logged AS (
             INSERT INTO tidegate_log (id, batch, ordinal, attempts, handlers, is_failed, errors)
             SELECT gone.id, together.id, row_number() OVER (ORDER BY gone.id) - 1, gone.attempts,
                 f.handlers, f.is_failed, f.errors::jsonb
             FROM gone JOIN final f ON f.id = gone.id, together),
         moved AS (
             UPDATE tidegate_event_row r SET lane = m.lane, place = m.place, token = r.token + 1,
                 abandoned = 0, is_confirmed = true, locked_by = NULL, updated_at = clock_timestamp(),
                 due_at = CASE WHEN m.after < 0 THEN 'infinity'
                     ELSE clock_timestamp() + m.after * interval '1 millisecond' END
             FROM unnest($8::int8[], $9::int8[], $10::text[], $11::text[], $12::int8[])
                 m(id, token, lane, place, after) JOIN held USING (id, token)
             WHERE r.id = m.id),
         stated AS (
             INSERT INTO tidegate_handler_state AS h (id, handler_id, result, attempts, error)
             SELECT s.id, s.handler_id, s.result, s.attempts, s.error FROM
                 unnest($13::int8[], $14::int8[], $15::text[], $16::text[], $17::int4[], $18::text[])
                 s(id, token, handler_id, result, attempts, error) JOIN held USING (id, token)
             ON CONFLICT (id, handler_id) DO UPDATE SET result = excluded.result,
                 attempts = excluded.attempts, error = excluded.error,
                 updated_at = clock_timestamp()),
         posted AS (
             INSERT INTO tidegate_posting (component, bucket, from_place, to_place, count, id_sum)
             SELECT $25, p.bucket, p.from_place, p.to_place, 1, p.event_id
             FROM unnest($19::int8[], $20::int8[], $21::text[], $22::text[], $23::text[], $24::uuid[])
                 p(id, token, bucket, from_place, to_place, event_id) JOIN held USING (id, token))
         SELECT is_same, ARRAY(SELECT id FROM held ORDER BY id),
             ARRAY(SELECT token FROM held ORDER BY id) FROM known",
    )
    .bind(ids)
    .bind(tokens)
    .bind(columns.final_ids)
    .bind(columns.final_tokens)
    .bind(columns.sets)
    .bind(columns.are_failed)
    .bind(columns.errors)
    .bind(columns.row_ids)
    .bind(columns.row_tokens)
    .bind(columns.lanes)
    .bind(columns.places)
    .bind(columns.afters)
    .bind(columns.state_ids)
    .bind(columns.state_tokens)
    .bind(columns.handlers)
    .bind(columns.results)
    .bind(columns.attempts)
    .bind(columns.state_errors)
    .bind(postings.ids)
    .bind(postings.tokens)
    .bind(postings.buckets)
    .bind(postings.froms)
    .bind(postings.tos)
    .bind(postings.event_ids)
    .bind(COMPONENT)
    .bind(registry)
    .fetch_one(connection)
    .await?;
    let settled = ids.into_iter().zip(tokens);
    Ok((is_same == Some(true)).then(|| settled.collect()))
}
