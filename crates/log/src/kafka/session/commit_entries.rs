//! The entries of a commit, decided against what is held.

use std::collections::BTreeMap;

use rdkafka::TopicPartitionList;
use rdkafka::error::KafkaError;
use tidegate_core::Offset;

use crate::commit_order::{self, CommitTicket};
use crate::error::LogError;
use crate::kafka::books::{self, GroupBooks};
use crate::kafka::groups::FoundOffset;
use crate::port::OffsetCommit;
use crate::record::TopicPartition;

use super::session_state::{OwnedPartition, SessionState};

/// The entry of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CommitEntry {
    pub(super) next: Offset,
    pub(super) books: GroupBooks,
    /// The metadata of the caller.
    pub(super) metadata: String,
}

/// The entries of one request, by partition.
pub(super) type CommitEntries = BTreeMap<TopicPartition, CommitEntry>;

/// The entries that were committed before a request, by partition; none where nothing was.
pub(super) type Before = BTreeMap<TopicPartition, Option<CommitEntry>>;

/// The outcome of a request that had no answer, as far as the committed offsets tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommitEvidence {
    /// They are what it wrote, and were not before.
    Done,
    /// They are what they were before, and not what it wrote.
    Undone,
    /// They would look the same either way, or are somebody else's.
    Unknown,
}

