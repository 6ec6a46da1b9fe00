//! A small journal, whole and with bugs planted in it: the net catches fish.
//!
//! Entries are appended to `journal`, each with its length and a checksum; a snapshot of all
//! entries replaces `snapshot` now and then, and the journal starts anew. An entry is promised
//! once it was synced.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use tidegate_core::env::{Disk, DiskFile, Entropy, OpenMode, Stream};
use tidegate_sim::{Explored, SimDisk, Survivors, crash_points, is_one_seed, scaled, seeds};

/// The bug of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bug {
    None,
    NoSync,
    AckBeforeSync,
    NoDirectorySync,
    RenameBeforeSync,
}

struct Journal<'d> {
    disk: &'d dyn Disk,
    file: Box<dyn DiskFile>,
    generation: u64,
    entries: Vec<u64>,
    bug: Bug,
}

fn dir() -> &'static Path {
    Path::new("/journal")
}

fn path(generation: u64) -> PathBuf {
    dir().join(format!("{generation:06}"))
}

const ENTRY: usize = 700;

/// A number, padded over more than one sector, and a checksum.
fn encode(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(ENTRY - 8, number as u8);
    let sum = checksum(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<u64> {
    let (body, sum) = bytes.split_last_chunk::<8>()?;
    let (number, _) = body.split_first_chunk::<8>()?;
    (checksum(body) == u64::from_le_bytes(*sum)).then(|| u64::from_le_bytes(*number))
}

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3)
    })
}

/// The entries of a file up to the first that is not whole, and where that is.
fn read_entries(disk: &dyn Disk, path: &Path) -> io::Result<(Vec<u64>, u64)> {
    let bytes = disk.read(path, 1 << 20)?;
    let entries: Vec<u64> = bytes.chunks(ENTRY).map_while(decode).collect();
    let good = (entries.len() * ENTRY) as u64;
    Ok((entries, good))
}

impl<'d> Journal<'d> {
    /// Opens the newest whole generation, cuts its torn tail, and removes what is older.
    fn open(disk: &'d dyn Disk, bug: Bug) -> io::Result<Self> {
        disk.create_dir_all(dir())?;
        let mut generations: BTreeMap<u64, String> = BTreeMap::new();
        for entry in disk.list(dir())? {
            match entry.name.parse() {
                Ok(generation) => {
                    generations.insert(generation, entry.name);
                }
                Err(_) => disk.remove(&dir().join(entry.name))?,
            }
        }
        let newest = generations.keys().next_back().copied();
        for generation in generations.keys().filter(|g| Some(**g) != newest) {
            disk.remove(&path(*generation))?;
        }
        match newest {
            Some(generation) => {
                let (entries, good) = read_entries(disk, &path(generation))?;
                let mut file = disk.open(&path(generation), OpenMode::Write)?;
                if file.len()? != good {
                    file.truncate(good)?;
                    file.sync()?;
                }
                Ok(Self {
                    disk,
                    file,
                    generation,
                    entries,
                    bug,
                })
            }
            None => {
                let file = disk.open(&path(0), OpenMode::CreateNew)?;
                if bug != Bug::NoDirectorySync {
                    disk.sync_dir(dir())?;
                }
                Ok(Self {
                    disk,
                    file,
                    generation: 0,
                    entries: Vec::new(),
                    bug,
                })
            }
        }
    }

    /// Keeps a number; `promise` is called once it would survive a power cut.
    fn append(&mut self, number: u64, promise: &mut dyn FnMut(u64)) -> io::Result<()> {
        self.file.append(&encode(number))?;
        if self.bug == Bug::AckBeforeSync {
            promise(number);
        }
        if self.bug != Bug::NoSync {
            self.file.sync()?;
        }
        self.entries.push(number);
        if self.bug != Bug::AckBeforeSync {
            promise(number);
        }
        Ok(())
    }

    /// Writes everything into a new generation and forgets the old one.
    fn compact(&mut self) -> io::Result<()> {
        let (temporary, next) = (dir().join("temporary"), path(self.generation + 1));
        let mut file = self.disk.open(&temporary, OpenMode::CreateNew)?;
        for number in &self.entries {
            file.append(&encode(*number))?;
        }
        if self.bug != Bug::RenameBeforeSync {
            file.sync()?;
        }
        self.disk.replace(&temporary, &next)?;
        if self.bug == Bug::RenameBeforeSync {
            file.sync()?;
        }
        self.disk.remove(&path(self.generation))?;
        self.file = file;
        self.generation += 1;
        Ok(())
    }
}

