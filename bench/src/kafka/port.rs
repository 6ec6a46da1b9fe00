//! Through the port.

use std::collections::VecDeque;
use std::time::Instant;

use tidegate_core::Offset;
use tidegate_log::kafka::KafkaLog;
use tidegate_log::{
    Append, Commit, Fence, Join, Log, OffsetCommit, Record, Session, SessionEvent, TopicPartition,
};
use tokio::task::JoinHandle;

use super::{
    COMMITS, Outcome, PARTITIONS, PER_CALL, PER_COMMIT, Place, RECORDS, micros, rate_since, told,
    value,
};

/// Calls that are on their way at once: 13 MB of what a log lets be on its way.
const AT_ONCE: usize = 64;

fn append(place: &Place, number: usize) -> Append {
    let partition = i32::try_from(number % PARTITIONS as usize).unwrap_or(0);
    Append::new(place.topic.clone(), Record::new(value(number))).partition(partition)
}

pub(super) async fn produce(log: &KafkaLog, place: &Place) -> Outcome<()> {
    let mut under_way: VecDeque<JoinHandle<Outcome<()>>> = VecDeque::new();
    let ended = |joined: Result<Outcome<()>, tokio::task::JoinError>| joined.map_err(told)?;
    for call in 0..RECORDS / PER_CALL {
        let numbers = call * PER_CALL..(call + 1) * PER_CALL;
        let appends = numbers.map(|number| append(place, number)).collect();
        let log = log.clone();
        // One task per call, as callers of a log are.
        under_way.push_back(tokio::spawn(async move {
            log.append(appends).await.map(drop).map_err(told)
        }));
        if under_way.len() >= AT_ONCE
            && let Some(first) = under_way.pop_front()
        {
            ended(first.await)?;
        }
    }
    for call in under_way {
        ended(call.await)?;
    }
    Ok(())
}

/// Reads everything, timed from the first record: joining is the group's time, not the client's.
pub(super) async fn consume(log: &KafkaLog, place: &Place) -> Outcome<f64> {
    let join = Join {
        max_poll_records: 5_000,
        ..Join::new(place.group.clone(), vec![place.topic.clone()])
    };
    let session = log.join(join).await.map_err(told)?;
    let mut begin = None;
    let mut left = RECORDS;
    while left > 0 {
        if let SessionEvent::Records { batch, .. } = session.poll().await.map_err(told)? {
            begin.get_or_insert_with(Instant::now);
            left = left.saturating_sub(batch.records.len());
        }
    }
    let rate = rate_since(begin);
    session.close().await.map_err(told)?;
    Ok(rate)
}

pub(super) async fn commits(log: &KafkaLog, place: &Place) -> Outcome<Vec<u32>> {
    let total = COMMITS * PER_COMMIT;
    for call in 0..total / PER_CALL + 1 {
        let numbers = call * PER_CALL..(call + 1) * PER_CALL;
        let at_first = |number| append(place, number).partition(0);
        log.append(numbers.map(at_first).collect())
            .await
            .map_err(told)?;
    }
    let at = TopicPartition::new(place.topic.clone(), 0);
    let join = Join::new(place.group.clone(), vec![place.topic.clone()]);
    let session = log.join(join).await.map_err(told)?;
    let fence = fence(&*session, &at).await?;
    let mut samples = Vec::new();
    for commit in 0..=COMMITS {
        let appends = (0..PER_COMMIT)
            .map(|number| append(place, number * 4 + 1))
            .collect();
        let next = Offset(i64::try_from(commit * PER_COMMIT).unwrap_or(i64::MAX));
        let offset = OffsetCommit {
            at: at.clone(),
            fence,
            next,
            metadata: String::new(),
            postings: Vec::new(),
        };
        let commit = Commit {
            appends,
            offsets: vec![offset],
        };
        let begin = Instant::now();
        session.commit(commit).await.map_err(told)?;
        // The first one makes the producer, which the bare client has made before.
        if next.0 > 0 {
            samples.push(micros(begin));
        }
    }
    session.close().await.map_err(told)?;
    Ok(samples)
}

async fn fence(session: &dyn Session, at: &TopicPartition) -> Outcome<Fence> {
    loop {
        if let SessionEvent::Assigned(all) = session.poll().await.map_err(told)?
            && let Some(ours) = all.iter().find(|one| one.at == *at)
        {
            return Ok(ours.fence);
        }
    }
}
