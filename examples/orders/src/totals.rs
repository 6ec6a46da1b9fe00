//! The read model: what each customer has spent.

use sqlx::AssertSqlSafe;
use tidegate_core::{Code, Failure};
use tidegate_queue::port::LogEvent;
use tidegate_queue::{Projection, Queue, QueueError, Target, Tx};
use tidegate_store::StoreError;

use crate::shop::{self, OrderPlaced};

const TABLE: &str = "customer_totals";

/// The projection.
///
/// # Errors
/// None, for these names.
pub fn projection() -> Result<Projection, QueueError> {
    Projection::builder(TABLE)
        .table(TABLE)
        .batch_size(100)
        .create(|tx, target| Box::pin(create(tx, target)))
        .apply(|tx, target, events| Box::pin(apply(tx, target, events)))
        .build()
}

fn failure(error: impl std::fmt::Display) -> Failure {
    Failure::transient(Code::from_static("totals.sql"), error.to_string())
}

async fn create(tx: &mut Tx, target: Target) -> Result<(), Failure> {
    let table = target.table(TABLE);
    let sql = format!(
        "CREATE TABLE IF NOT EXISTS {table} (customer text PRIMARY KEY, cents bigint NOT NULL)"
    );
    shop::execute(tx, sql).await.map_err(failure)
}

async fn apply(tx: &mut Tx, target: Target, events: &[LogEvent]) -> Result<(), Failure> {
    let table = target.table(TABLE);
    let orders = events
        .iter()
        .filter(|event| event.type_name == "OrderPlaced");
    for event in orders {
        let order: OrderPlaced = serde_json::from_str(&event.payload).map_err(failure)?;
        let sql = format!(
            "INSERT INTO {table} AS t (customer, cents) VALUES ($1, $2)
             ON CONFLICT (customer) DO UPDATE SET cents = t.cents + excluded.cents"
        );
        let sql = AssertSqlSafe(sql);
        let outcome = if let Some(connection) = tx.postgres() {
            let query = sqlx::query(sql).bind(&order.customer).bind(order.cents);
            query.execute(connection).await.map(drop)
        } else if let Some(connection) = tx.sqlite() {
            let query = sqlx::query(sql).bind(&order.customer).bind(order.cents);
            query.execute(connection).await.map(drop)
        } else {
            Ok(())
        };
        outcome.map_err(failure)?;
    }
    Ok(())
}

/// The sums that customers have spent, by name.
///
/// # Errors
/// The database is away or refused.
pub async fn read(queue: &Queue) -> Result<Vec<(String, i64)>, QueueError> {
    let mut tx = queue.begin().await?;
    let sql = "SELECT customer, cents FROM customer_totals ORDER BY customer";
    let rows = if let Some(connection) = tx.postgres() {
        sqlx::query_as(sql).fetch_all(connection).await
    } else if let Some(connection) = tx.sqlite() {
        sqlx::query_as(sql).fetch_all(connection).await
    } else {
        Ok(Vec::new())
    };
    let rows = rows.map_err(|error| StoreError::of("read the totals", error))?;
    tx.rollback().await?;
    Ok(rows)
}