/// Partitions whose end must be looked up before these offsets can be judged, and those whose last
/// commit had no known outcome.
pub(super) fn to_ask(state: &SessionState, offsets: &[OffsetCommit]) -> Vec<TopicPartition> {
    let needs = |offset: &&OffsetCommit| {
        state
            .held
            .get(&offset.at)
            .is_some_and(|held| held.outcome_unknown || offset.next > held.seen)
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
    state: &SessionState,
    entries: &mut CommitEntries,
    offsets: &[OffsetCommit],
    tickets: &[(TopicPartition, CommitTicket)],
) -> Result<(), LogError> {
    let is_fenced = |offset: &&OffsetCommit| {
        let held = state.held.get(&offset.at);
        held.is_none_or(|held| held.fence != offset.fence)
    };
    if let Some(fenced) = offsets.iter().find(is_fenced) {
        return Err(LogError::Fenced {
            at: fenced.at.clone(),
        });
    }
    commit_order::check(tickets)?;
    let mut added = BTreeMap::new();
    for offset in offsets {
        let at = &offset.at;
        let held = state.held.get(at).filter(|held| held.fence == offset.fence);
        let Some(held) = held else {
            return Err(LogError::Fenced { at: at.clone() });
        };
        let earlier = added.get(at).or_else(|| entries.get(at));
        let committed = earlier
            .map(|entry: &CommitEntry| entry.next)
            .or(held.committed);
        if let Some(committed) = committed
            && offset.next < committed
        {
            return Err(LogError::OffsetRegressed {
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
        let before = earlier.map_or(&held.books, |entry| &entry.books).clone();
        let entry = CommitEntry {
            next: offset.next,
            books: before.after(&offset.postings),
            metadata: offset.metadata.clone(),
        };
        added.insert(at.clone(), entry);
    }
    entries.extend(added);
    Ok(())
}

/// The committed entries of the partitions of a request that is about to be made.
pub(super) fn before(state: &SessionState, entries: &CommitEntries) -> Before {
    let image = |held: &OwnedPartition| {
        Some(CommitEntry {
            next: held.committed?,
            books: held.books.clone(),
            metadata: held.metadata.clone(),
        })
    };
    entries
        .keys()
        .map(|at| (at.clone(), state.held.get(at).and_then(image)))
        .collect()
}

/// The outcome of a transaction by the committed offsets, in the order of the entries. It is all or
/// none, so one partition that tells is enough if no other one speaks against it.
pub(super) fn trace(
    before: &Before,
    entries: &CommitEntries,
    found: &[FoundOffset],
) -> CommitEvidence {
    let mut told = None;
    if found.len() != entries.len() {
        return CommitEvidence::Unknown;
    }
    for ((at, entry), found) in entries.iter().zip(found) {
        let before = before.get(at).and_then(Option::as_ref);
        let is_entry = is_there(Some(entry), found);
        let is_before = is_there(before, found);
        let tells = match (is_entry, is_before) {
            (true, false) => CommitEvidence::Done,
            (false, true) => CommitEvidence::Undone,
            (true, true) => continue,
            (false, false) => return CommitEvidence::Unknown,
        };
        if told.replace(tells).is_some_and(|other| other != tells) {
            return CommitEvidence::Unknown;
        }
    }
    told.unwrap_or(CommitEvidence::Unknown)
}

/// Whether what was found is this.
fn is_there(entry: Option<&CommitEntry>, found: &FoundOffset) -> bool {
    match (entry, found) {
        (None, None) => true,
        (Some(entry), Some((books, committed))) => {
            committed.next == entry.next
                && committed.metadata == entry.metadata
                // Without books they begin at the offset.
                && match books {
                    Some(books) => *books == entry.books,
                    None => GroupBooks::begin(committed.next) == entry.books,
                }
        }
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// Notes what was found for a partition whose last request had no answer. `sent` is what that request
/// wrote, if it is to be made again. Returns whether that is not needed because it was done.
///
/// Otherwise what is held stays as it was before the request, so that the next one writes the same: if
/// the first one arrives late after all, its postings are still counted once.
pub(super) fn learn(
    held: &mut OwnedPartition,
    sent: Option<&CommitEntry>,
    found: FoundOffset,
) -> bool {
    if !held.outcome_unknown {
        return false;
    }
    held.outcome_unknown = false;
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

/// The entries of a request, in the client's form.
pub(super) fn list(entries: &CommitEntries) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::with_capacity(entries.len());
    for (at, entry) in entries {
        let mut element = list.add_partition(at.topic.as_str(), at.partition.0);
        element.set_offset(rdkafka::Offset::Offset(entry.next.0))?;
        element.set_metadata(books::write(&entry.books, &entry.metadata));
    }
    Ok(list)
}

/// Notes that a request was done.
pub(super) fn done(state: &mut SessionState, entries: &CommitEntries) {
    for (at, entry) in entries {
        if let Some(held) = state.held.get_mut(at) {
            held.committed = Some(entry.next);
            held.books.clone_from(&entry.books);
            held.metadata.clone_from(&entry.metadata);
            held.outcome_unknown = false;
        }
    }
}

/// Notes that the outcome of a request is unknown.
pub(super) fn outcome_unknown(state: &mut SessionState, entries: &CommitEntries) {
    for at in entries.keys() {
        if let Some(held) = state.held.get_mut(at) {
            held.outcome_unknown = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::session::session_state::PartitionStart;
    use crate::port::{Committed, Fence};
    use std::time::Duration;
    use tidegate_core::books::{Place, postings};
    use tidegate_core::{EventId, Topic};

    fn at(partition: i32) -> TopicPartition {
        TopicPartition::new(Topic::new("t").unwrap(), partition)
    }

    fn state() -> SessionState {
        let mut state = SessionState::default();
        let begin = |partition, next| PartitionStart {
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
        state.assign(begins, Duration::ZERO);
        for held in state.held.values_mut() {
            held.seen = Offset(100);
        }
        state
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
        let state = state();
        for (offset, code) in [
            (offset(0, 7, 11), "log.fenced"),
            (offset(5, 1, 11), "log.fenced"),
            (offset(0, 1, 9), "log.offset-regressed"),
            (offset(0, 1, 101), "log.out-of-range"),
        ] {
            let mut entries = CommitEntries::new();
            // The good one beside it is not written either.
            let both = [self::offset(1, 2, 21), offset];
            let error = add(&state, &mut entries, &both, &[]).unwrap_err();
            assert_eq!(error.code().to_string(), code);
            assert!(entries.is_empty());
        }
    }

    #[test]
    fn a_request_takes_several_commits_and_the_last_one_stands() {
        let mut state = state();
        let mut entries = CommitEntries::new();
        add(&state, &mut entries, &[offset(0, 1, 12)], &[]).unwrap();
        add(
            &state,
            &mut entries,
            &[offset(0, 1, 15), offset(1, 2, 20)],
            &[],
        )
        .unwrap();
        let back = add(&state, &mut entries, &[offset(0, 1, 14)], &[]).unwrap_err();
        assert!(matches!(back, LogError::OffsetRegressed { .. }));
        assert_eq!(entries[&at(0)].next, Offset(15));
        done(&mut state, &entries);
        assert_eq!(state.held[&at(0)].committed, Some(Offset(15)));
    }

    #[test]
    fn entries_behind_a_commit_that_failed_are_not_added() {
        let state = state();
        let partition = &state.held[&at(0)].ticket;
        let tickets = || vec![(at(0), partition.next())];
        let (first, second) = (tickets(), tickets());
        let mut entries = CommitEntries::new();
        let behind = add(&state, &mut entries, &[offset(0, 1, 101)], &first).unwrap_err();
        commit_order::fail(&first);
        let refused = add(&state, &mut entries, &[offset(0, 1, 12)], &second).unwrap_err();
        assert!(
            matches!(refused, LogError::PrecedingCommitFailed { .. }),
            "{refused}"
        );
        assert!(entries.is_empty());
        // Being somebody else's says more.
        let fenced = add(&state, &mut entries, &[offset(0, 7, 12)], &second).unwrap_err();
        assert!(matches!(fenced, LogError::Fenced { .. }), "{fenced}");
        let early = add(&state, &mut entries, &[offset(0, 1, 12)], &tickets()).unwrap_err();
        assert!(
            matches!(early, LogError::PrecedingCommitFailed { .. }),
            "{early}"
        );
        commit_order::CommitTickets::new(first).acknowledge::<()>(&Err(behind));
        add(&state, &mut entries, &[offset(0, 1, 12)], &tickets()).unwrap();
    }

    fn entry(next: i64, count: u64) -> CommitEntry {
        CommitEntry {
            next: Offset(next),
            books: GroupBooks {
                count,
                ..GroupBooks::begin(Offset(0))
            },
            metadata: String::new(),
        }
    }

    fn found(entry: &CommitEntry) -> FoundOffset {
        let committed = Committed {
            next: entry.next,
            metadata: entry.metadata.clone(),
        };
        Some((Some(entry.books.clone()), committed))
    }

    #[test]
    fn committed_offsets_tell_of_a_transaction_only_what_they_can() {
        let (old, new, other) = (entry(5, 5), entry(7, 7), entry(9, 9));
        let noted = CommitEntry {
            metadata: "note".to_owned(),
            ..old.clone()
        };
        let (was, is) = (Some(&old), Some(&new));
        // For each partition: before, what was written, what is found; then what that tells.
        type Row<'a> = (
            Option<&'a CommitEntry>,
            &'a CommitEntry,
            Option<&'a CommitEntry>,
        );
        let rows: [(Vec<Row<'_>>, CommitEvidence); 13] = [
            (vec![(was, &new, is)], CommitEvidence::Done),
            (vec![(None, &new, is)], CommitEvidence::Done),
            (vec![(was, &new, was)], CommitEvidence::Undone),
            (vec![(None, &new, None)], CommitEvidence::Undone),
            (vec![(was, &noted, Some(&noted))], CommitEvidence::Done),
            (vec![(was, &noted, was)], CommitEvidence::Undone),
            // It would not have changed anything, so it is unknown.
            (vec![(was, &old, was)], CommitEvidence::Unknown),
            (vec![], CommitEvidence::Unknown),
            // Somebody went on from it, or from what was before.
            (vec![(was, &new, Some(&other))], CommitEvidence::Unknown),
            (vec![(was, &new, None)], CommitEvidence::Unknown),
            // One that tells is enough, unless another one speaks against it.
            (
                vec![(was, &old, was), (was, &new, is)],
                CommitEvidence::Done,
            ),
            (
                vec![(was, &new, is), (was, &new, was)],
                CommitEvidence::Unknown,
            ),
            (
                vec![(was, &new, is), (was, &new, Some(&other))],
                CommitEvidence::Unknown,
            ),
        ];
        for (row, expected) in rows {
            let (mut before, mut entries, mut answer) =
                (Before::new(), CommitEntries::new(), vec![]);
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
        let mut state = state();
        let mut first = CommitEntries::new();
        add(&state, &mut first, &[commit()], &[]).unwrap();
        let was = before(&state, &first)[&at(0)].clone().unwrap();
        let sent = &first[&at(0)];
        assert_eq!((was.books.count, sent.books.count), (0, 2));
        // Not there yet, or something that is neither: the same is written again.
        for answer in [found(&was), None, found(&entry(11, 40))] {
            outcome_unknown(&mut state, &first);
            let held = state.held.get_mut(&at(0)).unwrap();
            assert!(!learn(held, Some(sent), answer));
            assert!(!held.outcome_unknown);
            let mut again = CommitEntries::new();
            add(&state, &mut again, &[commit()], &[]).unwrap();
            assert_eq!(again, first);
        }
        // There: nothing is left to write.
        outcome_unknown(&mut state, &first);
        let held = state.held.get_mut(&at(0)).unwrap();
        assert!(learn(held, Some(sent), found(sent)));
        assert_eq!(before(&state, &first)[&at(0)].as_ref(), Some(sent));
        // Another commit goes on from whatever is there.
        outcome_unknown(&mut state, &first);
        let held = state.held.get_mut(&at(0)).unwrap();
        assert!(!learn(held, None, found(&entry(15, 5))));
        assert_eq!(before(&state, &first)[&at(0)], Some(entry(15, 5)));
    }

    #[test]
    fn unknown_offsets_are_asked_for() {
        let mut state = state();
        assert!(to_ask(&state, &[offset(0, 1, 100), offset(1, 2, 30)]).is_empty());
        assert_eq!(to_ask(&state, &[offset(0, 1, 101)]), [at(0)]);
        outcome_unknown(
            &mut state,
            &CommitEntries::from([(
                at(1),
                CommitEntry {
                    next: Offset(30),
                    books: GroupBooks::begin(Offset(20)),
                    metadata: String::new(),
                },
            )]),
        );
        assert_eq!(to_ask(&state, &[offset(1, 2, 30)]), [at(1)]);
    }
}
