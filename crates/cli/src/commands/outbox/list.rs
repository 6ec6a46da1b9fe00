//! Looking: `ls`, `show`, `stats`.

use serde_json::json;
use tidegate_outbox::{OutboxError, OutboxFilter, OutboxStats, OutboxStatus};

use super::row::ShownRow;
use super::{open, selection};
use crate::args::{EventRef, OutboxAt, OutboxLs, Output, RowStatusArg};
use crate::report::{ErrorReport, Exit};
use crate::table;

pub(super) async fn list(arguments: &OutboxLs, output: Output) -> Result<Exit, ErrorReport> {
    let opened = open(&arguments.at).await?;
    let filter = OutboxFilter {
        status: arguments.status.map(status),
        aggregate_id: arguments.key.clone(),
        after: arguments.after,
        // One more tells whether there is another page.
        limit: arguments.limit.saturating_add(1),
    };
    let mut listed = opened.checked(opened.outbox.list(&filter).await)?;
    let limit = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
    let is_more = listed.len() > limit;
    listed.truncate(limit);
    let rows: Vec<ShownRow> = listed.into_iter().map(ShownRow::of).collect();
    let next = rows.last().map(ShownRow::id).filter(|_| is_more);
    let document = json!({ "rows": rows, "next": next });
    output.print(&document, || page(&rows, next))?;
    Ok(Exit::Ok)
}

fn status(status: RowStatusArg) -> OutboxStatus {
    match status {
        RowStatusArg::Pending => OutboxStatus::Pending,
        RowStatusArg::Claimed => OutboxStatus::Claimed,
        RowStatusArg::Sent => OutboxStatus::Sent,
        RowStatusArg::Dead => OutboxStatus::Dead,
    }
}

fn page(rows: &[ShownRow], next: Option<i64>) -> String {
    if rows.is_empty() {
        return "no rows".to_owned();
    }
    let cells = rows.iter().map(ShownRow::cells);
    let grid = table::grid(&ShownRow::HEADER, cells.collect());
    let count = table::counted(rows.len() as u64, "row");
    match next {
        Some(next) => format!("{grid}\n{count}; more with `--after {next}`"),
        None => format!("{grid}\n{count}"),
    }
}

pub(super) async fn show(
    row: EventRef,
    at: &OutboxAt,
    output: Output,
) -> Result<Exit, ErrorReport> {
    let opened = open(at).await?;
    let found = opened.checked(opened.outbox.show(&selection(row)).await)?;
    let found = opened.checked(found.ok_or_else(|| OutboxError::UnknownRow {
        id: super::mend::name_of(row),
        table: opened.outbox.options().table.clone(),
    }))?;
    let shown = ShownRow::of(found);
    output.print(&shown, || shown.text())?;
    Ok(Exit::Ok)
}

pub(super) async fn stats(at: &OutboxAt, output: Output) -> Result<Exit, ErrorReport> {
    let opened = open(at).await?;
    let stats = opened.checked(opened.outbox.stats().await)?;
    output.print(&stats, || stats_text(&stats))?;
    Ok(Exit::Ok)
}

fn stats_text(stats: &OutboxStats) -> String {
    let row = |name: &str, count: i64| vec![name.to_owned(), count.to_string()];
    let rows = vec![
        row("waiting", stats.pending),
        row("of these, for another attempt", stats.retrying),
        row("being published", stats.claimed),
        row("dead", stats.dead),
        row("relays that are alive", stats.relays),
    ];
    let grid = table::grid(&["rows", "count"], rows);
    match stats.oldest_age_ms {
        Some(age) => format!("{grid}\noldest {:.1} s", age as f64 / 1_000.0),
        None => format!("{grid}\nnothing waits"),
    }
}
