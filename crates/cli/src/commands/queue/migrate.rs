//! `tidegate queue migrate`.

use serde_json::json;
use tidegate_core::env::Env;
use tidegate_queue::sql;
use tidegate_store::Dialect;

use crate::args::{Output, SqlDialect, StoreAt};
use crate::report::{ErrorReport, Exit};
use crate::{store, table};

pub(super) async fn migrate(at: &StoreAt, output: Output) -> Result<Exit, ErrorReport> {
    let settings = store::named(at)?;
    let env = Env::system();
    let (store, shown) = store::make(&settings, &env).await?;
    let opened = store::OpenedStore::on(store, shown, &env).await?;
    let ran = opened.checked(sql::migrate(&opened.store).await)?;
    opened.close().await;
    let shown = &opened.shown;
    output.print(&json!({ "store": shown, "ran": ran }), || match ran {
        0 => format!("{shown}: up to date"),
        ran => format!("{shown}: {} ran", table::counted(ran as u64, "migration")),
    })?;
    Ok(Exit::Ok)
}

/// Writes the SQL. No database is asked.
pub(super) fn print(
    dialect: Option<SqlDialect>,
    at: &StoreAt,
    output: Output,
) -> Result<Exit, ErrorReport> {
    let dialect = match dialect {
        Some(SqlDialect::Sqlite) => Dialect::Sqlite,
        Some(SqlDialect::Postgres) => Dialect::Postgres,
        // The configuration takes no other address.
        None => {
            let configured = store::named(at)?.options.dialect();
            configured.unwrap_or(Dialect::Sqlite)
        }
    };
    let text = sql::print_migrations(dialect);
    let document = json!({ "dialect": dialect.to_string(), "sql": text });
    output.print(&document, || text.trim_end().to_owned())?;
    Ok(Exit::Ok)
}
