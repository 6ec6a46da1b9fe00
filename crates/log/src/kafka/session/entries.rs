//! What a commit writes for each partition, decided against what is held.

use std::collections::BTreeMap;

use rdkafka::TopicPartitionList;
use rdkafka::error::KafkaError;
use tidegate_core::Offset;

use crate::error::LogError;
use crate::kafka::books::{self, GroupBooks};
use crate::kafka::groups::Found;
use crate::port::OffsetCommit;
use crate::record::TopicPartition;
use crate::turn::{self, Turn};

use super::desk::{Desk, Held};

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

/// What was committed before a request, for each partition it writes; none where nothing was.
pub(super) type Before = BTreeMap<TopicPartition, Option<Entry>>;

/// What became of a request that had no answer, as far as the committed offsets tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trace {
    /// They are what it wrote, and were not before.
    Done,
    /// They are what they were before, and not what it wrote.
    Undone,
    /// They would look the same either way, or are somebody else's.
    Unknown,
}

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
    turns: &[(TopicPartition, Turn)],
) -> Result<(), LogError> {
    let is_fenced = |offset: &&OffsetCommit| {
        let held = desk.held.get(&offset.at);
        held.is_none_or(|held| held.fence != offset.fence)
    };
    if let Some(fenced) = offsets.iter().find(is_fenced) {
        return Err(LogError::Fenced {
            at: fenced.at.clone(),
        });
    }
    turn::check(turns)?;
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
        offset.check_metadata()?;
        let before = earlier.map_or(held.books, |entry| entry.books);
        let entry = Entry {
            next: offset.next,
            books: before.after(&offset.postings),
            metadata: offset.metadata.clone(),
        };
        added.insert(at.clone(), entry);
    }
    entries.extend(added);
    Ok(())
}

/// What is committed for the partitions of a request that is about to be made.
pub(super) fn before(desk: &Desk, entries: &Entries) -> Before {
    let image = |held: &Held| {
        Some(Entry {
            next: held.committed?,
            books: held.books,
            metadata: held.metadata.clone(),
        })
    };
    entries
        .keys()
        .map(|at| (at.clone(), desk.held.get(at).and_then(image)))
        .collect()
}

/// What the committed offsets, in the order of the entries, tell about a transaction. It is all or
/// none, so one partition that tells is enough if no other one speaks against it.
pub(super) fn trace(before: &Before, entries: &Entries, found: &[Found]) -> Trace {
    let mut told = None;
    if found.len() != entries.len() {
        return Trace::Unknown;
    }
    for ((at, entry), found) in entries.iter().zip(found) {
        let before = before.get(at).and_then(Option::as_ref);
        let is_entry = is_there(Some(entry), found);
        let is_before = is_there(before, found);
        let tells = match (is_entry, is_before) {
            (true, false) => Trace::Done,
            (false, true) => Trace::Undone,
            (true, true) => continue,
            (false, false) => return Trace::Unknown,
        };
        if told.replace(tells).is_some_and(|other| other != tells) {
            return Trace::Unknown;
        }
    }
    told.unwrap_or(Trace::Unknown)
}

