//! The shop: its tables, its events, and how an order is placed.

use serde::{Deserialize, Serialize};
use sqlx::AssertSqlSafe;
use tidegate_queue::{Queue, QueueError, QueueEvent, Tx};
use tidegate_store::StoreError;

/// An order was placed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OrderPlaced {
    /// The order.
    pub order: i64,
    /// Who placed it; orders of one customer are handled one after the other.
    pub customer: String,
    /// Its price.
    pub cents: i64,
}

impl QueueEvent for OrderPlaced {
    const TYPE: &'static str = "OrderPlaced";

    fn key(&self) -> Option<String> {
        Some(self.customer.clone())
    }
}

/// The customer was told about the order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ConfirmationSent {
    /// The order.
    pub order: i64,
}

impl QueueEvent for ConfirmationSent {
    const TYPE: &'static str = "ConfirmationSent";
}

/// Runs one statement without parameters, on whichever database it is.
///
/// # Errors
/// The database is away or refused.
pub async fn execute(tx: &mut Tx, sql: String) -> Result<(), QueueError> {
    let doing = "run a statement of the shop";
    let sql = sqlx::raw_sql(AssertSqlSafe(sql));
    let outcome = if let Some(connection) = tx.postgres() {
        sql.execute(connection).await.map(drop)
    } else if let Some(connection) = tx.sqlite() {
        sql.execute(connection).await.map(drop)
    } else {
        Ok(())
    };
    outcome.map_err(|error| StoreError::of(doing, error).into())
}

/// Makes the table of orders where it is missing.
///
/// # Errors
/// The database is away or refused.
pub async fn create(queue: &Queue) -> Result<(), QueueError> {
    let mut tx = queue.begin().await?;
    let sql = "CREATE TABLE IF NOT EXISTS orders (
        id bigint PRIMARY KEY, customer text NOT NULL, cents bigint NOT NULL)";
    execute(&mut tx, sql.to_owned()).await?;
    tx.commit().await
}

/// Places an order: the row and the event are there together, or neither is.
///
/// # Errors
/// The database is away or refused; nothing was placed then.
pub async fn place(queue: &Queue, order: &OrderPlaced) -> Result<(), QueueError> {
    let doing = "place an order";
    let mut tx = queue.begin().await?;
    let outcome = if let Some(connection) = tx.postgres() {
        sqlx::query("INSERT INTO orders (id, customer, cents) VALUES ($1, $2, $3)")
            .bind(order.order)
            .bind(&order.customer)
            .bind(order.cents)
            .execute(connection)
            .await
            .map(drop)
    } else if let Some(connection) = tx.sqlite() {
        sqlx::query("INSERT INTO orders (id, customer, cents) VALUES (?, ?, ?)")
            .bind(order.order)
            .bind(&order.customer)
            .bind(order.cents)
            .execute(connection)
            .await
            .map(drop)
    } else {
        Ok(())
    };
    outcome.map_err(|error| StoreError::of(doing, error))?;
    let (_, wake) = queue.publish_in(&mut tx, order).await?;
    tx.commit().await?;
    wake.wake();
    Ok(())
}
