//! Leases that are held: kept, given back, reopened; and by which registry they are settled.

use sqlx::SqliteConnection;
use tidegate_store::sqlx;

use super::super::columns::unsigned;
use super::claim::remaining;
use crate::port::LeaseId;

pub(super) async fn renew(
    connection: &mut SqliteConnection,
    leases: Vec<LeaseId>,
    (until, is_given_back): (i64, bool),
) -> Result<Vec<LeaseId>, sqlx::Error> {
    let mut lost = Vec::new();
    for one in leases {
        let done = match one {
            LeaseId::Batch { batch, token } => {
                sqlx::query(
                    "UPDATE tidegate_batch SET locked_until = ?, is_confirmed = 1,
                         locked_by = CASE WHEN ? THEN '' ELSE locked_by END
                     WHERE id = ? AND token = ?",
                )
                .bind(until)
                .bind(is_given_back)
                .bind(batch)
                .bind(token)
                .execute(&mut *connection)
                .await?
            }
            LeaseId::Row { id, token } => {
                sqlx::query(
                    "UPDATE tidegate_event_row SET due_at = ?, is_confirmed = 1,
                         locked_by = CASE WHEN ? THEN NULL ELSE locked_by END
                     WHERE id = ? AND token = ? AND locked_by IS NOT NULL",
                )
                .bind(until)
                .bind(is_given_back)
                .bind(id)
                .bind(token)
                .execute(&mut *connection)
                .await?
            }
        };
        if done.rows_affected() == 0 {
            lost.push(one);
        }
    }
    Ok(lost)
}

pub(super) async fn reopen(
    connection: &mut SqliteConnection,
    batch: i64,
    token: i64,
) -> Result<Option<(i64, Vec<i64>)>, sqlx::Error> {
    let row: Option<(i64, String)> = sqlx::query_as(
        "UPDATE tidegate_batch SET token = token + 1 WHERE id = ? AND token = ?
         RETURNING token, ids",
    )
    .bind(batch)
    .bind(token)
    .fetch_optional(&mut *connection)
    .await?;
    let Some((token, ids)) = row else {
        return Ok(None);
    };
    Ok(Some((token, remaining(connection, &ids).await?)))
}

/// The version of the registry.
pub(super) async fn registry_version(
    connection: &mut SqliteConnection,
) -> Result<u64, sqlx::Error> {
    let sql = "SELECT registry FROM tidegate_queue WHERE name = 'queue'";
    Ok(unsigned(
        sqlx::query_scalar(sql).fetch_one(connection).await?,
    ))
}
