//! Adding events.

use sqlx::PgConnection;
use tidegate_core::books::{Place, postings};
use tidegate_store::posting::Columns;
use tidegate_store::sqlx;

use super::super::COMPONENT;
use super::uuid;
use crate::event::{NewEvent, headers_text};

/// From so many events on, `COPY` beats a statement with arrays.
pub(super) const COPY_FROM: usize = 2_000;

/// Adds events. From [`COPY_FROM`] of them on it is several statements, and the caller has a transaction
/// around them.
pub(in crate::sql) async fn insert(
    connection: &mut PgConnection,
    events: &[NewEvent],
) -> Result<Vec<i64>, sqlx::Error> {
    if events.len() >= COPY_FROM {
        return copy(connection, events).await;
    }
    insert_at_once(connection, events).await
}

/// One statement, with a transaction around it or without: the events, their posting, and the word to the
/// trigger that it is there.
pub(in crate::sql) async fn insert_at_once(
    connection: &mut PgConnection,
    events: &[NewEvent],
) -> Result<Vec<i64>, sqlx::Error> {
    if events.is_empty() {
        return Ok(Vec::new());
    }
    let columns = posting_columns(events);
    let mut ids: Vec<i64> = sqlx::query_scalar(
        "WITH own AS MATERIALIZED (SELECT set_config('tidegate.posted', 'yes', true)),
         posted AS (
             INSERT INTO tidegate_posting (component, bucket, from_place, to_place, count, id_sum)
             SELECT $6, p.bucket, NULL, 'queued', p.count, p.id_sum
             FROM unnest($7::text[], $8::int8[], $9::uuid[]) p(bucket, count, id_sum))
         INSERT INTO tidegate_event (event_id, type, key, payload, headers)
         SELECT e.event_id, e.type, e.key, e.payload::json, e.headers::jsonb
         FROM own, unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[])
             WITH ORDINALITY e(event_id, type, key, payload, headers, n)
         ORDER BY e.n RETURNING id",
    )
    .bind(events.iter().map(|e| uuid(e.event_id)).collect::<Vec<_>>())
    .bind(
        events
            .iter()
            .map(|e| e.type_name.as_str())
            .collect::<Vec<_>>(),
    )
    .bind(events.iter().map(|e| e.key.as_deref()).collect::<Vec<_>>())
    .bind(
        events
            .iter()
            .map(|e| e.payload.as_str())
            .collect::<Vec<_>>(),
    )
    .bind(
        events
            .iter()
            .map(|e| headers_text(&e.headers))
            .collect::<Vec<_>>(),
    )
    .bind(COMPONENT)
    .bind(columns.buckets)
    .bind(columns.counts)
    .bind(columns.sums)
    .fetch_all(connection)
    .await?;
    // Numbers are given out in the order of the list.
    ids.sort_unstable();
    Ok(ids)
}

fn posting_columns(events: &[NewEvent]) -> Columns {
    let ids = events.iter().map(|event| event.event_id);
    Columns::of(&postings(ids, None, Some(Place::Queued)))
}

/// Many events at once, in the transaction that the caller has begun and ends. Their numbers are taken
/// first, so that they are known. Without a transaction, one would take the numbers and another would
/// bring the events. By then a claim may have given the numbers up as rolled back.
async fn copy(connection: &mut PgConnection, events: &[NewEvent]) -> Result<Vec<i64>, sqlx::Error> {
    let count = i64::try_from(events.len()).unwrap_or(i64::MAX);
    let ids: Vec<i64> = sqlx::query_scalar(
        "SELECT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('tidegate_event_id') END
         FROM generate_series(1, $1::int8)",
    )
    .bind(count)
    .fetch_all(&mut *connection)
    .await?;
    let columns = posting_columns(events);
    sqlx::query(
        "WITH own AS MATERIALIZED (SELECT set_config('tidegate.posted', 'yes', true))
         INSERT INTO tidegate_posting (component, bucket, from_place, to_place, count, id_sum)
         SELECT $1, p.bucket, NULL, 'queued', p.count, p.id_sum
         FROM own, unnest($2::text[], $3::int8[], $4::uuid[]) p(bucket, count, id_sum)",
    )
    .bind(COMPONENT)
    .bind(columns.buckets)
    .bind(columns.counts)
    .bind(columns.sums)
    .execute(&mut *connection)
    .await?;
    let statement = "COPY tidegate_event (id, event_id, type, key, payload, headers) FROM STDIN";
    let mut sink = connection.copy_in_raw(statement).await?;
    let mut text = String::with_capacity(64 * 1024);
    for (id, event) in ids.iter().zip(events) {
        text.push_str(&format!("{id}\t{}\t", event.event_id));
        escape(&mut text, &event.type_name);
        text.push('\t');
        optional(&mut text, event.key.as_deref());
        text.push('\t');
        escape(&mut text, &event.payload);
        text.push('\t');
        optional(&mut text, headers_text(&event.headers).as_deref());
        text.push('\n');
        if text.len() > 60 * 1024 {
            sink.send(text.as_bytes()).await?;
            text.clear();
        }
    }
    sink.send(text.as_bytes()).await?;
    sink.finish().await?;
    Ok(ids)
}

fn optional(text: &mut String, value: Option<&str>) {
    match value {
        Some(value) => escape(text, value),
        None => text.push_str("\\N"),
    }
}

fn escape(text: &mut String, value: &str) {
    for character in value.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\t' => text.push_str("\\t"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            other => text.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_text_is_escaped() {
        let mut text = String::new();
        escape(&mut text, "a\tb\\n\"c\"\nd\r");
        optional(&mut text, None);
        assert_eq!(text, "a\\tb\\\\n\"c\"\\nd\\r\\N");
    }
}
