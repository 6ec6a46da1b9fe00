//! Records on their way to a tier or to the dead letters: the history that their headers carry.
//!
//! **Invariant:** key, value and the headers of others are passed on untouched, and the origin is written
//! once. Headers of ours are written anew by each hop, so that they do not grow with the number of hops.

use tidegate_core::dead_letter::{Header, LastFailure, Reason, RecordOrigin, TierFailure, name};
use tidegate_core::{DeadLetter, EventId, Failure, GroupName, Offset, Partition, TierIndex, Topic};
use tidegate_log::{Headers, Record, StoredRecord, TopicPartition};

use crate::ladder::Rung;
use crate::planted_bugs::{PlantedBug, is};

/// The history of a record before this delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RetryHistory {
    pub(crate) origin: RecordOrigin,
    pub(crate) rung: Rung,
    /// Attempts before this delivery.
    pub(crate) attempts: u32,
    pub(crate) first_failure_ms: Option<u64>,
    /// When it was handed to its tier.
    pub(crate) handed_ms: Option<u64>,
    pub(crate) trail: Vec<TierFailure>,
    pub(crate) replays: u32,
    /// The group that handed it to its tier, as text.
    pub(crate) group: Option<String>,
}

impl RetryHistory {
    /// Reads the history of a record that lies in the main topic (tier 0) or in the topic of a tier.
    ///
    /// Anybody can write headers, so what cannot be read is as if it was not there: the record begins anew
    /// where it lies.
    pub(crate) fn read(at: &TopicPartition, stored: &StoredRecord, tier: TierIndex) -> Self {
        let headers = &stored.record.headers;
        let here = RecordOrigin {
            topic: at.topic.clone(),
            partition: at.partition,
            offset: stored.offset,
            timestamp_ms: i64::try_from(stored.record.timestamp_ms).unwrap_or(i64::MAX),
        };
        let replays = number(headers, name::REPLAY_COUNT).unwrap_or(0);
        if tier.0 == 0 {
            let origin = origin(headers).filter(|origin| origin.topic == at.topic);
            return Self {
                origin: origin.unwrap_or(here),
                rung: Rung::MAIN,
                attempts: 0,
                first_failure_ms: None,
                handed_ms: None,
                trail: Vec::new(),
                replays,
                group: None,
            };
        }
        let trail = TierFailure::read_all(&to_list(headers)).unwrap_or_default();
        Self {
            origin: origin(headers).unwrap_or(here),
            rung: Rung {
                tier,
                delivery: number(headers, name::RETRY_ATTEMPT).unwrap_or(1).max(1),
            },
            attempts: number(headers, name::TOTAL_ATTEMPTS).unwrap_or(0),
            first_failure_ms: number(headers, name::FIRST_FAILURE_TIMESTAMP),
            handed_ms: number(headers, name::RETRY_TIMESTAMP),
            trail,
            replays,
            group: text(headers, name::GROUP).map(str::to_owned),
        }
    }

    /// Adds what happened in this delivery: so many attempts, the last one with this failure.
    pub(crate) fn fail(&mut self, attempts: u32, failure: &Failure, now_ms: u64) {
        self.attempts = self.attempts.saturating_add(attempts);
        self.first_failure_ms.get_or_insert(now_ms);
        let tier = self.rung.tier;
        match self.trail.iter_mut().find(|seen| seen.tier == tier) {
            Some(seen) => {
                seen.attempts = seen.attempts.saturating_add(attempts);
                seen.code = failure.code.clone();
                seen.exhausted_at_ms = now_ms;
            }
            None => self.trail.push(TierFailure {
                tier,
                code: failure.code.clone(),
                exhausted_at_ms: now_ms,
                attempts,
            }),
        }
    }

    /// The record for a rung of the ladder.
    pub(crate) fn to_tier(
        &self,
        record: &Record,
        event_id: EventId,
        rung: Rung,
        group: &GroupName,
        now_ms: u64,
    ) -> Record {
        let mut headers = foreign(&record.headers);
        let mut add = |name: &str, value: String| headers.push(Header::text(name, value));
        add(name::EVENT_ID, event_id.to_string());
        add(name::ORIGINAL_TOPIC, self.origin.topic.to_string());
        add(name::ORIGINAL_PARTITION, self.origin.partition.to_string());
        add(name::ORIGINAL_OFFSET, self.origin.offset.to_string());
        add(
            name::ORIGINAL_TIMESTAMP,
            self.origin.timestamp_ms.to_string(),
        );
        add(name::RETRY_TIER, rung.tier.to_string());
        add(name::RETRY_ATTEMPT, rung.delivery.to_string());
        add(name::RETRY_TIMESTAMP, now_ms.to_string());
        add(name::TOTAL_ATTEMPTS, self.attempts.to_string());
        let first = self.first_failure_ms.unwrap_or(now_ms);
        add(name::FIRST_FAILURE_TIMESTAMP, first.to_string());
        if self.replays > 0 {
            add(name::REPLAY_COUNT, self.replays.to_string());
        }
        add(name::GROUP, group.to_string());
        headers.extend(self.trail.iter().flat_map(TierFailure::to_headers));
        let mut record = with_headers(record, &headers);
        if is(PlantedBug::EmptiedTombstone) {
            record.value.get_or_insert_default();
        }
        record
    }

