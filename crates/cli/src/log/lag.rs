//! How far groups are behind, as gauges.

use std::sync::Arc;
use std::time::Duration;

use metrics::{describe_gauge, gauge};
use tidegate_core::GroupName;
use tidegate_core::env::Clock;
use tidegate_log::{Committed, Log, LogError, Read, TopicDescription, TopicPartition};

use super::Scope;

/// How often the gauges are set.
const EVERY: Duration = Duration::from_secs(5);

const RECORDS: &str = "tidegate_log_lag_records";
const SECONDS: &str = "tidegate_log_lag_seconds";
const RATIO: &str = "tidegate_log_unread_age_ratio";

/// Sets the gauges of the groups and topics of the scope, or of all, again and again.
pub(crate) async fn watch_lag(log: Arc<dyn Log>, clock: Arc<dyn Clock>, scope: Option<Scope>) {
    describe_gauge!(RECORDS, "Records that a group has still to read.");
    describe_gauge!(
        SECONDS,
        "Age of the oldest record that a group has still to read."
    );
    describe_gauge!(RATIO, "That age as a share of the topic's retention.");
    loop {
        if let Err(error) = look(&*log, &*clock, scope.as_ref()).await {
            tracing::debug!(%error, "the lag of the groups could not be read");
        }
        clock.sleep(EVERY).await;
    }
}

async fn look(log: &dyn Log, clock: &dyn Clock, scope: Option<&Scope>) -> Result<(), LogError> {
    let Scope { topics, groups } = match scope {
        Some(scope) => scope.clone(),
        None => Scope {
            topics: log.topics().await?,
            groups: log.groups().await?,
        },
    };
    for topic in &topics {
        let described = log.describe(topic).await?;
        let partitions: Vec<TopicPartition> = described
            .partitions
            .iter()
            .map(|found| TopicPartition::new(topic.clone(), found.partition.0))
            .collect();
        for group in &groups {
            let committed = log.committed(group, &partitions).await?;
            for (at, committed) in partitions.iter().zip(committed) {
                if let Some(committed) = committed {
                    let lag = lag(log, clock, &described, at, &committed).await?;
                    set(group, at, lag);
                }
            }
        }
    }
    Ok(())
}

/// How far a group is behind.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Lag {
    records: i64,
    age: Duration,
    /// Of the retention, if there is one.
    ratio: Option<f64>,
}

async fn lag(
    log: &dyn Log,
    clock: &dyn Clock,
    described: &TopicDescription,
    at: &TopicPartition,
    committed: &Committed,
) -> Result<Lag, LogError> {
    let mut ends = described.partitions.iter();
    let end = ends.find(|found| found.partition == at.partition);
    let end = end.map_or(committed.next, |found| found.end);
    let records = (end.0 - committed.next.0).max(0);
    let mut age = Duration::ZERO;
    if records > 0 {
        let read = Read {
            max_records: 1,
            ..Read::new(at.clone(), committed.next)
        };
        let oldest = log.read(read).await?.records.into_iter().next();
        age = oldest.map_or(age, |oldest| {
            let born = oldest.record.timestamp_ms;
            Duration::from_millis(clock.now_ms().saturating_sub(born))
        });
    }
    let retention = described.config.retention;
    Ok(Lag {
        records,
        age,
        ratio: retention.map(|retention| age.as_secs_f64() / retention.as_secs_f64()),
    })
}

fn set(group: &GroupName, at: &TopicPartition, lag: Lag) {
    let labels = [
        ("group", group.to_string()),
        ("topic", at.topic.to_string()),
        ("partition", at.partition.to_string()),
    ];
    #[expect(clippy::cast_precision_loss, reason = "gauges are doubles")]
    gauge!(RECORDS, &labels).set(lag.records as f64);
    gauge!(SECONDS, &labels).set(lag.age.as_secs_f64());
    if let Some(ratio) = lag.ratio {
        gauge!(RATIO, &labels).set(ratio);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Offset, Topic};
    use tidegate_log::{
        Append, Commit, EmbeddedConfig, EmbeddedLog, Happening, Join, OffsetCommit, Record,
        TopicConfig,
    };
    use tidegate_sim::Sim;

    #[test]
    fn a_group_is_behind_by_what_it_has_not_committed() {
        let mut sim = Sim::new(7);
        let node = sim.node("a");
        let env = node.env();
        let config = EmbeddedConfig {
            journal_size: 64 * 1024,
            ..EmbeddedConfig::new("/log")
        };
        let log = EmbeddedLog::open(&env, config).unwrap();
        sim.block_on(&node, async move {
            let topic = Topic::new("t").unwrap();
            let group = GroupName::new("g").unwrap();
            let hour = Duration::from_secs(3_600);
            let config = TopicConfig {
                retention: Some(hour),
                ..TopicConfig::new(1)
            };
            log.create_topic(&topic, config).await.unwrap();
            let session = log
                .join(Join::new(group.clone(), vec![topic.clone()]))
                .await
                .unwrap();
            let append = || Append::new(topic.clone(), Record::new("x"));
            log.append(vec![append(), append(), append()])
                .await
                .unwrap();
            let (at, fence) = loop {
                if let Happening::Assigned(mine) = session.poll().await.unwrap() {
                    break (mine[0].at.clone(), mine[0].fence);
                }
            };
            let commit = |next| Commit {
                appends: Vec::new(),
                offsets: vec![OffsetCommit {
                    at: at.clone(),
                    fence,
                    next: Offset(next),
                    metadata: String::new(),
                    postings: Vec::new(),
                }],
            };
            env.clock.sleep(hour / 2).await;
            for (next, records, age, ratio) in [(1, 2, hour / 2, 0.5), (3, 0, Duration::ZERO, 0.0)]
            {
                session.commit(commit(next)).await.unwrap();
                let described = log.describe(&topic).await.unwrap();
                let committed = log
                    .committed(&group, std::slice::from_ref(&at))
                    .await
                    .unwrap();
                let committed = committed.into_iter().flatten().next().unwrap();
                let found = lag(&log, &*env.clock, &described, &at, &committed)
                    .await
                    .unwrap();
                assert_eq!(found.records, records);
                assert!(
                    found.age.abs_diff(age) < Duration::from_secs(1),
                    "{found:?}"
                );
                assert!((found.ratio.unwrap() - ratio).abs() < 0.01, "{found:?}");
            }
            look(&log, &*env.clock, None).await.unwrap();
            log.close().await;
        });
    }
}
