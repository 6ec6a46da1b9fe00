//! Every crash of a scenario, one after the other.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use tidegate_core::env::{Entropy, Stream};

use crate::disk::{Killed, SimDisk, Survivors};

/// Random subsets of the survivors that are tried at each operation.
const SUBSETS: usize = 16;

/// What was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Explored {
    /// Operations of the scenario, each of which was once the last.
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
        let ended = catch_unwind(AssertUnwindSafe(|| scenario(&disk, &mut obligations)));
        let was_killed = match ended {
            Ok(()) => false,
            Err(payload) if payload.is::<Killed>() => true,
            Err(payload) => resume_unwind(payload),
        };
        let at_risk = disk.unsynced();
        let prefixes = (1..at_risk).map(Survivors::First);
        let subsets = (0..if at_risk == 0 { 0 } else { SUBSETS })
            .map(|_| Survivors::Random(random.next_u64()))
            .collect::<Vec<_>>();
        let all = [Survivors::Nothing, Survivors::Everything];
        for survivors in all.into_iter().chain(prefixes).chain(subsets) {
            explored.states += 1;
            let found = disk.after_crash(&survivors);
            if let Err(broken) = check(&found, &obligations) {
                panic!(
                    "after a crash at disk operation {} with survivors {survivors:?}: {broken}",
                    explored.operations + 1
                );
            }
        }
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
