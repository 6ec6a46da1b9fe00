//! Where a partition begins for its new owner.

use std::sync::{Mutex, PoisonError};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use tidegate_core::Offset;

use crate::error::LogError;
use crate::kafka::books::GroupBooks;
use crate::kafka::catalog::{BrokerQuery, watermarks};
use crate::kafka::client_context::KafkaClientContext;
use crate::kafka::groups::{self, FoundOffset};
use crate::port::{Committed, StartAt};
use crate::record::TopicPartition;

use super::commit_entries::{self, CommitEntries, CommitEntry};
use super::member::GroupMember;
use super::session_state::PartitionStart;

/// A partition's beginning, and where its client is to be put.
#[derive(Debug)]
pub(super) struct StartOffset {
    pub(super) begin: PartitionStart,
    /// For a partition that is stopped this is its end, which is always there.
    pub(super) client_at: Offset,
}

/// Whether a look at where to begin is still wanted. The holder of the lock may commit: the partitions
/// are not let go meanwhile.
#[derive(Debug)]
pub(super) struct LookupGuard(Mutex<bool>);

impl LookupGuard {
    pub(super) fn new() -> Self {
        Self(Mutex::new(true))
    }

    /// Nothing is committed from now on. False while something is on its way; ask again then.
    pub(super) fn give_up(&self) -> bool {
        match self.0.try_lock() {
            Ok(mut wanted) => *wanted = false,
            Err(std::sync::TryLockError::Poisoned(wanted)) => *wanted.into_inner() = false,
            Err(std::sync::TryLockError::WouldBlock) => return false,
        }
        true
    }

    /// Does it unless it was given up, and keeps that from happening meanwhile.
    fn then(&self, act: impl FnOnce() -> Result<(), LogError>) -> Result<(), LogError> {
        let wanted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *wanted { act() } else { Ok(()) }
    }
}

/// Asks the group and the partitions where to begin; blocks.
pub(super) fn look_up(
    member: &GroupMember,
    asker: &BaseConsumer<KafkaClientContext>,
    query: &BrokerQuery,
    partitions: &[TopicPartition],
    (start, wanted): (StartAt, &LookupGuard),
) -> Result<Vec<StartOffset>, LogError> {
    let committed = groups::committed(&member.consumer, query, partitions)?;
    let mut starts = partitions
        .iter()
        .zip(committed)
        .map(|(at, committed)| {
            let range = watermarks(asker, query, at)?;
            Ok(decide(at, committed, range, start))
        })
        .collect::<Result<Vec<StartOffset>, LogError>>()?;
    if start == StartAt::Latest {
        wanted.then(|| commit_initial_offsets(member, query, &mut starts))?;
    }
    Ok(starts)
}

/// Commits where a group begins that starts behind the last record: whoever comes next, before
/// anything was settled, would else begin behind what has come since, and skip it.
///
/// Asked once more right before: whatever somebody committed since the first look stays.
fn commit_initial_offsets(
    member: &GroupMember,
    query: &BrokerQuery,
    starts: &mut [StartOffset],
) -> Result<(), LogError> {
    const DOING: &str = "the beginning of a group";
    let is_new = |start: &&StartOffset| start.begin.committed.is_none();
    let new: Vec<TopicPartition> = starts
        .iter()
        .filter(is_new)
        .map(|start| start.begin.at.clone())
        .collect();
    if new.is_empty() {
        return Ok(());
    }
    let now = groups::committed(&member.consumer, query, &new)?;
    let begun = begin_at_end(starts, &now)?;
    commit_entries::list(&begun)
        .and_then(|list| member.consumer.commit(&list, CommitMode::Sync))
        .map_err(|error| query.failed(DOING, None, &error))
}

/// The entries for partitions without a committed offset; `now` has what is committed by now.
///
/// # Errors
/// [`LogError::OffsetRegressed`] if there is anything: then what was looked up before is not true any more.
fn begin_at_end(
    starts: &mut [StartOffset],
    now: &[FoundOffset],
) -> Result<CommitEntries, LogError> {
    let new = starts
        .iter_mut()
        .filter(|start| start.begin.committed.is_none());
    let mut begun = CommitEntries::new();
    for (start, now) in new.zip(now) {
        let entry = CommitEntry {
            next: start.begin.position,
            books: start.begin.books.clone(),
            metadata: String::new(),
        };
        if let Some((_, committed)) = now {
            return Err(LogError::OffsetRegressed {
                at: start.begin.at.clone(),
                next: entry.next,
                committed: committed.next,
            });
        }
        start.begin.committed = Some(Committed {
            next: entry.next,
            metadata: String::new(),
        });
        begun.insert(start.begin.at.clone(), entry);
    }
    Ok(begun)
}

