//! Where a partition begins for its new owner.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use tidegate_core::Offset;

use crate::error::LogError;
use crate::kafka::books::GroupBooks;
use crate::kafka::catalog::watermarks;
use crate::kafka::ear::Ear;
use crate::kafka::groups::{self, Found};
use crate::kafka::{KafkaConfig, failure};
use crate::port::{Committed, StartAt};
use crate::record::TopicPartition;

use super::desk::Begin;
use super::entries::{self, Entries, Entry};
use super::member::Member;

/// A partition's beginning, and where its client is to be put.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) begin: Begin,
    /// For a partition that is stopped this is its end, which is always there.
    pub(super) client_at: Offset,
}

/// Whether a look at where to begin is still wanted. Whoever holds it may commit: the partitions are not
/// let go meanwhile.
#[derive(Debug)]
pub(super) struct Wanted(Mutex<bool>);

impl Wanted {
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
    member: &Member,
    asker: &BaseConsumer<Ear>,
    config: &KafkaConfig,
    partitions: &[TopicPartition],
    (start, wanted): (StartAt, &Wanted),
    limit: Duration,
) -> Result<Vec<Start>, LogError> {
    let servers = &config.bootstrap_servers;
    let committed = groups::committed(&member.consumer, servers, partitions, limit)?;
    let mut starts = partitions
        .iter()
        .zip(committed)
        .map(|(at, committed)| {
            let range = watermarks(asker, servers, at, limit)?;
            Ok(decide(at, committed, range, start))
        })
        .collect::<Result<Vec<Start>, LogError>>()?;
    if start == StartAt::Latest {
        wanted.then(|| remember(member, servers, &mut starts))?;
    }
    Ok(starts)
}

/// Commits where a group begins that starts behind the last record: whoever comes next, before
/// anything was settled, would else begin behind what has come since, and skip it.
fn remember(member: &Member, servers: &str, starts: &mut [Start]) -> Result<(), LogError> {
    const DOING: &str = "the beginning of a group";
    let is_new = |start: &&mut Start| start.begin.committed.is_none();
    let mut begun = Entries::new();
    for start in starts.iter_mut().filter(is_new) {
        let entry = Entry {
            next: start.begin.position,
            books: start.begin.books,
            metadata: String::new(),
        };
        start.begin.committed = Some(Committed {
            next: entry.next,
            metadata: String::new(),
        });
        begun.insert(start.begin.at.clone(), entry);
    }
    if begun.is_empty() {
        return Ok(());
    }
    entries::list(&begun)
        .and_then(|list| member.consumer.commit(&list, CommitMode::Sync))
        .map_err(|error| failure::of_question(DOING, servers, None, &error))
}

/// Where to begin: at what is committed, without it where the group says. A committed offset that is
/// not there any more is an error, never a jump.
fn decide(
    at: &TopicPartition,
    committed: Found,
    (first, end): (Offset, Offset),
    start: StartAt,
) -> Start {
    let (books, committed) = match committed {
        Some((books, committed)) => (books, Some(committed)),
        None => (None, None),
    };
    let position = match (&committed, start) {
        (Some(committed), _) => committed.next,
        (None, StartAt::Earliest) => first,
        (None, StartAt::Latest) => end,
        (None, StartAt::Nowhere) => StartAt::NOWHERE,
    };
    let is_there = first <= position && position <= end;
    let stopped = (!is_there).then(|| LogError::OutOfRange {
        at: at.clone(),
        asked: position,
        start: first,
        end,
    });
    // Books whose beginning the broker has removed cannot be verified any more, so they begin anew.
    let books = books.filter(|books| books.base >= first);
    Start {
        begin: Begin {
            at: at.clone(),
            committed,
            books: books.unwrap_or(GroupBooks::begin(position)),
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
        let wanted = Wanted::new();
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
    fn where_a_partition_begins() {
        let at = TopicPartition::new(Topic::new("t").unwrap(), 0);
        let books = GroupBooks {
            base: Offset(3),
            count: 2,
            id_sum: 9,
        };
        let committed = |next| {
            let committed = Committed {
                next: Offset(next),
                metadata: String::new(),
            };
            Some((Some(books), committed))
        };
        // Committed, first and end of the partition, start; position, whether it is there.
        for (found, first, end, start, position, is_there) in [
            (None, 2, 9, StartAt::Earliest, 2, true),
            (None, 2, 9, StartAt::Latest, 9, true),
            (None, 2, 9, StartAt::Nowhere, -1, false),
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
        assert_eq!(removed.begin.books, GroupBooks::begin(Offset(5)));
    }
}
