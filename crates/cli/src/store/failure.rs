//! What people are told when the store or the queue does not do what it is asked.

use tidegate_queue::QueueError;
use tidegate_store::StoreError;

use crate::report::{Exit, Report};

/// The report of a failure of the store at `shown`, with its code and what to do about it.
pub(crate) fn report(shown: &str, error: &QueueError) -> Report {
    match error {
        QueueError::Store(error) => of_store(shown, error),
        QueueError::Unanswered { .. } => unanswered(&format!("{error} at `{shown}`")),
        QueueError::Unknown { .. } => Report::new("queue.unknown", error.to_string())
            .with_hint(
                "`tidegate queue ls` lists what waits, `ls --status completed` the log; retention removes \
                 events for good, and `tidegate audit` names one that was lost",
            ),
        QueueError::Busy { .. } => Report::new("queue.busy", error.to_string())
            .with_hint("wait until its handlers have ended, or its lease has"),
        QueueError::Misplaced { .. } => Report::new("queue.misplaced", error.to_string()),
        QueueError::Encode { .. } => Report::of("queue.payload", "nothing was published", error),
        QueueError::UnknownProjection { .. } => {
            Report::new("projection.unknown", error.to_string())
                .with_hint("`tidegate projection ls` lists those that have")
        }
        QueueError::ProjectionRuns { .. } => Report::new("projection.runs", error.to_string())
            .with_hint("stop the process that runs it first; its turn ends with `queue.projection.lease`"),
        QueueError::Removed { .. } => Report::new("projection.removed", error.to_string())
            .with_hint("`--partial` builds it from the events that are left"),
        QueueError::Name { .. } | QueueError::TooLong { .. } => {
            Report::new("usage.name", error.to_string()).with_exit(Exit::Usage)
        }
        QueueError::ForeignTransaction | _ => Report::of("internal", "the queue failed", error),
    }
}

fn of_store(shown: &str, error: &StoreError) -> Report {
    let doing = format!("store `{shown}`");
    match error {
        StoreError::Address { .. } => Report::new("store.address", error.to_string())
            .with_hint(
                "write `store.url` as sqlite://./data/tidegate.db or postgres://user:password@host/database",
            )
            .with_exit(Exit::Findings),
        StoreError::Away { .. } => Report::of("store.away", &doing, error).with_hint(
            "is the server up, and are host, user, password and database of `store.url` right?",
        ),
        StoreError::Timeout { .. } => unanswered(&format!("{doing}: {error}")),
        StoreError::Conflict { .. } => Report::of("store.conflict", &doing, error)
            .with_hint("nothing happened; try again"),
        StoreError::Schema { .. } => Report::of("store.schema", &doing, error)
            .with_hint("run `tidegate queue migrate`; `--print` shows the SQL instead"),
        StoreError::Refused { .. } => Report::of("store.refused", &doing, error),
        StoreError::Broken { .. } => Report::of("store.broken", &doing, error)
            .with_hint("see to the disk and the rights of the database; nothing that was acknowledged is lost"),
        StoreError::Undone { .. } => Report::of("store.away", &doing, error)
            .with_hint("nothing happened; try again"),
        _ => Report::of("internal", &doing, error),
    }
}

fn unanswered(message: &str) -> Report {
    // error-page: store.timeout
    Report::new("store.timeout", message)
        .with_hint("it may or may not have happened; look before doing it again")
}
