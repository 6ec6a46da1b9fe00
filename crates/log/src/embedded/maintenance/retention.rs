//! Retention: which segments may go, and which must not.

use std::collections::VecDeque;
use std::time::Duration;

use super::Maintenance;
use crate::embedded::change::{LogChange, PartitionKey};
use crate::embedded::chunk::Chunk;
use crate::embedded::segment::Segment;
use crate::embedded::tally::{PartitionSnapshot, removed};
use crate::error::LogError;
use crate::record::TopicPartition;

/// The facts that decide how much of a partition goes.
#[derive(Debug)]
struct Facts<'a> {
    segments: &'a [Segment],
    /// Chunks that are in no segment yet, and their bytes.
    unflushed: &'a VecDeque<Chunk>,
    unflushed_bytes: u64,
    /// Whether the disk has no room: then what is in no segment yet can go as well.
    is_full: bool,
    start: i64,
    /// No group needs anything before this.
    needed_from: i64,
    retention: Option<Duration>,
    retention_bytes: Option<u64>,
    now_ms: u64,
}

/// Decides where a partition starts from now on: whole segments go, oldest first, while they are
/// too old or too much, nothing is added to them, and no group needs them. On a disk without room
/// also one that is added to goes, and then chunks that are in no segment, while they are too much.
fn new_start(facts: &Facts<'_>) -> i64 {
    let in_segments: u64 = facts.segments.iter().map(|segment| segment.len).sum();
    let mut bytes = in_segments + facts.unflushed_bytes;
    let mut start = facts.start;
    for segment in facts.segments {
        let is_old = facts
            .retention
            .is_some_and(|kept| is_older(segment.max_ms, kept, facts.now_ms));
        let is_much = facts
            .retention_bytes
            .is_some_and(|kept| bytes - segment.len >= kept);
        let is_needed = segment.end > facts.needed_from;
        let may_go = segment.is_sealed || (is_much && facts.is_full);
        if !(is_old || is_much) || is_needed || !may_go {
            return start;
        }
        bytes -= segment.len;
        start = start.max(segment.end);
    }
    let (true, Some(kept)) = (facts.is_full, facts.retention_bytes) else {
        return start;
    };
    for chunk in facts.unflushed {
        bytes -= chunk.bytes.len() as u64;
        if bytes < kept || chunk.head.end() > facts.needed_from {
            return start;
        }
        start = chunk.head.end();
    }
    start
}

fn is_older(ms: u64, kept: Duration, now_ms: u64) -> bool {
    let kept = u64::try_from(kept.as_millis()).unwrap_or(u64::MAX);
    ms.saturating_add(kept) < now_ms
}

/// Whether the last segment should take nothing more, so that it can go in its time: a topic that
/// is written to slowly would otherwise keep its first record for as long as its last one.
fn is_to_seal(last: &Segment, retention: Option<Duration>, now_ms: u64) -> bool {
    let Some(kept) = retention else {
        return false;
    };
    let is_begun = !last.is_empty() && !last.is_sealed;
    is_begun && (is_older(last.first_ms, kept / 4, now_ms) || is_older(last.max_ms, kept, now_ms))
}

impl Maintenance {
    /// The next removal that retention asks for: of one partition at a time. On a disk without room
    /// it does not wait for records to be in segments.
    pub(in crate::embedded) fn retention(
        &mut self,
        is_full: bool,
    ) -> Result<Option<LogChange>, LogError> {
        let now_ms = self.context.clock.now_ms();
        let found = {
            let mut state = self.context.state();
            state.seal_segments(|config, last| is_to_seal(last, config.retention, now_ms));
            state.all().find_map(|(key, partition)| {
                let topic = state.topics.get(key.0 as usize)?;
                if topic.is_removed {
                    let to = partition.end.min(state.needed_from(key));
                    return (to > partition.start).then_some((key, to));
                }
                let config = &topic.config;
                let start = new_start(&Facts {
                    segments: &partition.segments,
                    unflushed: &partition.unflushed,
                    unflushed_bytes: partition.unflushed_bytes,
                    is_full,
                    start: partition.start,
                    needed_from: state.needed_from(key),
                    retention: config.retention,
                    retention_bytes: config.retention_bytes,
                    now_ms,
                });
                (start > partition.start).then_some((key, start))
            })
        };
        found.map_or(Ok(None), |(key, to)| self.removal(key, to))
    }

