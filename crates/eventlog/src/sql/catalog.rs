//! Links and processes.

use tidegate_store::sql::{FromColumns, OwnColumns, SqlAccess, SqlConnection};
use tidegate_store::sqlx::AssertSqlSafe;
use tidegate_store::{Store, sqlx};

use super::on_either;
use crate::EventLogError;
use crate::catalog::{CorrelationLink, NewProcess, ProcessDefinition};
use crate::event::iso_ms;

impl FromColumns for CorrelationLink {
    fn from_columns(row: &impl OwnColumns) -> Result<Self, sqlx::Error> {
        Ok(Self {
            correlation_id: row.get(0)?,
            account_id: row.get(1)?,
            application_id: row.get(2)?,
            customer_id: row.get(3)?,
            card_number_last4: row.get(4)?,
            retain: row.get(5)?,
        })
    }
}

/// Makes a link, or changes the one there is.
pub(crate) async fn upsert_link(
    store: &Store,
    link: CorrelationLink,
    now_ms: i64,
) -> Result<(), EventLogError> {
    let changed = on_either!(store, SqlAccess::Write, "link a correlation",
        db => write_link(db, link, now_ms));
    Ok(changed?)
}

async fn write_link<C: SqlConnection>(
    db: &mut C,
    link: CorrelationLink,
    now_ms: i64,
) -> Result<(), sqlx::Error> {
    let sql = "INSERT INTO tidegate_correlation_link (correlation_id, account_id, application_id,
            customer_id, card_number_last4, retain, created_at, updated_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $7)
        ON CONFLICT (correlation_id) DO UPDATE SET account_id = excluded.account_id,
            application_id = excluded.application_id, customer_id = excluded.customer_id,
            card_number_last4 = excluded.card_number_last4, retain = excluded.retain,
            updated_at = excluded.updated_at";
    let CorrelationLink {
        correlation_id,
        account_id,
        application_id,
        customer_id,
        card_number_last4,
        retain,
    } = link;
    let written = db.execute(
        sql,
        &[
            &correlation_id,
            &account_id,
            &application_id,
            &customer_id,
            &card_number_last4,
            &retain,
            &now_ms,
        ],
    );
    written.await?;
    Ok(())
}

/// The link of a correlation.
pub(crate) async fn find_link(
    store: &Store,
    correlation_id: String,
) -> Result<Option<CorrelationLink>, EventLogError> {
    let found = on_either!(store, SqlAccess::Read, "find a link",
        db => owned_link(db, correlation_id));
    Ok(found?)
}

async fn owned_link<C: SqlConnection>(
    db: &mut C,
    correlation_id: String,
) -> Result<Option<CorrelationLink>, sqlx::Error> {
    link(db, &correlation_id).await
}

pub(super) async fn link<C: SqlConnection>(
    db: &mut C,
    correlation_id: &str,
) -> Result<Option<CorrelationLink>, sqlx::Error> {
    // No link has a zero character, and PostgreSQL takes none in a value.
    if correlation_id.contains('\0') {
        return Ok(None);
    }
    let sql = "SELECT correlation_id, account_id, application_id, customer_id, card_number_last4,
            retain
        FROM tidegate_correlation_link WHERE correlation_id = $1";
    db.fetch_optional(sql, &[&correlation_id]).await
}

impl FromColumns for ProcessDefinition {
    fn from_columns(row: &impl OwnColumns) -> Result<Self, sqlx::Error> {
        Ok(Self {
            process_id: row.get(0)?,
            process: NewProcess {
                process_name: row.get(1)?,
                display_name: row.get(2)?,
                description: row.get(3)?,
                owning_team: row.get(4)?,
                expected_steps: row.get(5)?,
                sla_ms: row.get(6)?,
                is_active: row.get(7)?,
                retain: row.get(8)?,
            },
            created_at: iso_ms(row.get(9)?).unwrap_or_default(),
        })
    }
}

const PROCESS_COLUMNS: &str = "id, process_name, display_name, description, owning_team,
    expected_steps, sla_ms, is_active, retain, created_at";

/// Defines a process; none where its name is taken.
pub(crate) async fn insert_process(
    store: &Store,
    process: NewProcess,
    now_ms: i64,
) -> Result<Option<ProcessDefinition>, EventLogError> {
    let made = on_either!(store, SqlAccess::Write, "define a process",
        db => write_process(db, process, now_ms));
    Ok(made?)
}

async fn write_process<C: SqlConnection>(
    db: &mut C,
    process: NewProcess,
    now_ms: i64,
) -> Result<Option<ProcessDefinition>, sqlx::Error> {
    let sql = format!(
        "INSERT INTO tidegate_process (process_name, display_name, description, owning_team,
             expected_steps, sla_ms, is_active, retain, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
         ON CONFLICT (process_name) DO NOTHING RETURNING {PROCESS_COLUMNS}"
    );
    let made = db.fetch_optional(
        AssertSqlSafe(sql),
        &[
            &process.process_name,
            &process.display_name,
            &process.description,
            &process.owning_team,
            &process.expected_steps,
            &process.sla_ms,
            &process.is_active,
            &process.retain,
            &now_ms,
        ],
    );
    made.await
}

/// The processes that are defined, by name.
pub(crate) async fn list_processes(
    store: &Store,
    is_active: Option<bool>,
) -> Result<Vec<ProcessDefinition>, EventLogError> {
    let found = on_either!(store, SqlAccess::Read, "list processes",
        db => read_processes(db, is_active));
    Ok(found?)
}

async fn read_processes<C: SqlConnection>(
    db: &mut C,
    is_active: Option<bool>,
) -> Result<Vec<ProcessDefinition>, sqlx::Error> {
    let sql = match is_active {
        Some(_) => format!("SELECT {PROCESS_COLUMNS} FROM tidegate_process WHERE is_active = $1"),
        None => format!("SELECT {PROCESS_COLUMNS} FROM tidegate_process"),
    };
    let found = match &is_active {
        Some(is_active) => db.fetch_all(AssertSqlSafe(sql), &[is_active]),
        None => db.fetch_all(AssertSqlSafe(sql), &[]),
    };
    let mut processes: Vec<ProcessDefinition> = found.await?;
    // The databases sort texts by different rules.
    processes.sort_by(|a, b| a.process.process_name.cmp(&b.process.process_name));
    Ok(processes)
}
