//! How far groups are behind, as gauges.

use std::time::Duration;

use metrics::{describe_gauge, gauge};
use tidegate_core::env::Clock;
use tidegate_core::{GroupName, Offset};

use super::find::Readers;
use super::{LogScope, OpenLog};
use crate::error::LogError;
use crate::port::{Committed, Log, Read};
use crate::record::TopicPartition;
use crate::topic::TopicDescription;

/// How often the gauges are set.
const EVERY: Duration = Duration::from_secs(5);

const RECORDS: &str = "tidegate_log_lag_records";
const SECONDS: &str = "tidegate_log_lag_seconds";
const RATIO: &str = "tidegate_log_unread_age_ratio";

/// Sets the gauges of the groups and topics that are looked at, again and again.
pub(super) async fn watch(opened: &OpenLog, clock: &dyn Clock) {
    let (log, scope) = (opened.log(), opened.scope());
    describe_gauge!(RECORDS, "Records that a group has still to read.");
    describe_gauge!(
        SECONDS,
        "Age of the oldest record that a group has still to read."
    );
    describe_gauge!(RATIO, "That age as a share of the topic's retention.");
    loop {
        let readers = opened.readers();
        let (found, errors) = look(&*log, clock, scope.as_ref(), &readers).await;
        for (group, at, lag) in found {
            set(&group, &at, lag);
        }
        for error in errors {
            tracing::debug!(%error, "the lag of a group could not be read");
        }
        clock.sleep(EVERY).await;
    }
}

/// The lags that can be read, and why the rest cannot: one partition that is not readable says nothing about the
/// others.
pub(super) async fn look(
    log: &dyn Log,
    clock: &dyn Clock,
    scope: Option<&LogScope>,
    readers: &Readers,
) -> (Vec<(GroupName, TopicPartition, GroupLag)>, Vec<LogError>) {
    let (mut lags, mut errors) = (Vec::new(), Vec::new());
    let scope = match scope {
        Some(scope) => Ok(scope.clone()),
        None => everything(log).await,
    };
    let LogScope { topics, groups, .. } = scope.unwrap_or_else(|error| {
        errors.push(error);
        LogScope::default()
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
            let known = readers.get(&(topic.clone(), group.clone()));
            let begins = known.map(|reader| &reader.begins[..]);
            let reads = positions(&described, &committed, begins);
            for (at, next) in partitions.iter().zip(reads) {
                match lag(log, clock, &described, at, next).await {
                    Ok(lag) => lags.push((group.clone(), at.clone(), lag)),
                    Err(error) => errors.push(error),
                }
            }
        }
    }
    (lags, errors)
}

/// Where a group stands in each partition of a topic; nothing if it does not read it, as far as anybody
/// knows. Without a committed offset it stands where it began or, if only the log knows that it reads the
/// topic, at the first record.
fn positions(
    described: &TopicDescription,
    committed: &[Option<Committed>],
    begins: Option<&[Offset]>,
) -> Vec<Offset> {
    if begins.is_none() && committed.iter().all(Option::is_none) {
        return Vec::new();
    }
    let stands = committed.iter().zip(&described.partitions).zip(0..);
    stands
        .map(|((committed, there), index)| {
            let begin = begins.and_then(|begins| begins.get::<usize>(index).copied());
            let next = committed.as_ref().map(|committed| committed.next);
            next.or(begin).unwrap_or(there.start)
        })
        .collect()
}

async fn everything(log: &dyn Log) -> Result<LogScope, LogError> {
    Ok(LogScope {
        topics: log.topics().await?,
        groups: log.groups().await?,
        ..LogScope::default()
    })
}

/// How far a group is behind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GroupLag {
    pub(super) records: i64,
    pub(super) age: Duration,
    /// Of the retention, if there is one.
    ratio: Option<f64>,
}

