//! A log that is full by its own limit.

use std::time::Duration;

use tidegate_core::GroupName;
use tidegate_core::books::{Place, postings};
use tidegate_log::{
    Commit, EmbeddedConfig, Join, Log, LogError, OffsetCommit, SessionEvent, TopicConfig,
};

use crate::{append, open, topic};

const MIB: u64 = 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t33_a_paused_group_fills_the_log_and_draining_it_lets_appends_flow_again() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(EmbeddedConfig {
        segment_size: MIB,
        journal_size: MIB,
        cache_size: MIB,
        max_size: 8 * MIB,
        reserve: MIB,
        ..EmbeddedConfig::new(dir.path())
    });
    let config = TopicConfig {
        // As little as can be: what a group has read may go at once.
        retention_bytes: Some(1),
        ..TopicConfig::new(1)
    };
    log.create_topic(&topic("orders"), config).await.unwrap();
    let group = GroupName::new("billing").unwrap();
    let session = log
        .join(Join::new(group, vec![topic("orders")]))
        .await
        .unwrap();
    let SessionEvent::Assigned(assigned) = session.poll().await.unwrap() else {
        panic!("partitions come first");
    };
    let at = assigned[0].at.clone();
    session.pause(std::slice::from_ref(&at)).await.unwrap();

    let mut accepted = 0;
    let refused = loop {
        let batch = (accepted..accepted + 100).map(|n| append("orders", n, 1_000));
        match log.append(batch.collect()).await {
            Ok(_) => accepted += 100,
            Err(error) => break error,
        }
        assert!(accepted < 100_000, "the limit is never reached");
    };
    assert!(matches!(refused, LogError::Full { .. }), "{refused}");
    assert_eq!(refused.code().as_str(), "log.full");
    assert_eq!(log.storage().no_room(), Some(refused.to_string()));

    session.resume(std::slice::from_ref(&at)).await.unwrap();
    let mut seen = 0;
    while seen < accepted {
        let event = tokio::time::timeout(Duration::from_secs(60), session.poll()).await;
        let SessionEvent::Records { fence, batch } = event.unwrap().unwrap() else {
            continue;
        };
        let ids = batch
            .records
            .iter()
            .map(|stored| stored.event_id(log.cluster(), &batch.at));
        let offset = OffsetCommit {
            at: batch.at.clone(),
            fence,
            next: batch.next,
            metadata: String::new(),
            postings: postings(ids, Some(Place::Queued), Some(Place::Delivered)),
        };
        seen += batch.records.len() as u64;
        let commit = Commit {
            appends: Vec::new(),
            offsets: vec![offset],
        };
        session.commit(commit).await.unwrap();
    }
    assert_eq!(seen, accepted, "nothing that was accepted is missing");
    log.storage().tidy().await.unwrap();
    let batch = (accepted..accepted + 100).map(|n| append("orders", n, 1_000));
    log.append(batch.collect()).await.unwrap();
    assert_eq!(log.storage().no_room(), None);
    for audited in log.storage().audit().await.unwrap() {
        assert_eq!(audited.missing, [], "{}", audited.topic);
    }
    session.close().await.unwrap();
    log.close().await;
}
