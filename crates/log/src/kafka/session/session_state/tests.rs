use super::*;
use crate::record::Record;
use tidegate_core::Topic;

const NOW: Duration = Duration::from_secs(100);

fn at(partition: i32) -> TopicPartition {
    TopicPartition::new(Topic::new("t").unwrap(), partition)
}

fn state(partitions: i32) -> SessionState {
    let mut state = SessionState::new(4, 1_000);
    assign(&mut state, 0..partitions);
    state
}

fn assign(state: &mut SessionState, partitions: std::ops::Range<i32>) {
    let begins = partitions.map(|partition| {
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
    assert!(matches!(state.next(1), Some(Ok(SessionEvent::Assigned(_)))));
}

fn stored(offsets: impl IntoIterator<Item = i64>) -> Vec<StoredRecord> {
    let stored = |offset| StoredRecord {
        offset: Offset(offset),
        record: Record::new("x"),
    };
    offsets.into_iter().map(stored).collect()
}

fn batch(state: &mut SessionState, max: usize) -> Option<(i32, Vec<i64>, i64)> {
    match state.next(max) {
        Some(Ok(SessionEvent::Records { batch, .. })) => Some((
            batch.at.partition.0,
            batch.records.iter().map(|stored| stored.offset.0).collect(),
            batch.next.0,
        )),
        None => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn records_are_handed_out_once_in_order_whatever_the_client_repeats() {
    let mut state = state(1);
    assert!(state.accept(&at(0), stored([0, 1, 2]), NOW));
    assert!(state.accept(&at(0), stored([1, 2, 3, 7]), NOW));
    assert!(!state.accept(&at(0), stored([0, 7]), NOW));
    assert_eq!(batch(&mut state, 3), Some((0, vec![0, 1, 2], 3)));
    // The hole up to 7 is known, because 7 is there.
    assert_eq!(batch(&mut state, 1), Some((0, vec![3], 7)));
    assert_eq!(batch(&mut state, 9), Some((0, vec![7], 8)));
    assert_eq!(batch(&mut state, 9), None);
}

#[test]
fn all_partitions_get_their_turn() {
    let mut state = state(3);
    for partition in 0..3 {
        state.accept(&at(partition), stored(0..4), NOW);
    }
    let served: Vec<i32> = (0..6).map(|_| batch(&mut state, 1).unwrap().0).collect();
    assert_eq!(served, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_long_partition_does_not_starve_a_short_one() {
    const LONG: i64 = 20_000;
    // Whichever of them comes first by its name.
    for (long, short) in [(0, 1), (1, 0)] {
        let mut state = state(2);
        state.accept(&at(long), stored(0..LONG), NOW);
        let first = batch(&mut state, 500).unwrap();
        assert_eq!((first.0, first.1.len()), (long, 500));
        state.accept(&at(short), stored([0]), NOW);
        assert_eq!(batch(&mut state, 500), Some((short, vec![0], 1)));
        // It goes on where it was, and the next short one is not held up either.
        assert_eq!(batch(&mut state, 500).unwrap().1[0], 500);
        state.accept(&at(short), stored([1]), NOW);
        assert_eq!(batch(&mut state, 500), Some((short, vec![1], 2)));
        // The long one is stopped at its own limit, and the short one flows.
        let orders = state.orders(NOW);
        assert!(orders.hold && orders.pause.is_empty(), "{orders:?}");
        assert_eq!(state.orders(NOW + PATIENCE).pause, [at(long)]);
    }
}

#[test]
fn a_pause_holds_across_a_rebalance_and_resuming_goes_on_where_it_began() {
    let mut state = state(1);
    state.accept(&at(0), stored(0..2), NOW);
    assert_eq!(batch(&mut state, 1), Some((0, vec![0], 1)));
    state.pause(&[at(0)]);
    assert_eq!(batch(&mut state, 1), None);
    state.resume(&[at(0)]);
    assert_eq!(batch(&mut state, 1), Some((0, vec![1], 2)));
    state.pause(&[at(0)]);
    state.lose(&[at(0)]);
    assert!(matches!(state.next(1), Some(Ok(SessionEvent::Lost(_)))));
    assign(&mut state, 0..1);
    state.accept(&at(0), stored(0..2), NOW);
    assert_eq!(batch(&mut state, 1), None);
    state.resume(&[at(0)]);
    assert_eq!(batch(&mut state, 2), Some((0, vec![0, 1], 2)));
}

#[test]
fn a_full_partition_is_waited_for_before_its_client_is_paused() {
    let mut state = state(2);
    state.accept(&at(0), stored(0..4), NOW);
    assert_eq!(state.ready_bytes(), 4 * Record::new("x").size());
    assert_eq!(
        state.orders(NOW),
        ConsumerCommands {
            hold: true,
            ..ConsumerCommands::default()
        }
    );
    let later = NOW + PATIENCE;
    assert_eq!(
        state.orders(later),
        ConsumerCommands {
            pause: vec![at(0)],
            ..ConsumerCommands::default()
        }
    );
    state.flowing(&at(0), false, later);
    assert_eq!(state.orders(later), ConsumerCommands::default());
    assert_eq!(batch(&mut state, 1).unwrap().1, [0]);
    assert_eq!(state.orders(later), ConsumerCommands::default());
    assert_eq!(batch(&mut state, 1).unwrap().1, [1]);
    let resumed = ConsumerCommands {
        resume: vec![(at(0), Offset(4))],
        ..ConsumerCommands::default()
    };
    assert_eq!(state.orders(later), resumed);
    state.flowing(&at(0), true, later);
    assert_eq!(state.orders(later), ConsumerCommands::default());
}

#[test]
fn a_paused_partition_that_is_full_does_not_hold_up_the_others() {
    let mut state = state(2);
    state.pause(&[at(0)]);
    state.accept(&at(0), stored(0..4), NOW);
    assert_eq!(
        state.orders(NOW),
        ConsumerCommands {
            pause: vec![at(0)],
            ..ConsumerCommands::default()
        }
    );
}

#[test]
fn after_a_seek_nothing_else_is_handed_out() {
    let mut state = state(1);
    state.accept(&at(0), stored(0..4), NOW);
    let fence = state.held[&at(0)].fence;
    state.seek(&at(0), fence, Offset(2)).unwrap();
    // Records that the client hands over before it was sent there belong to the old place.
    assert!(!state.accept(&at(0), stored([4, 5]), NOW));
    assert_eq!(batch(&mut state, 9), None);
    assert_eq!(state.orders(NOW).seek, [(at(0), Offset(2))]);
    // A later seek is not lost when the earlier one is reported as done.
    state.seek(&at(0), fence, Offset(3)).unwrap();
    state.sought(&at(0), Offset(2), NOW);
    assert!(!state.accept(&at(0), stored([2]), NOW));
    state.sought(&at(0), Offset(3), NOW);
    assert!(state.accept(&at(0), stored([2, 3]), NOW));
    assert_eq!(batch(&mut state, 9), Some((0, vec![3], 4)));
    let other = Fence(fence.0 + 1);
    assert!(matches!(
        state.seek(&at(0), other, Offset(0)),
        Err(LogError::Fenced { .. })
    ));
}

#[test]
fn a_revoked_partition_is_handed_out_no_more_and_lost_when_it_is_not_released() {
    let mut state = state(2);
    state.accept(&at(0), stored(0..1), NOW);
    state.revoke(&[at(0), at(1), at(9)]);
    assert_eq!(
        state.next(1).unwrap().unwrap(),
        SessionEvent::Revoking(vec![at(0), at(1)])
    );
    assert_eq!(batch(&mut state, 9), None);
    state.release(&[at(1)]);
    state.lose(&[at(0), at(1)]);
    assert_eq!(
        state.next(1).unwrap().unwrap(),
        SessionEvent::Lost(vec![at(0)])
    );
    // Only what was asked back can be let go.
    assign(&mut state, 0..1);
    state.release(&[at(0)]);
    assert!(state.held.contains_key(&at(0)));
}

#[test]
fn a_stopped_partition_says_why_once_and_waits_to_be_sought() {
    let mut state = state(1);
    let why = || LogError::OutOfRange {
        at: at(0),
        asked: Offset(0),
        start: Offset(5),
        end: Offset(9),
    };
    state.stop(&at(0), why());
    state.stop(&at(0), why());
    assert!(matches!(
        state.next(1),
        Some(Err(LogError::OutOfRange { .. }))
    ));
    assert!(!state.accept(&at(0), stored([0]), NOW));
    assert_eq!(batch(&mut state, 1), None);
    let fence = state.held[&at(0)].fence;
    state.seek(&at(0), fence, Offset(5)).unwrap();
    state.sought(&at(0), Offset(5), NOW);
    assert!(state.accept(&at(0), stored([5]), NOW));
    assert_eq!(batch(&mut state, 1), Some((0, vec![5], 6)));
}

#[test]
fn a_partition_is_not_let_go_while_a_commit_for_it_is_on_its_way() {
    let mut state = state(2);
    let both = [at(0), at(1)];
    state.begin_commit(both.iter());
    state.begin_commit(both[..1].iter());
    state.lose(&both);
    state.end_commit(both.iter());
    assert!(state.is_committing(&both) && !state.is_committing(&both[1..]));
    state.end_commit(both[..1].iter());
    assert!(!state.is_committing(&both));
}

#[test]
fn a_session_that_failed_says_what_was_lost_and_one_that_was_closed_says_only_that() {
    let mut state = state(1);
    state.finish(SessionEnd::Failed("fenced".to_owned()));
    assert!(matches!(state.next(1), Some(Ok(SessionEvent::Lost(_)))));
    assert!(matches!(state.next(1), Some(Err(LogError::Stopped { .. }))));
    let mut state = self::state(1);
    state.finish(SessionEnd::Replaced);
    state.finish(SessionEnd::Closed);
    assert!(matches!(state.next(1), Some(Ok(SessionEvent::Lost(_)))));
    assert!(matches!(state.next(1), Some(Err(LogError::Closed))));
    let mut state = self::state(1);
    state.accept(&at(0), stored([0]), NOW);
    state.finish(SessionEnd::Closed);
    for _ in 0..2 {
        assert!(matches!(state.next(1), Some(Err(LogError::Closed))));
    }
}

#[test]
fn only_partitions_that_should_move_count_as_quiet() {
    let mut state = state(4);
    let limit = Duration::from_secs(30);
    let later = NOW + limit;
    state.accept(&at(0), stored([0]), NOW);
    state.flowing(&at(1), false, NOW);
    state.accept(&at(2), stored([0]), later);
    assert_eq!(batch(&mut state, 1).unwrap().0, 0);
    assert_eq!(batch(&mut state, 1).unwrap().0, 2);
    assert_eq!(
        state.quiet(later, limit),
        [(at(0), Offset(1)), (at(3), Offset(0))]
    );
}
