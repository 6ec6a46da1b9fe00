//! Changing: `retry` and `purge`.

use serde::Serialize;
use serde_json::json;
use tidegate_core::env::Env;
use tidegate_core::iso_time;
use tidegate_outbox::{OutboxError, OutboxStatus, RowSelection};

use super::{open, report, selection};
use crate::args::{EventRef, OutboxPurge, OutboxRetry, Output, PurgeStatusArg};
use crate::confirm::confirm;
use crate::report::{ErrorReport, Exit, MessageFormat};
use crate::table;

/// The result of a retry.
#[derive(Debug, Default, Serialize)]
struct Retried {
    /// How many rows are due now.
    retried: u64,
    refused: Vec<serde_json::Value>,
}

impl Retried {
    fn refuse(&mut self, row: EventRef, report: &ErrorReport) {
        report.tell(MessageFormat::Text);
        let mut refused = report.to_json();
        refused["row"] = name_of(row).into();
        self.refused.push(refused);
    }
}

pub(super) async fn retry(arguments: &OutboxRetry, output: Output) -> Result<Exit, ErrorReport> {
    let opened = open(&arguments.at).await?;
    let outbox = &opened.outbox;
    let mut outcome = Retried::default();
    if arguments.all {
        outcome.retried = opened.checked(outbox.retry(&RowSelection::All).await)?;
    }
    for row in &arguments.rows {
        match outbox.retry(&selection(*row)).await {
            Ok(0) => {
                let message = format!("row `{}` is neither DEAD nor waits", name_of(*row));
                let report = ErrorReport::new("outbox.wrong-state", message)
                    .with_hint("it is due already, being published, or in its topic");
                outcome.refuse(*row, &report);
            }
            Ok(count) => outcome.retried += count,
            Err(error @ OutboxError::UnknownRow { .. }) => {
                outcome.refuse(*row, &report(&opened.shown, &error));
            }
            Err(error) => return Err(report(&opened.shown, &error)),
        }
    }
    opened.close().await;
    output.print(&outcome, || {
        let done = table::counted(outcome.retried, "row");
        format!("{done} given back, {} refused", outcome.refused.len())
    })?;
    Ok(Exit::Failed.unless(outcome.refused.is_empty()))
}

pub(super) async fn purge(arguments: &OutboxPurge, output: Output) -> Result<Exit, ErrorReport> {
    let opened = open(&arguments.at).await?;
    let before_ms = arguments.before.before(Env::system().clock.now_ms());
    let before = iso_time(before_ms).unwrap_or_default();
    let (status, consequence) = match arguments.status {
        PurgeStatusArg::Sent => (OutboxStatus::Sent, ""),
        PurgeStatusArg::Dead => (
            OutboxStatus::Dead,
            ", and their events count as lost (`purged`)",
        ),
    };
    let table = &opened.outbox.options().table;
    let what =
        format!("rows of `{table}` that were {status} before {before} are removed{consequence}");
    let unconfirmed = ErrorReport::new(
        "purge.unconfirmed",
        format!("{what}; this was not confirmed"),
    )
    .with_hint("give `--yes`");
    confirm(&what, arguments.yes, unconfirmed)?;
    let before_ms = i64::try_from(before_ms).unwrap_or(i64::MAX);
    let purged = opened.checked(opened.outbox.purge(status, before_ms).await)?;
    opened.close().await;
    let document = json!({ "table": table, "status": status, "before": before, "purged": purged });
    output.print(&document, || {
        let count = table::counted(purged, "row");
        format!("{count} removed")
    })?;
    Ok(Exit::Ok)
}

pub(super) fn name_of(row: EventRef) -> String {
    match row {
        EventRef::Number(number) => number.to_string(),
        EventRef::Id(id) => id.to_string(),
    }
}