/// Whether what was found is this.
fn is_there(entry: Option<&Entry>, found: &Found) -> bool {
    match (entry, found) {
        (None, None) => true,
        (Some(entry), Some((books, committed))) => {
            committed.next == entry.next
                && committed.metadata == entry.metadata
                // Without books they begin at the offset.
                && books.unwrap_or(GroupBooks::begin(committed.next)) == entry.books
        }
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// Notes what was found for a partition whose last request had no answer. `sent` is what that request
/// wrote, if it is to be made again. Returns whether that is not needed because it was done.
///
/// Otherwise what is held stays as it was before the request, so that the next one writes the same: if
/// the first one arrives late after all, its postings are still counted once.
pub(super) fn learn(held: &mut Held, sent: Option<&Entry>, found: Found) -> bool {
    if !held.unsure {
        return false;
    }
    held.unsure = false;
    if sent.is_some_and(|_| !is_there(sent, &found)) {
        return false;
    }
    if let Some((books, committed)) = found {
        held.books = books.unwrap_or(GroupBooks::begin(committed.next));
        held.committed = Some(committed.next);
        held.metadata = committed.metadata;
    }
    sent.is_some()
}

/// What a request writes, in the client's form.
pub(super) fn list(entries: &Entries) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::with_capacity(entries.len());
    for (at, entry) in entries {
        let mut element = list.add_partition(at.topic.as_str(), at.partition.0);
        element.set_offset(rdkafka::Offset::Offset(entry.next.0))?;
        element.set_metadata(books::write(entry.books, &entry.metadata));
    }
    Ok(list)
}

/// Notes that a request was done.
pub(super) fn done(desk: &mut Desk, entries: &Entries) {
    for (at, entry) in entries {
        if let Some(held) = desk.held.get_mut(at) {
            held.committed = Some(entry.next);
            held.books = entry.books;
            held.metadata.clone_from(&entry.metadata);
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
    use tidegate_core::books::{Place, postings};
    use tidegate_core::{EventId, Topic};

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
            let error = add(&desk, &mut entries, &both, &[]).unwrap_err();
            assert_eq!(error.code().to_string(), code);
            assert!(entries.is_empty());
        }
    }

    #[test]
    fn a_request_takes_several_commits_and_the_last_one_stands() {
        let mut desk = desk();
        let mut entries = Entries::new();
        add(&desk, &mut entries, &[offset(0, 1, 12)], &[]).unwrap();
        add(
            &desk,
            &mut entries,
            &[offset(0, 1, 15), offset(1, 2, 20)],
            &[],
        )
        .unwrap();
        let back = add(&desk, &mut entries, &[offset(0, 1, 14)], &[]).unwrap_err();
        assert!(matches!(back, LogError::WentBack { .. }));
        assert_eq!(entries[&at(0)].next, Offset(15));
        done(&mut desk, &entries);
        assert_eq!(desk.held[&at(0)].committed, Some(Offset(15)));
    }

    #[test]
    fn what_follows_a_commit_that_failed_is_not_added() {
        let desk = desk();
        let partition = &desk.held[&at(0)].turn;
        let turns = || vec![(at(0), partition.next())];
        let (first, second) = (turns(), turns());
        let mut entries = Entries::new();
        let behind = add(&desk, &mut entries, &[offset(0, 1, 101)], &first).unwrap_err();
        turn::fail(&first);
        let refused = add(&desk, &mut entries, &[offset(0, 1, 12)], &second).unwrap_err();
        assert!(matches!(refused, LogError::OutOfTurn { .. }), "{refused}");
        assert!(entries.is_empty());
        // Being somebody else's says more.
        let fenced = add(&desk, &mut entries, &[offset(0, 7, 12)], &second).unwrap_err();
        assert!(matches!(fenced, LogError::Fenced { .. }), "{fenced}");
        let early = add(&desk, &mut entries, &[offset(0, 1, 12)], &turns()).unwrap_err();
        assert!(matches!(early, LogError::OutOfTurn { .. }), "{early}");
        turn::Turns::new(first).told::<()>(&Err(behind));
        add(&desk, &mut entries, &[offset(0, 1, 12)], &turns()).unwrap();
    }

    fn entry(next: i64, count: u64) -> Entry {
        Entry {
            next: Offset(next),
            books: GroupBooks {
                count,
                ..GroupBooks::begin(Offset(0))
            },
            metadata: String::new(),
        }
    }

    fn found(entry: &Entry) -> Found {
        let committed = Committed {
            next: entry.next,
            metadata: entry.metadata.clone(),
        };
        Some((Some(entry.books), committed))
    }

    #[test]
    fn committed_offsets_tell_of_a_transaction_only_what_they_can() {
        let (old, new, other) = (entry(5, 5), entry(7, 7), entry(9, 9));
        let noted = Entry {
            metadata: "note".to_owned(),
            ..old.clone()
        };
        let (was, is) = (Some(&old), Some(&new));
        // For each partition: before, what was written, what is found; then what that tells.
        type Row<'a> = (Option<&'a Entry>, &'a Entry, Option<&'a Entry>);
        let rows: [(Vec<Row<'_>>, Trace); 13] = [
            (vec![(was, &new, is)], Trace::Done),
            (vec![(None, &new, is)], Trace::Done),
            (vec![(was, &new, was)], Trace::Undone),
            (vec![(None, &new, None)], Trace::Undone),
            (vec![(was, &noted, Some(&noted))], Trace::Done),
            (vec![(was, &noted, was)], Trace::Undone),
            // It would not have changed anything, so nobody can tell.
            (vec![(was, &old, was)], Trace::Unknown),
            (vec![], Trace::Unknown),
            // Somebody went on from it, or from what was before.
            (vec![(was, &new, Some(&other))], Trace::Unknown),
            (vec![(was, &new, None)], Trace::Unknown),
            // One that tells is enough, unless another one speaks against it.
            (vec![(was, &old, was), (was, &new, is)], Trace::Done),
            (vec![(was, &new, is), (was, &new, was)], Trace::Unknown),
            (
                vec![(was, &new, is), (was, &new, Some(&other))],
                Trace::Unknown,
            ),
        ];
        for (row, expected) in rows {
            let (mut before, mut entries, mut answer) = (Before::new(), Entries::new(), vec![]);
            for (partition, (was, written, is)) in (0..).zip(&row) {
                before.insert(at(partition), was.cloned());
                entries.insert(at(partition), (*written).clone());
                answer.push(is.and_then(found));
            }
            assert_eq!(trace(&before, &entries, &answer), expected, "{row:?}");
        }
    }

    #[test]
    fn a_request_made_again_counts_its_postings_once() {
        let commit = || OffsetCommit {
            postings: postings(
                [EventId::from_u128(4), EventId::from_u128(5)],
                Some(Place::InFlight),
                Some(Place::Delivered),
            ),
            ..offset(0, 1, 12)
        };
        let mut desk = desk();
        let mut first = Entries::new();
        add(&desk, &mut first, &[commit()], &[]).unwrap();
        let was = before(&desk, &first)[&at(0)].clone().unwrap();
        let sent = &first[&at(0)];
        assert_eq!((was.books.count, sent.books.count), (0, 2));
        // Not there yet, or something that is neither: the same is written again.
        for answer in [found(&was), None, found(&entry(11, 40))] {
            unsure(&mut desk, &first);
            let held = desk.held.get_mut(&at(0)).unwrap();
            assert!(!learn(held, Some(sent), answer));
            assert!(!held.unsure);
            let mut again = Entries::new();
            add(&desk, &mut again, &[commit()], &[]).unwrap();
            assert_eq!(again, first);
        }
        // There: nothing is left to write.
        unsure(&mut desk, &first);
        let held = desk.held.get_mut(&at(0)).unwrap();
        assert!(learn(held, Some(sent), found(sent)));
        assert_eq!(before(&desk, &first)[&at(0)].as_ref(), Some(sent));
        // Another commit goes on from whatever is there.
        unsure(&mut desk, &first);
        let held = desk.held.get_mut(&at(0)).unwrap();
        assert!(!learn(held, None, found(&entry(15, 5))));
        assert_eq!(before(&desk, &first)[&at(0)], Some(entry(15, 5)));
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