async fn lag(
    log: &dyn Log,
    clock: &dyn Clock,
    described: &TopicDescription,
    at: &TopicPartition,
    next: Offset,
) -> Result<GroupLag, LogError> {
    let mut ends = described.partitions.iter();
    let end = ends.find(|found| found.partition == at.partition);
    let end = end.map_or(next, |found| found.end);
    let mut records = (end.0 - next.0).max(0);
    let (mut age, mut is_gone) = (Duration::ZERO, false);
    if records > 0 {
        let one = |from| Read {
            max_records: 1,
            ..Read::new(at.clone(), from)
        };
        let batch = match log.read(one(next)).await {
            Err(LogError::OutOfRange { start, .. }) if start > next => {
                is_gone = true;
                log.read(one(start)).await?
            }
            batch => batch?,
        };
        // Offsets in front of the first record hold no record: the end of a transaction, for instance.
        // Behind it such holes are counted.
        records = 0;
        if let Some(oldest) = batch.records.first() {
            records = (end.0 - oldest.offset.0).max(1);
            let born = oldest.record.timestamp_ms;
            age = Duration::from_millis(clock.now_ms().saturating_sub(born));
        }
    }
    Ok(GroupLag {
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

fn set(group: &GroupName, at: &TopicPartition, lag: GroupLag) {
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
    use crate::{
        Append, Commit, EmbeddedConfig, EmbeddedLog, Join, OffsetCommit, PartitionDescription,
        Record, SessionEvent, TopicConfig,
    };
    use tidegate_core::{Offset, Partition, Topic};
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
    fn a_group_that_has_committed_nothing_stands_where_it_began() {
        let described = TopicDescription {
            topic: Topic::new("t").unwrap(),
            config: TopicConfig::new(2),
            partitions: [(0, 2), (1, 3)]
                .map(|(number, start)| PartitionDescription {
                    partition: Partition(number),
                    start: Offset(start),
                    end: Offset(9),
                })
                .to_vec(),
        };
        let done = Some(Committed {
            next: Offset(5),
            metadata: String::new(),
        });
        let begins = [Offset(4), Offset(6)];
        // The committed offsets, where the group is known to have begun; where it stands.
        for (committed, begins, expected) in [
            ([None, None], None, vec![]),
            ([None, None], Some(&begins[..]), vec![4, 6]),
            // A binding says that it reads the topic, and it is unknown where it began.
            ([None, None], Some(&begins[..0]), vec![2, 3]),
            ([done.clone(), None], None, vec![5, 3]),
            ([done, None], Some(&begins[..]), vec![5, 6]),
        ] {
            let found = positions(&described, &committed, begins);
            let expected: Vec<Offset> = expected.into_iter().map(Offset).collect();
            assert_eq!(found, expected, "{committed:?} {begins:?}");
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
                if let SessionEvent::Assigned(mine) = session.poll().await.unwrap() {
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
                let found = lag(&log, &*env.clock, &described, &at, committed.next)
                    .await
                    .unwrap();
                assert_eq!(found.records, records);
                assert!(
                    found.age.abs_diff(age) < Duration::from_secs(1),
                    "{found:?}"
                );
                assert!((found.ratio.unwrap() - ratio).abs() < 0.01, "{found:?}");
            }
            let opened = OpenLog::Embedded {
                log: log.clone(),
                owned: Vec::new(),
            };
            let (found, errors) = look(&log, &*env.clock, None, &opened.readers()).await;
            assert!(errors.is_empty(), "{errors:?}");
            assert_eq!(found.len(), 1);
            // One that reads and never settles anything is behind by all there is.
            let idle = GroupName::new("idle").unwrap();
            let _session = log.join(Join::new(idle.clone(), vec![topic.clone()])).await;
            let (found, _) = look(&log, &*env.clock, None, &opened.readers()).await;
            let behind = found.iter().find(|(group, ..)| *group == idle);
            let (.., behind) = behind.expect("it is there");
            assert_eq!(behind.records, 3);
            assert!((behind.ratio.unwrap() - 0.5).abs() < 0.01, "{behind:?}");
            // A topic that cannot be looked at does not silence the one behind it.
            let scope = LogScope {
                topics: vec![Topic::new("missing").unwrap(), topic],
                groups: vec![group],
                ..LogScope::default()
            };
            let readers = Readers::new();
            let (found, errors) = look(&log, &*env.clock, Some(&scope), &readers).await;
            assert_eq!((found.len(), errors.len()), (1, 1), "{errors:?}");
            log.close().await;
        });
    }
}