    /// The record for the dead letter topic.
    pub(crate) fn to_dead_letter(
        &self,
        record: &Record,
        event_id: EventId,
        reason: Reason,
        failure: LastFailure,
        group: &GroupName,
        now_ms: u64,
    ) -> Record {
        let letter = DeadLetter {
            event_id,
            origin: self.origin.clone(),
            key: None,
            value: None,
            headers: foreign(&record.headers),
            reason,
            dead_at_ms: now_ms,
            attempts: self.attempts,
            first_failure_ms: self.first_failure_ms.unwrap_or(now_ms),
            failure,
            tier: self.rung.tier,
            trail: self.trail.clone(),
            replays: self.replays,
            group: Some(group.clone()),
            stage: None,
        };
        with_headers(record, &letter.to_headers())
    }
}

/// A record with other headers. Its own time stands in a header of ours: by the time of the hop a broker
/// tells how long the copy is kept.
fn with_headers(record: &Record, headers: &[Header]) -> Record {
    let mut written = Headers::default();
    for header in headers {
        written.push(&header.name, header.value.as_deref());
    }
    Record {
        key: record.key.clone(),
        value: record.value.clone(),
        headers: written,
        timestamp_ms: 0,
    }
}

/// The headers of others, untouched and in their order.
fn foreign(headers: &Headers) -> Vec<Header> {
    let all = to_list(headers).into_iter();
    all.filter(|header| !name::is_ours(&header.name)).collect()
}

pub(crate) fn to_list(headers: &Headers) -> Vec<Header> {
    let all = headers.iter().map(|(name, value)| Header {
        name: name.to_owned(),
        value: value.map(bytes::Bytes::copy_from_slice),
    });
    all.collect()
}

/// The same record with as few headers of ours as anybody can work with, for a topic that takes no more.
pub(crate) fn shrunk(record: &Record) -> Record {
    let is_kept = |header: &Header| {
        let of_trail = header.name.starts_with(name::TIER_PREFIX) && name::is_ours(&header.name);
        !of_trail
    };
    let headers = to_list(&record.headers)
        .into_iter()
        .filter(is_kept)
        .map(|header| match header.name.as_str() {
            name::LAST_EXCEPTION_MESSAGE | name::LAST_EXCEPTION_STACKTRACE => {
                Header::text(header.name, "")
            }
            _ => header,
        });
    let headers: Vec<Header> = headers.collect();
    with_headers(record, &headers)
}

/// The last commit of a group at a partition, in short: its offset, and a checksum of its text.
pub(crate) fn commit_state(committed: Option<&(i64, String)>) -> String {
    match committed {
        Some((next, text)) => format!("{next}.{:08x}", crc32c::crc32c(text.as_bytes())),
        None => "-".to_owned(),
    }
}

/// A record for a tier or the dead letters that names what it is a copy of: the record at this offset, handed off
/// before the commit that follows `state`.
pub(crate) fn as_copy(record: &Record, of: &TopicPartition, offset: i64, state: &str) -> Record {
    let mut copy = record.clone();
    let value = format!("{of}@{offset}@{state}");
    copy.headers.push(name::COPY_OF, Some(value.as_bytes()));
    copy
}

/// The name of a copy that this group made: another record of that name was written by the same hand-off.
pub(crate) fn copy_name(record: &Record, group: &GroupName) -> Option<String> {
    let headers = &record.headers;
    let of = text(headers, name::COPY_OF).filter(|_| is_of(headers, group))?;
    let at = text(headers, name::RETRY_TIMESTAMP).or(text(headers, name::DLT_TIMESTAMP))?;
    Some(format!("{of}@{at}"))
}

/// The offset of the record in this partition that a copy was made of, before the commit that follows `state`.
pub(crate) fn source_of(
    record: &Record,
    group: &GroupName,
    of: &TopicPartition,
    state: &str,
) -> Option<i64> {
    let headers = &record.headers;
    let value = text(headers, name::COPY_OF).filter(|_| is_of(headers, group))?;
    let (source, after) = value.rsplit_once('@')?;
    let (at, offset) = source.rsplit_once('@')?;
    let is_it = after == state && at == of.to_string();
    is_it.then(|| offset.parse().ok()).flatten()
}

