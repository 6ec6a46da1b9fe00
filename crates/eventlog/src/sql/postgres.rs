//! Statements for PostgreSQL.

use tidegate_core::EventId;
use tidegate_core::books::{Books, Posting};
use tidegate_store::posting;
use tidegate_store::sqlx::types::Uuid;
use tidegate_store::sqlx::{self, PgConnection};

use super::{EventLogStatements, NewRow, kind_number, outcome_number};
use crate::event::PostedEvent;

impl EventLogStatements for PgConnection {
    const KEPT: &'static str = "FOR KEY SHARE OF e";

    async fn next_ids(&mut self, count: usize) -> Result<Vec<i64>, sqlx::Error> {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let sql = "SELECT nextval('tidegate_eventlog_id') FROM generate_series(1, $1::int8)";
        sqlx::query_scalar(sql).bind(count).fetch_all(self).await
    }

    async fn insert(&mut self, rows: &[NewRow<'_>]) -> Result<Vec<i64>, sqlx::Error> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        // A word holds no space, and `array_to_tsvector` takes words as they are.
        let sql =
            "INSERT INTO tidegate_eventlog (id, key, event_id, execution_id, logger, created_at,
                at, kind, outcome, application_id, correlation_id, process_name, target_system,
                originating_system, batch_id, account_id, trace_id, step_sequence, body, words)
            SELECT r.id, r.key, r.event_id, r.execution_id, r.logger, r.created_at, r.at, r.kind,
                r.outcome, r.application_id, r.correlation_id, r.process_name, r.target_system,
                r.originating_system, r.batch_id, r.account_id, r.trace_id, r.step_sequence, r.body,
                array_to_tsvector(string_to_array(r.words, ' '))
            FROM unnest($1::int8[], $2::text[], $3::uuid[], $4::uuid[], $5::int8[], $6::int8[],
                $7::int8[], $8::int2[], $9::int2[], $10::text[], $11::text[], $12::text[],
                $13::text[], $14::text[], $15::text[], $16::text[], $17::text[], $18::int8[],
                $19::text[], $20::text[])
                AS r(id, key, event_id, execution_id, logger, created_at, at, kind, outcome,
                    application_id, correlation_id, process_name, target_system,
                    originating_system, batch_id, account_id, trace_id, step_sequence, body, words)
            ON CONFLICT (key) DO NOTHING RETURNING id";
        let query = sqlx::query_scalar(sql)
            .bind(rows.iter().map(|row| row.id).collect::<Vec<i64>>())
            .bind(texts(rows, |event| &event.key))
            .bind(ids(rows, |row| row.incoming.event.event_id))
            .bind(ids(rows, |row| row.incoming.execution_id))
            .bind(rows.iter().map(|row| row.logger).collect::<Vec<_>>())
            .bind(rows.iter().map(|row| row.created_ms).collect::<Vec<i64>>())
            .bind(values(rows, |event| event.at_us))
            .bind(values(rows, |event| kind_number(event.kind)))
            .bind(values(rows, |event| outcome_number(event.outcome)))
            .bind(texts(rows, |event| &event.application_id))
            .bind(texts(rows, |event| &event.correlation_id))
            .bind(texts(rows, |event| &event.process_name))
            .bind(texts(rows, |event| &event.target_system))
            .bind(texts(rows, |event| &event.originating_system))
            .bind(values(rows, |event| event.batch_id.clone()))
            .bind(values(rows, |event| event.account_id.clone()))
            .bind(values(rows, |event| event.trace_id.clone()))
            .bind(values(rows, |event| event.step_sequence))
            .bind(texts(rows, |event| &event.body))
            .bind(values(rows, |event| event.words.join(" ")));
        query.fetch_all(self).await
    }

    /// They are a column of the row.
    async fn remove_words(&mut self, _ids: &[i64]) -> Result<(), sqlx::Error> {
        Ok(())
    }

    async fn post(&mut self, component: &str, postings: &[Posting]) -> Result<(), sqlx::Error> {
        posting::write_postgres(self, component, postings).await
    }

    async fn books(&mut self, component: &str) -> Result<Books, sqlx::Error> {
        posting::books_postgres(self, component).await
    }

    async fn counts(&mut self, component: &str) -> Result<Books, sqlx::Error> {
        posting::counts_postgres(self, component).await
    }
}

fn texts<'a>(rows: &[NewRow<'a>], of: impl Fn(&'a PostedEvent) -> &'a String) -> Vec<&'a str> {
    let texts = rows.iter().map(|row| of(&row.incoming.event).as_str());
    texts.collect()
}

fn values<'a, T>(rows: &[NewRow<'a>], of: impl Fn(&'a PostedEvent) -> T) -> Vec<T> {
    rows.iter().map(|row| of(&row.incoming.event)).collect()
}

fn ids(rows: &[NewRow<'_>], of: impl Fn(&NewRow<'_>) -> EventId) -> Vec<Uuid> {
    rows.iter()
        .map(|row| Uuid::from_u128(of(row).as_u128()))
        .collect()
}
