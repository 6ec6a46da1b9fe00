//! The order of finalized events, and how far projections have read it, on SQLite.

use sqlx::SqliteConnection;
use tidegate_store::sql::{SqlConnection, SqlList};
use tidegate_store::sqlx;

use super::super::projection::ProjectionStatements;

impl ProjectionStatements for SqliteConnection {
    const READ_LOG: &'static str =
        "SELECT s.position + l.ordinal, e.id, e.event_id, e.type, e.key, e.payload, e.headers,
             e.created_at
         FROM (SELECT batch, position FROM tidegate_sequence
               WHERE position >= coalesce((SELECT max(position) FROM tidegate_sequence
                         WHERE position <= ?1 + 1), 0)
                 AND position <= ?1 + ?2) s
         JOIN tidegate_log_batch b ON b.id = s.batch, json_each(b.ids) i
         JOIN tidegate_log l ON l.id = i.value AND l.batch = s.batch
         JOIN tidegate_event e ON e.id = l.id
         WHERE NOT l.is_failed AND s.position + l.ordinal > ?1
           AND s.position + l.ordinal <= ?1 + ?2
         ORDER BY 1";
    const SWAP_PATIENCE: Option<&'static str> = None;

    async fn note_position(
        &mut self,
        of: String,
        name: String,
        position: i64,
        now: i64,
    ) -> Result<bool, sqlx::Error> {
        let sql = "SELECT EXISTS (SELECT 1 FROM event_projection WHERE name = ?)";
        if !self.fetch_one(sql, &[&of]).await? {
            return Ok(false);
        }
        let sql = "INSERT INTO event_projection AS p (name, position, updated_at)
            VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE
            SET position = excluded.position, updated_at = excluded.updated_at
            WHERE p.position > excluded.position";
        self.execute(sql, &[&name, &position, &now]).await?;
        Ok(true)
    }

    async fn advance(
        &mut self,
        name: &str,
        (from, to): (i64, i64),
        now: i64,
    ) -> Result<bool, sqlx::Error> {
        let sql = "INSERT INTO event_projection (name, position, updated_at) VALUES (?, 0, ?)
            ON CONFLICT DO NOTHING";
        self.execute(sql, &[&name, &now]).await?;
        let sql = "UPDATE event_projection SET position = ?3, updated_at = ?4
            WHERE name = ?1 AND position = ?2";
        Ok(self.execute(sql, &[&name, &from, &to, &now]).await? > 0)
    }

    async fn swap_positions(
        &mut self,
        name: &str,
        shadow: &str,
        marks: &[String],
        now: i64,
    ) -> Result<bool, sqlx::Error> {
        let sql = "INSERT INTO event_projection AS p (name, position, updated_at, rebuilds)
            SELECT ?1, position, ?3, 1 FROM event_projection WHERE name = ?2
            ON CONFLICT (name) DO UPDATE SET position = excluded.position, updated_at = ?3,
                rebuilds = p.rebuilds + 1";
        let swapped = self.execute(sql, &[&name, &shadow, &now]).await?;
        let sql = "DELETE FROM event_projection
            WHERE name = ? OR name IN (SELECT value FROM json_each(?))";
        self.execute(sql, &[&shadow, &SqlList(marks)]).await?;
        Ok(swapped > 0)
    }
}

/// Gives positions, and says to how many groups.
pub(super) async fn sequence(db: &mut SqliteConnection, limit: i64) -> Result<u64, sqlx::Error> {
    // Groups are numbered in the order of commits, so what has its position is a prefix of them.
    let sql = "INSERT INTO tidegate_sequence (batch, position, count)
         SELECT b.id, coalesce((SELECT s.position + s.count
                 FROM tidegate_sequence s ORDER BY s.position DESC LIMIT 1), 1)
             + coalesce(sum(b.n) OVER (ORDER BY b.id
                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0), b.n
         FROM (SELECT l.id, json_array_length(l.ids) AS n
               FROM tidegate_log_batch l
               WHERE l.id > coalesce(
                   (SELECT max(s.batch) FROM tidegate_sequence s), 0)
               ORDER BY l.id LIMIT ?) b";
    db.execute(sql, &[&limit]).await
}