fn is_of(headers: &Headers, group: &GroupName) -> bool {
    text(headers, name::GROUP) == Some(group.as_str())
}

/// A checksum over key and value.
pub(crate) fn content_sum(record: &Record) -> u32 {
    [&record.key, &record.value].iter().fold(0, |sum, part| {
        let sum = crc32c::crc32c_append(sum, &[u8::from(part.is_some())]);
        crc32c::crc32c_append(sum, part.as_deref().unwrap_or_default())
    })
}

fn text<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    std::str::from_utf8(headers.get(name)?).ok()
}

fn number<N: std::str::FromStr>(headers: &Headers, name: &str) -> Option<N> {
    text(headers, name)?.parse().ok()
}

fn origin(headers: &Headers) -> Option<RecordOrigin> {
    Some(RecordOrigin {
        topic: Topic::new(text(headers, name::ORIGINAL_TOPIC)?).ok()?,
        partition: Partition(number(headers, name::ORIGINAL_PARTITION)?),
        offset: Offset(number(headers, name::ORIGINAL_OFFSET)?),
        timestamp_ms: number(headers, name::ORIGINAL_TIMESTAMP)?,
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tidegate_core::Code;

    use super::*;
    use crate::ladder::Ladder;

    fn at(topic: &str) -> TopicPartition {
        TopicPartition::new(Topic::new(topic).unwrap(), 3)
    }

    fn stored(offset: i64, record: Record) -> StoredRecord {
        StoredRecord {
            offset: Offset(offset),
            record,
        }
    }

    #[test]
    fn c26_c27_c28_c29_thirty_attempts_keep_origin_trail_and_bytes() {
        let group = GroupName::new("g").unwrap();
        let id = EventId::from_u128(7);
        let ladder = Ladder(vec![3, 3, 3]);
        let mut record = Record::tombstone().key("k").timestamp_ms(5);
        record.headers.push("x-other", Some(b"\xff"));
        record.headers.push("traceparent", Some(b"00-1-2-01"));
        record.headers.push("empty", None);
        let mut lies = stored(14_209, record);
        let mut place = at("orders");
        let mut rung = Rung::MAIN;
        let mut sizes = Vec::new();
        let mut now = 1_000;
        loop {
            let mut history = RetryHistory::read(&place, &lies, rung.tier);
            assert_eq!(history.rung, rung);
            let code = Code::new(format!("timeout.t{}", rung.tier)).unwrap();
            history.fail(3, &Failure::transient(code, "no answer"), now);
            let Some(next) = ladder.after(rung) else {
                let failure = LastFailure {
                    code: Code::from_static("timeout.t3"),
                    message: "m".repeat(9_000),
                    stack: "s".repeat(9_000),
                };
                let letter = history.to_dead_letter(
                    &lies.record,
                    id,
                    Reason::RetriesExhausted,
                    failure,
                    &group,
                    now,
                );
                assert!(letter.size() < 5_000, "{}", letter.size());
                let headers = to_list(&letter.headers);
                let letter = DeadLetter::from_record(letter.key, letter.value, &headers).unwrap();
                assert_eq!((letter.attempts, letter.value.clone()), (30, None));
                assert_eq!(letter.origin.topic.as_str(), "orders");
                assert_eq!(
                    (letter.origin.offset, letter.origin.timestamp_ms),
                    (Offset(14_209), 5)
                );
                let others: Vec<_> = letter
                    .headers
                    .iter()
                    .map(|h| (h.name.as_str(), h.value.clone()))
                    .collect();
                assert_eq!(
                    others,
                    [
                        ("x-other", Some(Bytes::from_static(b"\xff"))),
                        ("traceparent", Some(Bytes::from_static(b"00-1-2-01"))),
                        ("empty", None),
                    ]
                );
                let trail: Vec<_> = letter
                    .trail
                    .iter()
                    .map(|seen| {
                        (
                            seen.tier.0,
                            seen.code.to_string(),
                            seen.attempts,
                            seen.exhausted_at_ms,
                        )
                    })
                    .collect();
                assert_eq!(
                    trail,
                    [
                        (0, "timeout.t0".to_owned(), 3, 1_000),
                        (1, "timeout.t1".to_owned(), 9, 1_003),
                        (2, "timeout.t2".to_owned(), 9, 1_006),
                        (3, "timeout.t3".to_owned(), 9, 1_009),
                    ]
                );
                assert_eq!((letter.first_failure_ms, letter.tier.0), (1_000, 3));
                break;
            };
            let hop = history.to_tier(&lies.record, id, next, &group, now);
            sizes.push(hop.size());
            place = at(&format!("orders.retry-{}", next.tier));
            lies = stored(1, hop);
            rung = next;
            now += 1;
        }
        assert_eq!(sizes.len(), 9);
        assert!(sizes.iter().all(|size| *size < 2_000), "{sizes:?}");
    }

    #[test]
    fn c24_a_copy_names_its_record_and_the_commit_before_it() {
        let (group, other) = (GroupName::new("g").unwrap(), GroupName::new("h").unwrap());
        let lies = stored(7, Record::new("v").key("k"));
        let mut history = RetryHistory::read(&at("orders"), &lies, TierIndex(0));
        let code = Code::from_static("timeout.read");
        history.fail(1, &Failure::transient(code, ""), 1_000);
        let id = EventId::from_u128(7);
        let (none, some) = (None, Some((7, "tg1.AA.00000000".to_owned())));
        let rung = Ladder(vec![1]).after(Rung::MAIN).unwrap();
        let hop = history.to_tier(&lies.record, id, rung, &group, 1_000);
        for held in [none, some] {
            let state = commit_state(held.as_ref());
            let copy = as_copy(&hop, &at("orders"), 7, &state);
            let source =
                |of: &TopicPartition, group, state: &str| source_of(&copy, group, of, state);
            assert_eq!(source(&at("orders"), &group, &state), Some(7));
            assert_eq!(source(&at("orders"), &other, &state), None);
            assert_eq!(source(&at("others"), &group, &state), None);
            let later = commit_state(Some(&(7, String::new())));
            assert_eq!(source(&at("orders"), &group, &later), None);
            let again = history.to_tier(&lies.record, id, rung, &group, 1_001);
            let again = as_copy(&again, &at("orders"), 7, &state);
            assert_eq!(copy_name(&copy, &group), copy_name(&copy.clone(), &group));
            assert_ne!(copy_name(&copy, &group), copy_name(&again, &group));
            assert_eq!(copy_name(&copy, &other), None);
            assert_eq!(content_sum(&copy), content_sum(&lies.record));
            // The next hop names its own record.
            let passed = stored(3, copy);
            let history = RetryHistory::read(&at("orders.retry-1"), &passed, TierIndex(1));
            let hop = history.to_tier(&passed.record, id, rung, &group, 1_002);
            assert_eq!(hop.headers.get(name::COPY_OF), None);
        }
        let (empty, tombstone) = (Record::new(""), Record::tombstone());
        assert_ne!(content_sum(&empty), content_sum(&tombstone));
    }

    #[test]
    fn hostile_headers_are_as_if_they_were_not_there() {
        let record = Record::new("v")
            .header(name::RETRY_ATTEMPT, "0")
            .header(name::TOTAL_ATTEMPTS, "many")
            .header(name::ORIGINAL_TOPIC, "a b")
            .header("x-eventbus-tier1-exception", "e");
        let history = RetryHistory::read(&at("orders.retry-1"), &stored(9, record), TierIndex(1));
        assert_eq!((history.rung.delivery, history.attempts), (1, 0));
        assert_eq!(history.origin.topic.as_str(), "orders.retry-1");
        assert_eq!(history.trail, []);
        let mut full = history;
        full.attempts = u32::MAX;
        full.fail(3, &Failure::transient(Code::from_static("a"), ""), 1);
        assert_eq!(full.attempts, u32::MAX);
    }

    #[test]
    fn a_record_for_a_small_topic_keeps_what_is_needed() {
        let group = GroupName::new("g").unwrap();
        let lies = stored(1, Record::new("v").header("x-other", "o"));
        let mut history = RetryHistory::read(&at("orders"), &lies, TierIndex(0));
        history.fail(
            3,
            &Failure::transient(Code::from_static("timeout.read"), ""),
            1,
        );
        let failure = LastFailure {
            code: Code::from_static("timeout.read"),
            message: "m".repeat(500),
            stack: "s".repeat(2_000),
        };
        let id = EventId::from_u128(7);
        let reason = Reason::RetriesExhausted;
        let letter = history.to_dead_letter(&lies.record, id, reason, failure, &group, 1);
        let small = shrunk(&letter);
        assert!(small.size() + 2_500 < letter.size());
        let headers = to_list(&small.headers);
        let read = DeadLetter::from_record(small.key, small.value, &headers).unwrap();
        assert_eq!(
            (read.attempts, read.trail.len(), read.headers.len()),
            (3, 0, 1)
        );
    }
}
