//! Statements for SQLite.

use tidegate_core::books::{Books, Posting};
use tidegate_store::posting;
use tidegate_store::sql::{SqlConnection, SqlList};
use tidegate_store::sqlx::{self, QueryBuilder, SqliteConnection};

use super::{EventLogStatements, NewRow, kind_number, outcome_number};

/// Rows of one statement, the most first. Each statement is a way to the thread of the database and back, and
/// takes about 32,000 values. There are few sizes, because a statement of each is kept.
const ROWS: [usize; 4] = [500, 50, 5, 1];

impl EventLogStatements for SqliteConnection {
    /// There is one writer.
    const KEPT: &'static str = "";

    /// There is one writer, so the numbers behind the last one are free until the transaction ends.
    async fn next_ids(&mut self, count: usize) -> Result<Vec<i64>, sqlx::Error> {
        let sql =
            "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'tidegate_eventlog'";
        let last: i64 = self.fetch_one(sql, &[]).await?;
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        Ok((last + 1..=last + count).collect())
    }

    async fn insert(&mut self, rows: &[NewRow<'_>]) -> Result<Vec<i64>, sqlx::Error> {
        // The index of words writes what it gathered to its tables whenever a number is below the last one.
        let mut rows = rows.to_vec();
        rows.sort_unstable_by_key(|row| row.id);
        let mut rest = rows.as_slice();
        for size in ROWS {
            while let Some((some, more)) = rest.split_at_checked(size) {
                insert_rows(self, some).await?;
                rest = more;
            }
        }
        insert_words(self, &rows).await?;
        // Keys that are there were found before, and nobody else writes.
        Ok(rows.iter().map(|row| row.id).collect())
    }

    async fn remove_words(&mut self, ids: &[i64]) -> Result<(), sqlx::Error> {
        let sql = "DELETE FROM tidegate_eventlog_words
            WHERE rowid IN (SELECT value FROM json_each($1))";
        self.execute(sql, &[&SqlList(ids)]).await?;
        Ok(())
    }

    async fn post(&mut self, component: &str, postings: &[Posting]) -> Result<(), sqlx::Error> {
        posting::write_sqlite(self, component, postings).await
    }

    async fn books(&mut self, component: &str) -> Result<Books, sqlx::Error> {
        posting::books_sqlite(self, component).await
    }

    async fn counts(&mut self, component: &str) -> Result<Books, sqlx::Error> {
        posting::counts_sqlite(self, component).await
    }
}

async fn insert_rows(
    connection: &mut SqliteConnection,
    rows: &[NewRow<'_>],
) -> Result<(), sqlx::Error> {
    let mut query = QueryBuilder::<sqlx::Sqlite>::new(
        // Whatever it refuses, the whole call is taken back. With `FAIL` the statement keeps no copies of pages.
        // Its start does not make the index of words write what it gathered.
        "INSERT OR FAIL INTO tidegate_eventlog (id, key, event_id, execution_id, logger, created_at, at,
             kind, outcome, application_id, correlation_id, process_name, target_system,
             originating_system, batch_id, account_id, trace_id, step_sequence, body) ",
    );
    query.push_values(rows, |mut values, row| {
        let event = &row.incoming.event;
        values
            .push_bind(row.id)
            .push_bind(event.key.as_str())
            .push_bind(event.event_id.to_string())
            .push_bind(row.incoming.execution_id.to_string())
            .push_bind(row.logger)
            .push_bind(row.created_ms)
            .push_bind(event.at_us)
            .push_bind(kind_number(event.kind))
            .push_bind(outcome_number(event.outcome))
            .push_bind(event.application_id.as_str())
            .push_bind(event.correlation_id.as_str())
            .push_bind(event.process_name.as_str())
            .push_bind(event.target_system.as_str())
            .push_bind(event.originating_system.as_str())
            .push_bind(event.batch_id.as_deref())
            .push_bind(event.account_id.as_deref())
            .push_bind(event.trace_id.as_deref())
            .push_bind(event.step_sequence)
            .push_bind(event.body.as_str());
    });
    query.build().execute(connection).await?;
    Ok(())
}

/// All in one statement: at the start of each, the index writes what it gathered to its tables.
async fn insert_words(
    connection: &mut SqliteConnection,
    rows: &[NewRow<'_>],
) -> Result<(), sqlx::Error> {
    // A word holds letters and digits alone.
    let mut words = String::from("{");
    for row in rows {
        let comma = if words.len() > 1 { "," } else { "" };
        let (id, text) = (row.id.to_string(), row.incoming.event.words.join(" "));
        words.extend([comma, "\"", &id, "\":\"", &text, "\""]);
    }
    words.push('}');
    let sql = "INSERT INTO tidegate_eventlog_words (rowid, words)
        SELECT CAST(key AS integer), value FROM json_each($1)";
    connection.execute(sql, &[&words]).await?;
    Ok(())
}
