//! What a commit writes for each partition, decided against what is held.

use std::collections::BTreeMap;

use tidegate_core::Offset;

use crate::error::LogError;
use crate::kafka::books::{self, GroupBooks};
use crate::port::OffsetCommit;
use crate::record::TopicPartition;

use super::desk::Desk;

/// What is written for one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) next: Offset,
    pub(super) books: GroupBooks,
    /// What the caller wrote.
    pub(super) metadata: String,
}

/// What one request writes, by partition.
pub(super) type Entries = BTreeMap<TopicPartition, Entry>;

/// Partitions whose end must be looked up before these offsets can be judged, and those whose last
/// commit had no known outcome.
pub(super) fn to_ask(desk: &Desk, offsets: &[OffsetCommit]) -> Vec<TopicPartition> {
    let needs = |offset: &&OffsetCommit| {
        desk.held
            .get(&offset.at)
            .is_some_and(|held| held.unsure || offset.next > held.seen)
    };
    let mut asked: Vec<_> = offsets
        .iter()
        .filter(needs)
        .map(|offset| offset.at.clone())
        .collect();
    asked.dedup();
    asked
}

/// Adds offsets to what a request writes, behind those that are in it already. All of them or, with
/// an error, none.
pub(super) fn add(
    desk: &Desk,
    entries: &mut Entries,
    offsets: &[OffsetCommit],
) -> Result<(), LogError> {
    let mut added = BTreeMap::new();
    for offset in offsets {
        let at = &offset.at;
        let held = desk.held.get(at).filter(|held| held.fence == offset.fence);
        let Some(held) = held else {
            return Err(LogError::Fenced { at: at.clone() });
        };
        let earlier = added.get(at).or_else(|| entries.get(at));
        let committed = earlier.map(|entry: &Entry| entry.next).or(held.committed);
        if let Some(committed) = committed
            && offset.next < committed
        {
            return Err(LogError::WentBack {
                at: at.clone(),
                next: offset.next,
                committed,
            });
        }
        if offset.next > held.seen || offset.next < Offset(0) {
            return Err(LogError::OutOfRange {
                at: at.clone(),
                asked: offset.next,
                start: Offset(0),
                end: held.seen,
            });
        }
        books::check_metadata(at, &offset.metadata)?;
        let before = earlier.map_or(held.books, |entry| entry.books);
        let from = committed.unwrap_or(held.begin);
        let entry = Entry {
            next: offset.next,
            books: before.after(from, offset.next, &offset.postings),
            metadata: offset.metadata.clone(),
        };
        added.insert(at.clone(), entry);
    }
    entries.extend(added);
    Ok(())
}

/// Notes that a request was done.
pub(super) fn done(desk: &mut Desk, entries: &Entries) {
    for (at, entry) in entries {
        if let Some(held) = desk.held.get_mut(at) {
            held.committed = Some(entry.next);
            held.books = entry.books;
            held.unsure = false;
        }
    }
}

/// Notes that nobody knows whether a request was done.
pub(super) fn unsure(desk: &mut Desk, entries: &Entries) {
    for at in entries.keys() {
        if let Some(held) = desk.held.get_mut(at) {
            held.unsure = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::session::desk::Begin;
    use crate::port::{Committed, Fence};
    use std::time::Duration;
    use tidegate_core::Topic;

    fn at(partition: i32) -> TopicPartition {
        TopicPartition::new(Topic::new("t").unwrap(), partition)
    }

    fn desk() -> Desk {
        let mut desk = Desk::default();
        let begin = |partition, next| Begin {
            at: at(partition),
            committed: Some(Committed {
                next: Offset(next),
                metadata: String::new(),
            }),
            books: GroupBooks::begin(Offset(next)),
            position: Offset(next),
            stopped: None,
        };
        let begins = vec![(Fence(1), begin(0, 10)), (Fence(2), begin(1, 20))];
        desk.assign(begins, Duration::ZERO);
        for held in desk.held.values_mut() {
            held.seen = Offset(100);
        }
        desk
    }

    fn offset(partition: i32, fence: u64, next: i64) -> OffsetCommit {
        OffsetCommit {
            at: at(partition),
            fence: Fence(fence),
            next: Offset(next),
            metadata: String::new(),
            postings: Vec::new(),
        }
    }

    #[test]
    fn an_old_fence_a_step_back_and_an_offset_behind_the_end_are_refused() {
        let desk = desk();
        for (offset, code) in [
            (offset(0, 7, 11), "log.fenced"),
            (offset(5, 1, 11), "log.fenced"),
            (offset(0, 1, 9), "log.went-back"),
            (offset(0, 1, 101), "log.out-of-range"),
        ] {
            let mut entries = Entries::new();
            // The good one beside it is not written either.
            let both = [self::offset(1, 2, 21), offset];
            let error = add(&desk, &mut entries, &both).unwrap_err();
            assert_eq!(error.code().to_string(), code);
            assert!(entries.is_empty());
        }
    }

    #[test]
    fn a_request_takes_several_commits_and_the_last_one_stands() {
        let mut desk = desk();
        let mut entries = Entries::new();
        add(&desk, &mut entries, &[offset(0, 1, 12)]).unwrap();
        add(&desk, &mut entries, &[offset(0, 1, 15), offset(1, 2, 20)]).unwrap();
        let back = add(&desk, &mut entries, &[offset(0, 1, 14)]).unwrap_err();
        assert!(matches!(back, LogError::WentBack { .. }));
        assert_eq!(entries[&at(0)].next, Offset(15));
        done(&mut desk, &entries);
        assert_eq!(desk.held[&at(0)].committed, Some(Offset(15)));
    }

    #[test]
    fn what_is_not_known_is_asked_for() {
        let mut desk = desk();
        assert!(to_ask(&desk, &[offset(0, 1, 100), offset(1, 2, 30)]).is_empty());
        assert_eq!(to_ask(&desk, &[offset(0, 1, 101)]), [at(0)]);
        unsure(
            &mut desk,
            &Entries::from([(
                at(1),
                Entry {
                    next: Offset(30),
                    books: GroupBooks::begin(Offset(20)),
                    metadata: String::new(),
                },
            )]),
        );
        assert_eq!(to_ask(&desk, &[offset(1, 2, 30)]), [at(1)]);
    }
}
