//! Looking: `ls`, `show`, `stats`.

use serde_json::json;
use tidegate_queue::QueueError;
use tidegate_queue::port::{EventFilter, QueueStats, QueueStatus};

use super::event::ShownEvent;
use super::{number_of, open};
use crate::args::{EventRef, Output, QueueLs, StatusArg, StoreAt};
use crate::report::{ErrorReport, Exit};
use crate::table;

pub(super) async fn list(arguments: &QueueLs, output: Output) -> Result<Exit, ErrorReport> {
    let opened = open(&arguments.at).await?;
    let filter = EventFilter {
        status: arguments.status.map(status),
        type_name: arguments.type_name.clone(),
        after: arguments.after,
        // One more tells whether there is another page.
        limit: arguments.limit.saturating_add(1),
    };
    let mut listed = opened.checked(opened.queue.store().list(&filter).await)?;
    let limit = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
    let is_more = listed.len() > limit;
    listed.truncate(limit);
    let events: Vec<ShownEvent> = listed.into_iter().map(ShownEvent::of).collect();
    let next = events.last().map(ShownEvent::id).filter(|_| is_more);
    let document = json!({ "events": events, "next": next });
    output.print(&document, || page(&events, next))?;
    Ok(Exit::Ok)
}

fn status(status: StatusArg) -> QueueStatus {
    match status {
        StatusArg::Pending => QueueStatus::Pending,
        StatusArg::Processing => QueueStatus::Processing,
        StatusArg::Completed => QueueStatus::Completed,
        StatusArg::CompletedWithErrors => QueueStatus::CompletedWithErrors,
    }
}

fn page(events: &[ShownEvent], next: Option<i64>) -> String {
    if events.is_empty() {
        return "no events".to_owned();
    }
    let rows = events.iter().map(ShownEvent::row);
    let grid = table::grid(&ShownEvent::HEADER, rows.collect());
    let count = table::counted(events.len() as u64, "event");
    match next {
        Some(next) => format!("{grid}\n{count}; more with `--after {next}`"),
        None => format!("{grid}\n{count}"),
    }
}

pub(super) async fn show(
    event: EventRef,
    at: &StoreAt,
    output: Output,
) -> Result<Exit, ErrorReport> {
    let opened = open(at).await?;
    let id = number_of(&opened, event).await??;
    let store = opened.queue.store();
    let listed = opened.checked(store.show(id).await)?;
    let listed = opened.checked(listed.ok_or(QueueError::UnknownEvent { id }))?;
    let registry = opened.checked(store.registry().await)?;
    let type_name = listed.type_name.clone();
    let shown = ShownEvent::whole(listed, registry.of(&type_name));
    output.print(&shown, || shown.text())?;
    Ok(Exit::Ok)
}

pub(super) async fn stats(at: &StoreAt, output: Output) -> Result<Exit, ErrorReport> {
    let opened = open(at).await?;
    let stats = opened.checked(opened.queue.store().stats().await)?;
    output.print(&stats, || stats_text(&stats))?;
    Ok(Exit::Ok)
}

fn stats_text(stats: &QueueStats) -> String {
    let row = |name: &str, count: u64| vec![name.to_owned(), count.to_string()];
    let mut rows = vec![
        row("waiting", stats.pending),
        row("of these, for another attempt", stats.retrying),
        row("being handled", stats.processing),
        row("finalized", stats.finalized),
        row("handler states kept", stats.handler_states),
    ];
    for (type_name, count) in &stats.unhandled {
        rows.push(row(&format!("without a handler: {type_name}"), *count));
    }
    if stats.held_up > 0 {
        rows.push(row("behind one of these, by their key", stats.held_up));
    }
    let [minute, hour, older] = stats.ages;
    format!(
        "{}\nthe oldest is {:.1} s old; younger than a minute: {minute}, than an hour: {}, older: {older}",
        table::grid(&["events", "count"], rows),
        stats.oldest_age_seconds,
        minute + hour,
    )
}
