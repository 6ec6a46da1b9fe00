//! `tidegate outbox migrate`.

use serde_json::json;
use tidegate_core::env::Env;
use tidegate_outbox::{migrate as run_migrations, migration_sql};
use tidegate_store::Dialect;

use super::{meant, report};
use crate::args::{OutboxAt, Output, SqlDialect};
use crate::report::{ErrorReport, Exit};
use crate::{store, table};

pub(super) async fn migrate(at: &OutboxAt, output: Output) -> Result<Exit, ErrorReport> {
    let options = meant(at)?;
    let settings = store::named(&at.store)?;
    let (store, shown) = store::make(&settings, &Env::system()).await?;
    let ran = run_migrations(&store, &options).await;
    let ran = ran.map_err(|error| report(&shown, &error))?;
    store.close().await.ok();
    let document = json!({ "store": shown, "table": options.table, "ran": ran });
    output.print(&document, || match ran {
        0 => format!("{shown}: up to date"),
        ran => format!("{shown}: {} ran", table::counted(ran as u64, "migration")),
    })?;
    Ok(Exit::Ok)
}

/// Writes the SQL. No database is asked.
pub(super) fn print(
    dialect: Option<SqlDialect>,
    at: &OutboxAt,
    output: Output,
) -> Result<Exit, ErrorReport> {
    let options = meant(at)?;
    let dialect = match dialect {
        Some(SqlDialect::Sqlite) => Dialect::Sqlite,
        Some(SqlDialect::Postgres) => Dialect::Postgres,
        // The configuration takes no other address.
        None => {
            let configured = store::named(&at.store)?.options.dialect();
            configured.unwrap_or(Dialect::Sqlite)
        }
    };
    let text = migration_sql(dialect, &options).map_err(|error| report("", &error))?;
    let document = json!({ "dialect": dialect.to_string(), "table": options.table, "sql": text });
    output.print(&document, || text.trim_end().to_owned())?;
    Ok(Exit::Ok)
}
