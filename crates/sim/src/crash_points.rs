//! Every crash of a scenario, one after the other.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tidegate_core::env::{Entropy, Stream};

use crate::disk::{Killed, SimDisk, Survivors};

/// Random subsets of the survivors that are tried at each operation.
const SUBSETS: usize = 16;

/// The crashes that were tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Explored {
    /// Operations of the scenario, each of which was once the last; for two lives, pairs of ends.
    pub operations: u64,
    /// Disks that were checked.
    pub states: u64,
}

impl std::ops::AddAssign for Explored {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.states += other.states;
    }
}

/// Plays `scenario` once for each of its disk operations, takes the power away there, and checks
/// what is found: with nothing of the unsynced changes, all of them, each prefix, and 16 random
/// subsets with torn writes.
///
/// The scenario notes in its obligations what it was promised, before it goes on; `check` opens
/// the disk as the next process would and says what is broken. Both must follow from their input
/// alone.
///
/// ```
/// use std::path::Path;
/// use tidegate_core::env::{Disk, OpenMode};
/// use tidegate_sim::crash_points;
/// let explored = crash_points(
///     7,
///     |disk, is_kept: &mut bool| {
///         let mut file = disk.open(Path::new("/f"), OpenMode::CreateNew).unwrap();
///         file.append(b"hello").unwrap();
///         file.sync().unwrap();
///         disk.sync_dir(Path::new("/")).unwrap();
///         *is_kept = true;
///     },
///     |disk, is_kept| {
///         let disk: &dyn Disk = disk;
///         match disk.read(Path::new("/f"), 100) {
///             Ok(bytes) if bytes == b"hello" => Ok(()),
///             found if *is_kept => Err(format!("it was promised, and there is {found:?}")),
///             _ => Ok(()),
///         }
///     },
/// );
/// assert_eq!(explored.operations, 4);
/// ```
///
/// # Panics
/// When `check` finds something, with the operation and the survivors at which it does; when the
/// scenario itself panics.
pub fn crash_points<O: Default>(
    seed: u64,
    scenario: impl Fn(&SimDisk, &mut O),
    check: impl Fn(&SimDisk, &O) -> Result<(), String>,
) -> Explored {
    let mut random = Stream::new(seed).stream("survivors");
    let mut explored = Explored::default();
    loop {
        let disk = SimDisk::new(seed);
        let mut obligations = O::default();
        disk.kill_at(explored.operations + 1);
        let was_killed = is_killed_in(|| scenario(&disk, &mut obligations));
        explored.states += check_survivors(&disk, &mut random, |found, survivors| {
            check(found, &obligations).map_err(|broken| {
                format!(
                    "after a crash at disk operation {} with survivors {survivors:?}: {broken}",
                    explored.operations + 1
                )
            })
        });
        // The last round is the scenario that ran to its end and lost the power afterwards.
        if !was_killed {
            assert_eq!(
                disk.operations(),
                explored.operations,
                "every operation of the scenario was once the last"
            );
            return explored;
        }
        explored.operations += 1;
    }
}

/// Plays two lives of one process, with every pair of ends. `first` is killed at each of its disk
/// operations while the machine runs on. `second` starts on that disk and loses the power at each of
/// its own operations. `check` then looks at what is found, for the same survivors as [`crash_points`].
///
/// A kill leaves everything that was written, synced or not. So this finds a process that trusts
/// what it reads and builds on it without a sync of its own.
///
/// Both lives note in the obligations what they were promised. `second` must cope with whatever a
/// killed `first` has left.
///
/// ```
/// use std::path::Path;
/// use tidegate_core::env::{Disk, OpenMode};
/// use tidegate_sim::{SimDisk, crash_points_of_two_lives};
/// let write = |disk: &SimDisk, is_kept: &mut bool| {
///     let name = Path::new("/f");
///     let found = disk.open(name, OpenMode::CreateNew);
///     let mut file = found.or_else(|_| disk.open(name, OpenMode::Write)).unwrap();
///     file.append(b"x").unwrap();
///     file.sync().unwrap();
///     // Without it, the name that the first life made is not safe in the second.
///     disk.sync_dir(Path::new("/")).unwrap();
///     *is_kept = true;
/// };
/// let explored = crash_points_of_two_lives(7, write, write, |disk, is_kept| {
///     let disk: &dyn Disk = disk;
///     let found = disk.read(Path::new("/f"), 100);
///     if *is_kept && found.is_err() { Err("the file is gone".to_owned()) } else { Ok(()) }
/// });
/// // Four operations and the end of each life: the second one tries to make the file, too.
/// assert_eq!(explored.operations, (4 + 1) * (4 + 1));
/// ```
///
/// # Panics
/// When `check` finds something, with both operations and the survivors at which it does; when a
/// life itself panics.
pub fn crash_points_of_two_lives<O: Default + Clone>(
    seed: u64,
    first: impl Fn(&SimDisk, &mut O),
    second: impl Fn(&SimDisk, &mut O),
    check: impl Fn(&SimDisk, &O) -> Result<(), String>,
) -> Explored {
    let mut random = Stream::new(seed).stream("survivors");
    let mut explored = Explored::default();
    for kill in 1.. {
        let left = SimDisk::new(seed);
        let mut promised = O::default();
        left.kill_at(kill);
        let first_was_killed = is_killed_in(|| first(&left, &mut promised));
        left.end_process();
        left.forget_kill();
        for cut in 1.. {
            let disk = left.fork();
            let mut obligations = promised.clone();
            disk.kill_at(left.operations() + cut);
            let second_was_killed = is_killed_in(|| second(&disk, &mut obligations));
            explored.states += check_survivors(&disk, &mut random, |found, survivors| {
                check(found, &obligations).map_err(|broken| {
                    format!(
                        "killed at disk operation {kill}, then a crash at operation {cut} of the \
                         next life with survivors {survivors:?}: {broken}"
                    )
                })
            });
            explored.operations += 1;
            if !second_was_killed {
                break;
            }
        }
        if !first_was_killed {
            return explored;
        }
    }
    explored
}

/// Plays a scenario and says whether a disk operation ended it.
fn is_killed_in(scenario: impl FnOnce()) -> bool {
    match catch_unwind(AssertUnwindSafe(scenario)) {
        Ok(()) => false,
        Err(payload) if payload.is::<Killed>() => true,
        Err(payload) => resume_unwind(payload),
    }
}

/// Checks every disk that a power cut could leave now, and says how many those were.
fn check_survivors(
    disk: &SimDisk,
    random: &mut Stream,
    check: impl Fn(&SimDisk, &Survivors) -> Result<(), String>,
) -> u64 {
    let at_risk = disk.unsynced();
    let prefixes = (1..at_risk).map(Survivors::First);
    let subsets = (0..if at_risk == 0 { 0 } else { SUBSETS })
        .map(|_| Survivors::Random(random.next_u64()))
        .collect::<Vec<_>>();
    let all = [Survivors::Nothing, Survivors::Everything];
    let mut states = 0;
    for survivors in all.into_iter().chain(prefixes).chain(subsets) {
        states += 1;
        if let Err(broken) = check(&disk.after_crash(&survivors), &survivors) {
            panic!("{broken}");
        }
    }
    states
}
