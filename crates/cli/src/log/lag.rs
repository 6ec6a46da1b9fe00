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
        let (found, errors) = look(&*log, &*clock, scope.as_ref()).await;
        for (group, at, lag) in found {
            set(&group, &at, lag);
        }
        for error in errors {
            tracing::debug!(%error, "the lag of a group could not be read");
        }
        clock.sleep(EVERY).await;
    }
}

/// What can be read, and why the rest cannot: one partition that is not readable says nothing about the
/// others.
async fn look(
    log: &dyn Log,
    clock: &dyn Clock,
    scope: Option<&Scope>,
) -> (Vec<(GroupName, TopicPartition, Lag)>, Vec<LogError>) {
    let (mut lags, mut errors) = (Vec::new(), Vec::new());
    let scope = match scope {
        Some(scope) => Ok(scope.clone()),
        None => everything(log).await,
    };
    let Scope { topics, groups } = scope.unwrap_or_else(|error| {
        errors.push(error);
        Scope::default()
    });
    for topic in &topics {
        let described = match log.describe(topic).await {
            Ok(described) => described,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        let partitions: Vec<TopicPartition> = described
            .partitions
            .iter()
            .map(|found| TopicPartition::new(topic.clone(), found.partition.0))
            .collect();
        for group in &groups {
            let committed = match log.committed(group, &partitions).await {
                Ok(committed) => committed,
                Err(error) => {
                    errors.push(error);
                    continue;
                }
            };
            for (at, committed) in partitions.iter().zip(committed) {
                let Some(committed) = committed else {
                    continue;
                };
                match lag(log, clock, &described, at, &committed).await {
                    Ok(lag) => lags.push((group.clone(), at.clone(), lag)),
                    Err(error) => errors.push(error),
                }
            }
        }
    }
    (lags, errors)
}

async fn everything(log: &dyn Log) -> Result<Scope, LogError> {
    Ok(Scope {
        topics: log.topics().await?,
        groups: log.groups().await?,
    })
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
    let (mut age, mut is_gone) = (Duration::ZERO, false);
    if records > 0 {
        let one = |from| Read {
            max_records: 1,
            ..Read::new(at.clone(), from)
        };
        let batch = match log.read(one(committed.next)).await {
            Err(LogError::OutOfRange { start, .. }) if start > committed.next => {
                is_gone = true;
                log.read(one(start)).await?
            }
            batch => batch?,
        };
        age = batch.records.first().map_or(age, |oldest| {
            let born = oldest.record.timestamp_ms;
            Duration::from_millis(clock.now_ms().saturating_sub(born))
        });
    }
    Ok(Lag {
        records,
        age,
        ratio: ratio(age, described.config.retention, is_gone),
    })
}

/// The age as a share of the retention, if there is one. At least all of it once records are gone that
/// the group has not read.
fn ratio(age: Duration, retention: Option<Duration>, is_gone: bool) -> Option<f64> {
    let share = retention.map(|retention| age.as_secs_f64() / retention.as_secs_f64());
    match is_gone {
        true => Some(share.unwrap_or(1.0).max(1.0)),
        false => share,
    }
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
    fn records_that_are_gone_unread_count_as_all_of_the_retention() {
        let hour = Duration::from_secs(3_600);
        for (age, retention, is_gone, expected) in [
            (hour / 4, Some(hour), false, Some(0.25)),
            (hour / 4, Some(hour), true, Some(1.0)),
            (hour * 2, Some(hour), true, Some(2.0)),
            (hour, None, false, None),
            (hour, None, true, Some(1.0)),
        ] {
            assert_eq!(ratio(age, retention, is_gone), expected);
        }
    }

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
            let (found, errors) = look(&log, &*env.clock, None).await;
            assert!(errors.is_empty(), "{errors:?}");
            assert_eq!(found.len(), 1);
            // A topic that cannot be looked at does not silence the one behind it.
            let scope = Scope {
                topics: vec![Topic::new("missing").unwrap(), topic],
                groups: vec![group],
            };
            let (found, errors) = look(&log, &*env.clock, Some(&scope)).await;
            assert_eq!((found.len(), errors.len()), (1, 1), "{errors:?}");
            log.close().await;
        });
    }
}