/// Appends, compacts, and loses the power in between, as the seed says.
fn scenario(seed: u64, bug: Bug) -> impl Fn(&SimDisk, &mut Vec<u64>) {
    move |disk, promised| {
        let mut stream = Stream::new(seed);
        let random: &mut dyn Entropy = &mut stream;
        let mut number = 0;
        for _ in 0..3 {
            let mut journal = Journal::open(disk, bug).unwrap();
            for _ in 0..4 + random.below(6) {
                number += 1;
                journal.append(number, &mut |n| promised.push(n)).unwrap();
                if random.below(4) == 0 {
                    journal.compact().unwrap();
                }
            }
            disk.crash(&Survivors::Random(random.next_u64()));
        }
    }
}

fn check(disk: &SimDisk, promised: &[u64]) -> Result<(), String> {
    let journal = Journal::open(disk, Bug::None).map_err(|e| e.to_string())?;
    let found = &journal.entries;
    match promised.iter().find(|number| !found.contains(number)) {
        Some(missing) => Err(format!("{missing} was promised, and there is {found:?}")),
        None if !found.is_sorted_by(|a, b| a < b) => Err(format!("out of order: {found:?}")),
        None => Ok(()),
    }
}

#[test]
fn g04_a_sound_journal_keeps_every_promise_in_a_million_crashes() {
    let wanted = scaled(1_000_000);
    let total = std::cell::Cell::new(Explored::default());
    // More scenarios than are needed; those past the wanted number of states are left out.
    seeds!(wanted, |seed| {
        if total.get().states < wanted {
            let mut sum = total.get();
            sum += crash_points(seed, scenario(seed, Bug::None), |disk, promised| {
                check(disk, promised)
            });
            total.set(sum);
        }
    });
    println!("{:?}, 0 violations", total.get());
    assert!(is_one_seed() || total.get().states >= wanted);
}

#[test]
fn a_promise_broken_only_after_a_restart_is_caught() {
    // The first life is sound, so only kills of later lives can find it.
    let scenario = |disk: &SimDisk, promised: &mut Vec<u64>| {
        Journal::open(disk, Bug::None)
            .unwrap()
            .append(1, &mut |n| promised.push(n))
            .unwrap();
        disk.crash(&Survivors::Everything);
        let mut journal = Journal::open(disk, Bug::AckBeforeSync).unwrap();
        journal.append(2, &mut |n| promised.push(n)).unwrap();
    };
    let explored = std::panic::catch_unwind(|| {
        crash_points(1, scenario, |disk, promised: &Vec<u64>| {
            check(disk, promised)
        })
    });
    assert!(explored.is_err(), "{explored:?}");
}

#[test]
fn a_fault_and_a_crash_at_the_same_operation_are_both_played() {
    let scenario = |disk: &SimDisk, promised: &mut Vec<u64>| {
        let operation = tidegate_sim::Operation::Write;
        let kind = tidegate_sim::FaultKind::IoError;
        disk.fail(tidegate_sim::Fault {
            operation,
            path: String::new(),
            nth: 2,
            kind,
        });
        let mut journal = Journal::open(disk, Bug::None).unwrap();
        for number in 1..6 {
            journal.append(number, &mut |n| promised.push(n)).ok();
        }
    };
    let explored = crash_points(1, scenario, |disk, promised: &Vec<u64>| {
        check(disk, promised)
    });
    assert_eq!(
        explored.operations,
        4 + 1 + 2 * 4,
        "open, one that fails, four appends"
    );
}

#[test]
fn g05_each_planted_bug_is_caught() {
    for bug in [
        Bug::NoSync,
        Bug::AckBeforeSync,
        Bug::NoDirectorySync,
        Bug::RenameBeforeSync,
    ] {
        let caught = (0..20_u64).find(|seed| {
            std::panic::catch_unwind(|| {
                crash_points(*seed, scenario(*seed, bug), |disk, promised| {
                    check(disk, promised)
                })
            })
            .is_err()
        });
        println!("{bug:?}: caught by seed {caught:?}");
        assert!(caught.is_some(), "{bug:?} was not caught");
    }
}
