//! Much goes through a topic that keeps little, and what is kept for ever stays.

use tidegate_core::Offset;
use tidegate_log::{EmbeddedConfig, Log, Read, TopicConfig, TopicPartition};
use tidegate_sim::is_long;

use crate::{append, bytes_below, number, open, topic};

const MIB: u64 = 1024 * 1024;
/// Of so many records one is a dead letter.
const DEAD: u64 = 10_000;
const RECORD: usize = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t32_ten_times_what_is_kept_goes_through_and_every_dead_letter_stays() {
    // 10 GiB through a topic that keeps 1 GiB, or the same in small.
    let through = if is_long() { 10 * 1024 } else { 160 } * MIB;
    let kept = through / 10;
    let segment = (kept / 16).clamp(MIB, 64 * MIB);
    let dir = tempfile::tempdir().unwrap();
    let config = EmbeddedConfig {
        segment_size: segment,
        journal_size: segment,
        cache_size: segment.min(16 * MIB),
        ..EmbeddedConfig::new(dir.path())
    };
    let log = open(config);
    let topics = [("orders", Some(kept)), ("orders.dlt", None)];
    for (name, retention_bytes) in topics {
        let config = TopicConfig {
            retention_bytes,
            ..TopicConfig::new(1)
        };
        log.create_topic(&topic(name), config).await.unwrap();
    }
    let mut next = 0;
    let mut most = 0;
    let total = through / RECORD as u64;
    while next < total {
        let end = (next + 500).min(total);
        let mut batch: Vec<_> = (next..end).map(|n| append("orders", n, RECORD)).collect();
        batch.extend(
            (next..end)
                .filter(|n| n % DEAD == 0)
                .map(|n| append("orders.dlt", n, RECORD)),
        );
        log.append(batch).await.unwrap();
        if next % 50_000 == 0 {
            most = most.max(bytes_below(dir.path()));
        }
        next = end;
    }
    log.storage().tidy().await.unwrap();
    most = most.max(bytes_below(dir.path()));
    let dead = total.div_ceil(DEAD);
    // The journal, what is filled and what is added to. Writes wait for a maintenance thread that is so far behind;
    // so this holds however slow it is. In small that is as much as what is kept.
    let beside = if is_long() {
        kept * 4 / 10
    } else {
        kept / 10 + 16 * segment
    };
    let limit = kept + beside + dead * (RECORD as u64 + 200);
    println!("{through} bytes through, {kept} kept, at most {most} on disk, {dead} dead letters");
    assert!(most <= limit, "{most} bytes on disk, {limit} allowed");

    let at = TopicPartition::new(topic("orders.dlt"), 0);
    let mut from = Offset(0);
    let mut expected = 0;
    loop {
        let batch = log.read(Read::new(at.clone(), from)).await.unwrap();
        if batch.records.is_empty() {
            break;
        }
        for stored in &batch.records {
            assert_eq!(number(&stored.record), expected * DEAD);
            expected += 1;
        }
        from = batch.next;
    }
    assert_eq!(expected, dead, "every dead letter can be read");
    for audited in log.storage().audit().await.unwrap() {
        assert_eq!(audited.missing, [], "{}", audited.topic);
    }
    log.close().await;
}
