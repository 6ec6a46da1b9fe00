//! Two consumers of one group share a topic.
//!
//! Nothing here knows whether the log is a directory or Kafka.

use std::sync::Arc;

use tidegate_core::books::{Place, postings};
use tidegate_core::{EventIds, GroupName, Topic};
use tidegate_log::{
    Append, Commit, Join, Log, LogError, OffsetCommit, Record, SessionEvent, TopicConfig,
};
use tokio::sync::watch;

/// The topic.
pub const ORDERS: &str = "orders";
/// The group that reads it.
pub const BILLING: &str = "billing";

/// Makes the topic and adds orders to it. Returns when all of them would survive a power cut.
///
/// # Errors
/// The errors of the log.
pub async fn produce(log: &dyn Log, ids: &EventIds, count: u32) -> Result<(), LogError> {
    let orders = Topic::new(ORDERS).expect("a valid name");
    log.create_topic(&orders, TopicConfig::new(4)).await?;
    let records = (0..count).map(|number| {
        // The key decides about the partition; the id is the event's for life.
        let record =
            Record::new(format!("order {number}")).key(format!("customer-{}", number % 40));
        Append::new(orders.clone(), record.event_id(ids.mint()))
    });
    log.append(records.collect()).await?;
    Ok(())
}

/// Handles orders until told to stop, and says how many it handled.
///
/// # Errors
/// The errors of the log, except that a partition went to somebody else.
pub async fn consume(log: Arc<dyn Log>, mut stop: watch::Receiver<bool>) -> Result<u64, LogError> {
    let group = GroupName::new(BILLING).expect("a valid name");
    let orders = Topic::new(ORDERS).expect("a valid name");
    let session = log.join(Join::new(group, vec![orders])).await?;
    let mut handled = 0;
    loop {
        let event = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            event = session.poll() => event?,
        };
        match event {
            SessionEvent::Assigned(_) | SessionEvent::Lost(_) => {}
            // Nothing of ours is under way between two polls, so they can go at once.
            SessionEvent::Revoking(partitions) => session.release(&partitions).await?,
            SessionEvent::Records { fence, batch } => {
                let ids = batch.records.iter().map(|stored| {
                    // This is where an order would be billed.
                    stored.event_id(log.cluster(), &batch.at)
                });
                let offset = OffsetCommit {
                    at: batch.at.clone(),
                    fence,
                    next: batch.next,
                    metadata: String::new(),
                    // The books say what became of every record, in the same commit.
                    postings: postings(ids, Some(Place::Queued), Some(Place::Delivered)),
                };
                let commit = Commit {
                    appends: Vec::new(),
                    offsets: vec![offset],
                };
                match session.commit(commit).await {
                    Ok(_) => handled += batch.records.len() as u64,
                    // Somebody else has the partition by now and handles these records again.
                    Err(LogError::Fenced { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }
    session.close().await?;
    Ok(handled)
}
