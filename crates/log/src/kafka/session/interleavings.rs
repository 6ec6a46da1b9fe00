//! The board, with a driver that fills it, a session that empties it and callers that pause, seek and
//! close meanwhile: whatever the order, all records are handed out once and everybody comes to an end.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::rand::{Rng, thread_rng};
use shuttle::thread;
use tidegate_core::{Offset, Topic};

use super::desk::{self, Begin, Desk, End};
use crate::error::LogError;
use crate::interleavings::play::play;
use crate::interleavings::sync;
use crate::kafka::books::GroupBooks;
use crate::port::{Fence, Happening};
use crate::record::{Record, Stored, TopicPartition};
use board::Board;

#[path = "board.rs"]
#[allow(dead_code, reason = "the file has more users than this")]
mod board;

/// No time passes, so a limit is never reached, and a full partition is waited for with patience.
const NOW: Duration = Duration::ZERO;
const LIMIT: Duration = Duration::from_millis(20);
const PARTITIONS: i32 = 2;
/// Records of each partition, twice what fits the desk.
const RECORDS: i64 = 4;

fn at(partition: i32) -> TopicPartition {
    TopicPartition::new(Topic::new("t").unwrap(), partition)
}

fn assign(desk: &mut Desk) {
    let begins = (0..PARTITIONS).map(|partition| {
        let begin = Begin {
            at: at(partition),
            committed: None,
            books: GroupBooks::begin(Offset(0)),
            position: Offset(0),
            stopped: None,
        };
        (Fence(1), begin)
    });
    desk.assign(begins.collect(), NOW);
}

/// Where the client stands in each partition.
type Client = [i64; PARTITIONS as usize];

/// The client hands over the next record of each partition that flows. Returns whether there was one.
fn hand_over(board: &Board, client: &mut Client, paused: &[TopicPartition]) -> bool {
    let mut has_any = false;
    for (partition, position) in (0..).zip(client.iter_mut()) {
        if *position == RECORDS || paused.contains(&at(partition)) {
            continue;
        }
        has_any = true;
        let stored = Stored {
            offset: Offset(*position),
            record: Record::new("x"),
        };
        *position += 1;
        if board.with(|desk| desk.accept(&at(partition), vec![stored], NOW)) {
            board.tell();
        }
    }
    has_any
}

/// Does what the client's thread does, and rests where there is nothing to do.
fn drive(board: &Board) {
    let mut client: Client = Default::default();
    let mut paused = Vec::new();
    board.with(assign);
    board.tell();
    while !board.is_over() {
        let (orders, stirs) = board.orders(NOW);
        for at in orders.pause {
            board.with(|desk| desk.flowing(&at, false, NOW));
            paused.push(at);
        }
        for (at, offset) in orders.resume {
            paused.retain(|other| *other != at);
            client[usize::try_from(at.partition.0).unwrap()] = offset.0;
            board.with(|desk| desk.flowing(&at, true, NOW));
        }
        for (at, offset) in orders.seek {
            client[usize::try_from(at.partition.0).unwrap()] = offset.0;
            board.with(|desk| desk.sought(&at, offset, NOW));
        }
        let rests = orders.hold || (!hand_over(board, &mut client, &paused) && !board.is_over());
        if rests {
            board.rest_since(stirs, LIMIT);
        }
    }
}

/// Asks for the next thing; now and then it loses patience and asks anew.
fn next(board: &Board) -> Result<Happening, LogError> {
    if thread_rng().gen_range(0..2) == 0 {
        let mut asked = Box::pin(board.handed_out(1));
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(next) = asked.as_mut().poll(&mut context) {
            return next;
        }
    }
    block_on(board.handed_out(1))
}

/// Takes records until each partition was read to its end, and says in which order they came.
fn take_all(board: &Board) -> Vec<(i32, i64)> {
    let mut taken = Vec::new();
    let is_last = |taken: &[(i32, i64)], partition| taken.contains(&(partition, RECORDS - 1));
    while !(0..PARTITIONS).all(|partition| is_last(&taken, partition)) {
        match next(board).unwrap() {
            Happening::Assigned(all) => assert_eq!(all.len(), 2),
            Happening::Records { batch, .. } => {
                let partition = batch.at.partition.0;
                let offsets = batch.records.iter().map(|stored| stored.offset.0);
                taken.extend(offsets.map(|offset| (partition, offset)));
            }
            Happening::Revoking(all) | Happening::Lost(all) => panic!("{all:?}"),
        }
    }
    taken
}

fn offsets_of(taken: &[(i32, i64)], partition: i32) -> Vec<i64> {
    let of = taken.iter().filter(|(other, _)| *other == partition);
    of.map(|(_, offset)| *offset).collect()
}

fn board() -> Arc<Board> {
    Arc::new(Board::new(Desk::new(2, 1_000)))
}

fn driver(board: &Arc<Board>) -> thread::JoinHandle<()> {
    let board = Arc::clone(board);
    thread::spawn(move || drive(&board))
}

fn close(board: &Board, driver: thread::JoinHandle<()>) {
    board.with(|desk| desk.finish(End::Closed));
    board.stir();
    driver.join().unwrap();
    assert!(matches!(next(board), Err(LogError::Closed)));
}

#[test]
fn the_board_hands_out_every_record_once_in_any_order() {
    play(60_000, || {
        let board = board();
        let driver = driver(&board);
        let caller = {
            let board = Arc::clone(&board);
            thread::spawn(move || {
                board.with(|desk| desk.pause(&[at(0)]));
                board.with(|desk| desk.resume(&[at(0)]));
                board.tell();
            })
        };
        let taken = take_all(&board);
        for partition in 0..PARTITIONS {
            let all: Vec<i64> = (0..RECORDS).collect();
            assert_eq!(offsets_of(&taken, partition), all);
        }
        caller.join().unwrap();
        close(&board, driver);
    });
}

#[test]
fn a_seek_reaches_a_driver_that_is_about_to_rest() {
    play(60_000, || {
        let board = board();
        let driver = driver(&board);
        take_all(&board);
        // By now it has nothing more to do, and rests or is about to.
        board
            .with(|desk| desk.seek(&at(0), Fence(1), Offset(1)))
            .unwrap();
        board.stir();
        let mut again = Vec::new();
        while again.last() != Some(&(RECORDS - 1)) {
            let Happening::Records { batch, .. } = next(&board).unwrap() else {
                panic!("nothing but records");
            };
            again.extend(batch.records.iter().map(|stored| stored.offset.0));
        }
        assert_eq!(again, [1, 2, 3]);
        close(&board, driver);
    });
}

#[test]
fn an_end_reaches_whoever_waits_at_the_board() {
    play(60_000, || {
        let board = board();
        let driver = driver(&board);
        let poller = {
            let board = Arc::clone(&board);
            thread::spawn(move || while next(&board).is_ok() {})
        };
        board.with(|desk| desk.finish(End::Replaced));
        board.stir();
        poller.join().unwrap();
        driver.join().unwrap();
    });
}
