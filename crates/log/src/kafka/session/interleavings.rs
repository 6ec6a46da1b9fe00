//! The cell, with a poll thread that fills it, a session that empties it and callers that pause, seek and
//! close meanwhile: whatever the order, all records are handed out once and everybody comes to an end.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use tidegate_core::{Offset, Topic};

use super::session_state::{self, PartitionStart, SessionEnd, SessionState};
use crate::error::LogError;
use crate::interleavings::play::play;
use crate::interleavings::sync;
use crate::kafka::books::GroupBooks;
use crate::port::{Fence, SessionEvent};
use crate::record::{Record, StoredRecord, TopicPartition};
use session_cell::SessionCell;

#[path = "session_cell.rs"]
#[allow(dead_code, reason = "the file has more users than this")]
mod session_cell;

/// No time passes, so a limit is never reached, and a full partition is waited for with patience.
const NOW: Duration = Duration::ZERO;
const LIMIT: Duration = Duration::from_millis(20);
const PARTITIONS: i32 = 2;
/// Records of each partition, twice what fits the state.
const RECORDS: i64 = 4;

fn at(partition: i32) -> TopicPartition {
    TopicPartition::new(Topic::new("t").unwrap(), partition)
}

fn assign(state: &mut SessionState) {
    let begins = (0..PARTITIONS).map(|partition| {
        let begin = PartitionStart {
            at: at(partition),
            committed: None,
            books: GroupBooks::begin(Offset(0)),
            position: Offset(0),
            stopped: None,
        };
        (Fence(1), begin)
    });
    state.assign(begins.collect(), NOW);
}

/// Where the client stands in each partition.
type Client = [i64; PARTITIONS as usize];

/// The client hands over the next record of each partition that flows. Returns whether there was one.
fn hand_over(cell: &SessionCell, client: &mut Client, paused: &[TopicPartition]) -> bool {
    let mut has_any = false;
    for (partition, position) in (0..).zip(client.iter_mut()) {
        if *position == RECORDS || paused.contains(&at(partition)) {
            continue;
        }
        has_any = true;
        let stored = StoredRecord {
            offset: Offset(*position),
            record: Record::new("x"),
        };
        *position += 1;
        if cell.with(|state| state.accept(&at(partition), vec![stored], NOW)) {
            cell.tell();
        }
    }
    has_any
}

/// Does what the client's thread does, and rests where there is nothing to do.
fn drive(cell: &SessionCell) {
    let mut client: Client = Default::default();
    let mut paused = Vec::new();
    cell.with(assign);
    cell.tell();
    while !cell.has_ended() {
        let (orders, wakes) = cell.orders(NOW);
        for at in orders.pause {
            cell.with(|state| state.flowing(&at, false, NOW));
            paused.push(at);
        }
        for (at, offset) in orders.resume {
            paused.retain(|other| *other != at);
            client[usize::try_from(at.partition.0).unwrap()] = offset.0;
            cell.with(|state| state.flowing(&at, true, NOW));
        }
        for (at, offset) in orders.seek {
            client[usize::try_from(at.partition.0).unwrap()] = offset.0;
            cell.with(|state| state.sought(&at, offset, NOW));
        }
        let rests = orders.hold || (!hand_over(cell, &mut client, &paused) && !cell.has_ended());
        if rests {
            cell.wait_since(wakes, LIMIT);
        }
    }
}

/// Asks for the next thing; now and then it loses patience and asks anew.
fn next(cell: &SessionCell) -> Result<SessionEvent, LogError> {
    if thread_rng().gen_range(0..2) == 0 {
        let mut asked = Box::pin(cell.handed_out(1));
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(next) = asked.as_mut().poll(&mut context) {
            return next;
        }
    }
    block_on(cell.handed_out(1))
}

/// Takes records until each partition was read to its end, and says in which order they came.
fn take_all(cell: &SessionCell) -> Vec<(i32, i64)> {
    let mut taken = Vec::new();
    let is_last = |taken: &[(i32, i64)], partition| taken.contains(&(partition, RECORDS - 1));
    while !(0..PARTITIONS).all(|partition| is_last(&taken, partition)) {
        match next(cell).unwrap() {
            SessionEvent::Assigned(all) => assert_eq!(all.len(), 2),
            SessionEvent::Records { batch, .. } => {
                let partition = batch.at.partition.0;
                let offsets = batch.records.iter().map(|stored| stored.offset.0);
                taken.extend(offsets.map(|offset| (partition, offset)));
            }
            SessionEvent::Revoking(all) | SessionEvent::Lost(all) => panic!("{all:?}"),
        }
    }
    taken
}

fn offsets_of(taken: &[(i32, i64)], partition: i32) -> Vec<i64> {
    let of = taken.iter().filter(|(other, _)| *other == partition);
    of.map(|(_, offset)| *offset).collect()
}

fn cell() -> Arc<SessionCell> {
    Arc::new(SessionCell::new(SessionState::new(2, 1_000)))
}

fn poll_thread(cell: &Arc<SessionCell>) -> thread::JoinHandle<()> {
    let cell = Arc::clone(cell);
    thread::spawn(move || drive(&cell))
}

fn close(cell: &SessionCell, poll_thread: thread::JoinHandle<()>) {
    cell.with(|state| state.finish(SessionEnd::Closed));
    cell.wake_threads();
    poll_thread.join().unwrap();
    assert!(matches!(next(cell), Err(LogError::Closed)));
}

#[test]
fn the_board_hands_out_every_record_once_in_any_order() {
    play(60_000, || {
        let cell = cell();
        let poll_thread = poll_thread(&cell);
        let caller = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || {
                cell.with(|state| state.pause(&[at(0)]));
                cell.with(|state| state.resume(&[at(0)]));
                cell.tell();
            })
        };
        let taken = take_all(&cell);
        for partition in 0..PARTITIONS {
            let all: Vec<i64> = (0..RECORDS).collect();
            assert_eq!(offsets_of(&taken, partition), all);
        }
        caller.join().unwrap();
        close(&cell, poll_thread);
    });
}

#[test]
fn a_seek_reaches_a_poll_thread_that_is_about_to_wait() {
    play(60_000, || {
        let cell = cell();
        let poll_thread = poll_thread(&cell);
        take_all(&cell);
        // By now it has nothing more to do, and rests or is about to.
        cell.with(|state| state.seek(&at(0), Fence(1), Offset(1)))
            .unwrap();
        cell.wake_threads();
        let mut again = Vec::new();
        while again.last() != Some(&(RECORDS - 1)) {
            let SessionEvent::Records { batch, .. } = next(&cell).unwrap() else {
                panic!("nothing but records");
            };
            again.extend(batch.records.iter().map(|stored| stored.offset.0));
        }
        assert_eq!(again, [1, 2, 3]);
        close(&cell, poll_thread);
    });
}

#[test]
fn an_end_reaches_all_that_wait_at_the_cell() {
    play(60_000, || {
        let cell = cell();
        let poll_thread = poll_thread(&cell);
        let poller = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || while next(&cell).is_ok() {})
        };
        cell.with(|state| state.finish(SessionEnd::Replaced));
        cell.wake_threads();
        poller.join().unwrap();
        poll_thread.join().unwrap();
    });
}