/// Where to begin: at what is committed, without it where the group says. A committed offset that is
/// not there any more is an error, never a jump.
fn decide(
    at: &TopicPartition,
    committed: FoundOffset,
    (first, end): (Offset, Offset),
    start: StartAt,
) -> StartOffset {
    let (books, committed) = match committed {
        Some((books, committed)) => (books, Some(committed)),
        None => (None, None),
    };
    let position = match (&committed, start) {
        (Some(committed), _) => committed.next,
        (None, StartAt::Earliest) => first,
        (None, StartAt::Latest) => end,
        (None, StartAt::Fail) => StartAt::NO_OFFSET,
    };
    let is_there = first <= position && position <= end;
    let stopped = (!is_there).then(|| LogError::OutOfRange {
        at: at.clone(),
        asked: position,
        start: first,
        end,
    });
    // Books whose beginning the broker has removed cannot be verified any more, so they begin anew.
    let books = books.map(|books| books.handed_on(first, position));
    StartOffset {
        begin: PartitionStart {
            at: at.clone(),
            committed,
            books: books.unwrap_or_else(|| GroupBooks::begin(position)),
            position,
            stopped,
        },
        client_at: if is_there { position } else { end },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Topic;

    #[test]
    fn nothing_is_committed_for_a_look_that_was_given_up() {
        let wanted = LookupGuard::new();
        let mut count = 0;
        wanted
            .then(|| {
                assert!(!wanted.give_up(), "it waits for what is on its way");
                count += 1;
                Ok(())
            })
            .unwrap();
        assert!(wanted.give_up());
        wanted
            .then(|| {
                count += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(count, 1);
    }

    #[test]
    fn the_beginning_of_a_group_is_committed_only_where_nothing_is() {
        let start = |number, committed: Option<i64>| {
            let at = TopicPartition::new(Topic::new("t").unwrap(), number);
            let committed = committed.map(|next| {
                let committed = Committed {
                    next: Offset(next),
                    metadata: String::new(),
                };
                (None, committed)
            });
            (
                decide(
                    &at,
                    committed.clone(),
                    (Offset(0), Offset(9)),
                    StartAt::Latest,
                ),
                committed,
            )
        };
        let mut starts = vec![start(0, None).0, start(1, Some(4)).0, start(2, None).0];
        let begun = begin_at_end(&mut starts, &[None, None]).unwrap();
        let next: Vec<_> = begun.values().map(|entry| entry.next).collect();
        assert_eq!(next, [Offset(9), Offset(9)]);
        assert!(starts.iter().all(|start| start.begin.committed.is_some()));
        // Somebody committed meanwhile: it is looked up once more, and nothing is set back.
        let mut starts = vec![start(0, None).0];
        let error = begin_at_end(&mut starts, &[start(0, Some(7)).1]).unwrap_err();
        assert!(matches!(error, LogError::OffsetRegressed { .. }), "{error}");
    }

    #[test]
    fn where_a_partition_begins() {
        let at = TopicPartition::new(Topic::new("t").unwrap(), 0);
        let books = GroupBooks {
            count: 2,
            id_sum: 9,
            earlier: 1,
            ..GroupBooks::begin(Offset(3))
        };
        let committed = |next| {
            let committed = Committed {
                next: Offset(next),
                metadata: String::new(),
            };
            Some((Some(books.clone()), committed))
        };
        // Committed, first and end of the partition, start; position, whether it is there.
        for (found, first, end, start, position, is_there) in [
            (None, 2, 9, StartAt::Earliest, 2, true),
            (None, 2, 9, StartAt::Latest, 9, true),
            (None, 2, 9, StartAt::Fail, -1, false),
            (committed(5), 2, 9, StartAt::Latest, 5, true),
            (committed(9), 2, 9, StartAt::Earliest, 9, true),
            (committed(5), 6, 9, StartAt::Earliest, 5, false),
            (committed(5), 0, 4, StartAt::Earliest, 5, false),
        ] {
            let shown = format!("{found:?} {first}..{end} {start:?}");
            let decided = decide(&at, found, (Offset(first), Offset(end)), start);
            assert_eq!(decided.begin.position, Offset(position), "{shown}");
            assert_eq!(decided.begin.stopped.is_none(), is_there, "{shown}");
            let client_at = if is_there { position } else { end };
            assert_eq!(decided.client_at, Offset(client_at), "{shown}");
        }
        let kept = decide(&at, committed(5), (Offset(3), Offset(9)), StartAt::Earliest);
        assert_eq!(kept.begin.books, books);
        let removed = decide(&at, committed(5), (Offset(4), Offset(9)), StartAt::Earliest);
        let anew = GroupBooks {
            earlier: 3,
            ..GroupBooks::begin(Offset(5))
        };
        assert_eq!(removed.begin.books, anew);
    }
}
