//! A process is killed at any disk operation, and the power goes at any operation of the next one.
//!
//! A kill leaves what was written, synced or not: the next process must not build on it as if it were
//! there to stay.

use tidegate_sim::{Fault, FaultKind, Operation, crash_points_of_two_lives, scaled};

use super::*;

/// Numbers of the second life, so that no event is there twice.
const SECOND: u64 = 1_000;

/// Lets the `nth` sync of the active file from now on fail.
fn fail_sync(disk: &SimDisk, nth: u64, kind: FaultKind) {
    disk.fail(Fault {
        operation: Operation::Sync,
        path: ACTIVE.into(),
        nth,
        kind,
    });
}

/// Spills, and notes what is promised.
fn promise(directory: &mut TestDirectory, obligations: &mut Obligations, numbers: &[u64]) {
    obligations.offered += numbers.len() as u64;
    let promised = directory.append(numbers).unwrap();
    obligations.promised.extend(promised.into_iter().map(id));
}

fn send(directory: &mut TestDirectory, obligations: &mut Obligations, count: usize) {
    let arrived = &mut obligations.arrived;
    let mut arrive = |id| {
        arrived.insert(id);
    };
    directory.replay(count, &mut arrive).unwrap();
}

/// Nothing is missing, and nothing is counted that nobody offered.
fn check_both(disk: &SimDisk, obligations: &Obligations) -> Result<(), String> {
    use_up_faults(disk);
    check(disk, obligations)?;
    let counted = recount(disk, dir()).map_err(|error| error.to_string())?;
    let accepted = counted.books.account().accepted.unsigned_abs();
    if accepted > obligations.offered {
        let offered = obligations.offered;
        return Err(format!("{accepted} events of {offered} are in the books"));
    }
    Ok(())
}

/// Killed between the rename of a file whose sync failed and the books that say how much of it
/// counts: the next process counts all of it, so it makes all of it last.
#[test]
fn l25_a_file_that_a_killed_process_sealed_is_made_to_last_before_it_is_counted() {
    for kind in [FaultKind::IoError, FaultKind::SyncDropsDirty] {
        let first = |disk: &SimDisk, obligations: &mut Obligations| {
            let mut directory = TestDirectory::open(disk).unwrap();
            promise(&mut directory, obligations, &[0, 1]);
            fail_sync(disk, 1, kind);
            promise(&mut directory, obligations, &[2, 3, 4]);
        };
        let second = |disk: &SimDisk, obligations: &mut Obligations| {
            let mut directory = TestDirectory::open(disk).unwrap();
            promise(&mut directory, obligations, &[SECOND]);
        };
        let explored = crash_points_of_two_lives(1, first, second, check_both);
        assert!(explored.operations > 200, "{explored:?}");
    }
}

/// One life of the spill: it is opened, spills, seals, sends and stops, as the seed says.
fn life(seed: u64, name: &'static str, number: u64) -> impl Fn(&SimDisk, &mut Obligations) {
    let draws = Stream::new(seed).stream(name);
    move |disk, obligations| {
        let mut stream = draws.clone();
        let random: &mut dyn Entropy = &mut stream;
        let mut number = number;
        let mut directory = TestDirectory::open(disk).unwrap();
        // One of two syncs in a row may fail; after two the spill is given up.
        if name == "first" && random.below(2) == 0 {
            fail_sync(disk, 1 + random.below(3), FaultKind::SyncDropsDirty);
        }
        for _ in 0..3 + random.below(2) {
            if random.below(3) > 0 {
                let numbers: Vec<u64> = (number..number + 1 + random.below(4)).collect();
                number += numbers.len() as u64;
                promise(&mut directory, obligations, &numbers);
            } else {
                send(&mut directory, obligations, 1 + random.below(4) as usize);
            }
        }
        if random.below(2) == 0 {
            directory.spool.close(&directory.books).unwrap();
        }
    }
}

#[test]
fn a08_nothing_promised_is_lost_by_a_kill_and_a_power_cut_in_the_next_life() {
    let wanted = scaled(200_000);
    let total = std::cell::Cell::new(Explored::default());
    seeds!(wanted, |seed| {
        if total.get().states < wanted {
            let mut sum = total.get();
            let (first, second) = (life(seed, "first", 0), life(seed, "second", SECOND));
            sum += crash_points_of_two_lives(seed, first, second, check_both);
            total.set(sum);
        }
    });
    println!("{:?}, 0 violations", total.get());
}

fn rejection(number: u64) -> Rejection {
    Rejection {
        payload: Payload {
            id: id(number),
            json: format!("{{\"details\":\"event {number}\"}}").into(),
        },
        code: Code::from_static("event.invalid"),
        message: "no process".to_owned(),
        status: Some(400),
        attempts: 1,
    }
}

/// The events in the file of the rejected ones whose line can be read.
fn rejected(disk: &SimDisk) -> BTreeSet<EventId> {
    let read = (disk as &dyn Disk).read(&dir().join(REJECTED), 1 << 20);
    let bytes = read.unwrap_or_default();
    bytes
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok())
        .filter_map(|line| line["_id"].as_str()?.parse().ok())
        .collect()
}

#[test]
fn a09_a_rejected_event_has_a_line_of_its_own_behind_half_a_line() {
    let (disk, mut directory) = spilled(1);
    directory.spool.set_aside(&[rejection(0)], 1).unwrap();
    directory.spool.set_aside(&[rejection(1)], 2).unwrap();
    drop(directory);
    disk.end_process();
    let whole = content(&disk, REJECTED);
    let half = &whole[..whole.len() - 40];
    overwrite(&disk, REJECTED, half);
    let mut directory = TestDirectory::open(&disk).unwrap();
    directory.spool.set_aside(&[rejection(2)], 3).unwrap();
    directory.spool.set_aside(&[rejection(3)], 4).unwrap();
    assert_eq!(rejected(&disk), BTreeSet::from([id(0), id(2), id(3)]));
    let after = content(&disk, REJECTED);
    assert!(after.starts_with(half), "what was there is kept as it was");
}

#[test]
fn a09_rejected_events_survive_a_kill_and_a_power_cut_in_the_next_life() {
    let life = |disk: &SimDisk, kept: &mut BTreeSet<EventId>, numbers: [u64; 2]| {
        let mut directory = TestDirectory::open(disk).unwrap();
        for number in numbers {
            directory.spool.set_aside(&[rejection(number)], 1).unwrap();
            kept.insert(id(number));
        }
    };
    seeds!(scaled(40), |seed| {
        let explored = crash_points_of_two_lives(
            seed,
            |disk, kept| life(disk, kept, [0, 1]),
            |disk, kept| life(disk, kept, [2, 3]),
            |disk, kept: &BTreeSet<EventId>| {
                let found = rejected(disk);
                match kept.iter().find(|id| !found.contains(id)) {
                    Some(lost) => Err(format!("{lost} was set aside, and there is {found:?}")),
                    None => Ok(()),
                }
            },
        );
        assert!(explored.operations > 100, "{explored:?}");
    });
}