    /// The removal that somebody asked for: everything before `offset`, as far as nobody needs it.
    /// None if nothing is to be removed.
    pub(in crate::embedded) fn delete_before(
        &mut self,
        at: &TopicPartition,
        offset: i64,
    ) -> Result<Option<LogChange>, LogError> {
        let found = {
            let state = self.context.state();
            state.find(at).map(|key| (key, state.needed_from(key)))
        };
        found.map_or(Ok(None), |(key, needed)| {
            self.removal(key, offset.min(needed))
        })
    }

    /// The removal of everything before `to`; none if nothing is before it.
    fn removal(&self, at: PartitionKey, to: i64) -> Result<Option<LogChange>, LogError> {
        let snapshot = PartitionSnapshot::of(&self.context.state(), at);
        let Some(snapshot) = snapshot else {
            return Ok(None);
        };
        let to = to.min(snapshot.end);
        if to <= snapshot.start {
            return Ok(None);
        }
        let minutes = snapshot.minutes(&self.context, (snapshot.start, to))?;
        Ok(Some(LogChange::Start {
            at,
            start: to,
            removed: removed(&minutes),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::chunk::Head;

    fn segment(base: i64, len: u64, max_ms: u64) -> Segment {
        Segment {
            end: base + 10,
            len,
            first_ms: max_ms,
            max_ms,
            is_sealed: true,
            ..Segment::new(base, 0)
        }
    }

    #[test]
    fn whole_segments_go_oldest_first_while_nobody_needs_them() {
        let mut segments = vec![
            segment(0, 100, 1_000),
            segment(10, 100, 2_000),
            segment(20, 100, 3_000),
            segment(30, 100, 4_000),
        ];
        segments[3].is_sealed = false;
        let check = |age: Option<u64>, bytes: Option<u64>, needed_from: i64, expect: i64| {
            let start = new_start(&Facts {
                segments: &segments,
                unflushed: &VecDeque::new(),
                unflushed_bytes: 0,
                is_full: false,
                start: 0,
                needed_from,
                retention: age.map(Duration::from_millis),
                retention_bytes: bytes,
                now_ms: 5_000,
            });
            assert_eq!(start, expect, "{age:?} {bytes:?} {needed_from}");
        };
        check(None, None, i64::MAX, 0);
        check(Some(2_500), None, i64::MAX, 20);
        check(Some(2_500), None, 19, 10);
        check(Some(2_500), None, 0, 0);
        check(None, Some(250), i64::MAX, 10);
        check(None, Some(200), i64::MAX, 20);
        check(None, Some(1), i64::MAX, 30);
        check(Some(0), Some(0), i64::MAX, 30);
        check(Some(0), Some(0), 25, 20);
        check(Some(5_000), Some(400), i64::MAX, 0);
    }

    #[test]
    fn records_in_no_segment_count_and_go_where_there_is_no_room() {
        let mut segments = vec![segment(0, 100, 1_000), segment(10, 100, 2_000)];
        segments[1].is_sealed = false;
        let chunk = |base: i64| Chunk {
            head: Head {
                base,
                span: 10,
                ..Head::default()
            },
            bytes: vec![0; 100].into(),
        };
        let unflushed: VecDeque<Chunk> = [20, 30, 40].map(chunk).into();
        let check = |is_full, bytes, needed_from, expect| {
            let start = new_start(&Facts {
                segments: &segments,
                unflushed: &unflushed,
                unflushed_bytes: 300,
                is_full,
                start: 0,
                needed_from,
                retention: None,
                retention_bytes: bytes,
                now_ms: 5_000,
            });
            assert_eq!(start, expect, "{is_full} {bytes:?} {needed_from}");
        };
        check(false, Some(500), i64::MAX, 0);
        check(false, Some(400), i64::MAX, 10);
        check(false, Some(100), i64::MAX, 10);
        check(true, Some(400), i64::MAX, 10);
        check(true, Some(300), i64::MAX, 20);
        check(true, Some(299), i64::MAX, 20);
        check(true, Some(100), i64::MAX, 40);
        check(true, Some(100), 35, 30);
        check(true, Some(100), 40, 40);
        check(true, Some(100), 19, 10);
        check(true, Some(0), i64::MAX, 50);
        check(true, None, i64::MAX, 0);
    }
}
