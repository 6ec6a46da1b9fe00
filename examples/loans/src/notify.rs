//! The notification consumer: a plain member of a group on the topic of loan events.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::books::{Place, postings};
use tidegate_core::env::Clock;
use tidegate_core::{GroupName, Shutdown, Topic, error_chain};
use tidegate_log::{
    Batch, Commit, Fence, Join, Log, LogError, OffsetCommit, Record, Session, SessionEvent,
};
use tidegate_logger::Traceparent;

/// The group of the consumer.
pub const GROUP: &str = "loan-notifications";

/// The wait before the group is joined again after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// Tells customers about their loans until `stop`. A failure is a pause, after which it begins at the last
/// commit.
pub(crate) async fn run(log: Arc<dyn Log>, topic: Topic, clock: Arc<dyn Clock>, stop: Shutdown) {
    let group = GroupName::new(GROUP).expect("a valid name");
    loop {
        let join = Join::new(group.clone(), vec![topic.clone()]);
        let stopped = stop.clone().requested();
        let consumed = async {
            let session = log.join(join).await?;
            let consumed = consume(&*log, &*session, stopped).await;
            // Partitions that it did not give back are taken from it soon.
            session.close().await.ok();
            consumed
        };
        let Err(error) = consumed.await else {
            return;
        };
        let why = error_chain(&error);
        tracing::warn!(why, "notifications wait for the log");
        tokio::select! {
            biased;
            () = stop.clone().requested() => return,
            () = clock.sleep(PAUSE) => {}
        }
    }
}

async fn consume(
    log: &dyn Log,
    session: &dyn Session,
    stopped: impl Future<Output = ()>,
) -> Result<(), LogError> {
    tokio::pin!(stopped);
    loop {
        let event = tokio::select! {
            biased;
            () = &mut stopped => return Ok(()),
            event = session.poll() => event?,
        };
        match event {
            SessionEvent::Assigned(_) | SessionEvent::Lost(_) => {}
            SessionEvent::Revoking(partitions) => session.release(&partitions).await?,
            SessionEvent::Records { fence, batch } => {
                for stored in &batch.records {
                    notify(&stored.record);
                }
                match session.commit(handled(log, fence, &batch)).await {
                    // After a fence somebody else has the partition, and tells it once more.
                    Ok(_) | Err(LogError::Fenced { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// This is where a message would be sent. The line is written before the commit, so it may come twice.
fn notify(record: &Record) {
    let text =
        |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
    let header = |name| text(record.headers.get(name));
    let parent = header("traceparent").parse::<Traceparent>();
    let trace_id = parent.map_or_else(|_| String::new(), |parent| parent.trace_id.to_string());
    tracing::info!(
        loan_event = header("event-type"),
        trace_id,
        loan_id = text(record.key.as_deref()),
        "notified"
    );
}

fn handled(log: &dyn Log, fence: Fence, batch: &Batch) -> Commit {
    let ids = batch.records.iter();
    let ids = ids.map(|stored| stored.event_id(log.cluster(), &batch.at));
    let offset = OffsetCommit {
        at: batch.at.clone(),
        fence,
        next: batch.next,
        metadata: String::new(),
        postings: postings(ids, Some(Place::Queued), Some(Place::Delivered)),
    };
    Commit {
        appends: Vec::new(),
        offsets: vec![offset],
    }
}
