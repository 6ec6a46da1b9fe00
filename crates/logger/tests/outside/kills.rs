//! Killed at any moment, the logger keeps what `log_durable` promised.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;
use tidegate_core::EventId;
use tidegate_core::env::system::SystemDisk;
use tidegate_core::env::{Entropy, Stream};
use tidegate_logger::{RunningLogger, spill};
use tidegate_sim::scaled;
use tidegate_testkit::{Fault, StubApi};

use crate::child;

/// How long a drain may take on a slow machine.
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn killed_at_any_moment_everything_promised_arrives_once() {
    let kills = scaled(500);
    let draw: &mut dyn Entropy = &mut Stream::new(0x6b69_6c6c);
    let dir = tempfile::tempdir().unwrap();
    let spill_dir = dir.path().join("spill");
    let stub = StubApi::start().unwrap();
    let mut obligations = Obligations::new(&dir.path().join("obligations"));
    for life in 0..kills {
        set_the_scene(&stub, draw);
        let (mut process, mut lines) =
            child::start("log-durably", &spill_dir, &stub.url(), &life.to_string());
        // One in eight dies while it recovers what the last one left, the others after so many
        // promises.
        let promises = match draw.below(8) {
            0 => 0,
            _ => 1 + draw.below(400),
        };
        let turns_after = (draw.below(3) == 0).then(|| draw.below(promises + 1));
        let pause = Duration::from_millis(draw.below(if promises == 0 { 40 } else { 5 }));
        let read = std::thread::scope(|scope| {
            let (sender, lines_read) = mpsc::channel();
            scope.spawn(move || lines.try_for_each(|line| sender.send(line)));
            let mut read = Vec::new();
            for promised in 0..=promises {
                // The API changes its mind while the process lives.
                if turns_after == Some(promised) {
                    turn(&stub, draw);
                }
                // The first line says that it is open.
                if promises > 0 {
                    read.push(lines_read.recv_timeout(LIMIT).expect("it says something"));
                }
            }
            // At any moment, also in the middle of something.
            std::thread::sleep(pause);
            process.kill().unwrap();
            process.wait().unwrap();
            read.extend(lines_read);
            read
        });
        obligations.add(read.into_iter().filter(|line| line != "open"));
        let counted = spill::recount(&SystemDisk, &spill_dir).unwrap();
        assert_eq!(
            counted.unaccounted(),
            0,
            "after life {life}: {:?}",
            counted.missing
        );
    }
    stub.up().unwrap();
    stub.heal();
    drain(&stub, &spill_dir);
    obligations.check(&stub);
    let durable = obligations.promised.len();
    println!(
        "{kills} kills: {durable} promised, {} stored, {} sent again, 0 missing",
        stub.count(),
        stub.duplicates()
    );
    assert!(durable as u64 >= kills, "{durable} promises are no proof");
}

/// The behavior of the API in the next life.
fn set_the_scene(stub: &StubApi, draw: &mut dyn Entropy) {
    let seed = draw.next_u64();
    stub.fail_by(move |request| {
        let roll: &mut dyn Entropy = &mut Stream::new(seed).stream(&request.number.to_string());
        match roll.below(100) {
            0..5 => Some(Fault::status(503)),
            5..8 => Some(Fault::status(500).retry_after("0")),
            8..13 => Some(Fault::ApplyThenDrop),
            13..16 => Some(Fault::HalfAnswer),
            16..19 => Some(Fault::Reset),
            19..24 => Some(Fault::Delay(Duration::from_millis(5))),
            24..26 => Some(Fault::Partial(vec![0, 3, 4])),
            _ => None,
        }
    });
    turn(stub, draw);
}

fn turn(stub: &StubApi, draw: &mut dyn Entropy) {
    if draw.below(3) == 0 {
        stub.down();
    } else {
        stub.up().unwrap();
    }
}

/// One clean run: what is left on disk is sent, and the books say so.
fn drain(stub: &StubApi, dir: &Path) {
    let logger = RunningLogger::start(
        child::config(dir).build().unwrap(),
        child::http(&stub.url()),
        None,
    )
    .unwrap();
    stub.wait_until_blocking(|_| logger.account().spilled == 0, LIMIT);
    let report = logger.shutdown();
    assert!(report.account.is_balanced(), "{:?}", report.account);
    assert_eq!(report.account.spilled, 0);
    assert_eq!(report.account.lost.total(), 0);
    assert_eq!(report.account.dead_lettered, 0);
    let counted = spill::recount(&SystemDisk, dir).unwrap();
    assert_eq!(counted.unaccounted(), 0, "{:?}", counted.missing);
    // A kill may tear a write: the torn line was promised to nobody and is kept beside the others.
    let mut files = spill::inspect(&SystemDisk, dir).unwrap().files;
    files.retain(|file| file.role != spill::Role::Corrupt);
    assert!(files.iter().all(|file| file.lines == 0), "{files:?}");
}

/// The obligations of killed processes, kept where no kill reaches them.
struct Obligations {
    promised: HashMap<EventId, String>,
    file: File,
}

impl Obligations {
    fn new(path: &Path) -> Self {
        let file = OpenOptions::new().create_new(true).append(true).open(path);
        Self {
            promised: HashMap::new(),
            file: file.unwrap(),
        }
    }

    fn add(&mut self, lines: impl Iterator<Item = String>) {
        for line in lines {
            let (id, details) = line.split_once(' ').unwrap();
            let before = self
                .promised
                .insert(id.parse().unwrap(), details.to_owned());
            assert_eq!(before, None, "an id was given to two events");
            writeln!(self.file, "{line}").unwrap();
        }
        self.file.sync_data().unwrap();
    }

    /// Each is stored, under its id, with its content; and no event is there under two ids.
    fn check(&self, stub: &StubApi) {
        let missing: Vec<_> = self
            .promised
            .iter()
            .filter(|(id, _)| stub.stored(**id).is_none())
            .collect();
        assert!(missing.is_empty(), "{} missing: {missing:?}", missing.len());
        assert_eq!(stub.rejected(), 0, "an id came with another content");
        let mut seen = HashMap::new();
        for id in stub.ids() {
            let event: Value = serde_json::from_slice(&stub.stored(id).unwrap()).unwrap();
            let details = event["details"].as_str().unwrap().to_owned();
            if let Some(promised) = self.promised.get(&id) {
                assert_eq!(*promised, details);
            }
            let twin = seen.insert(details, id);
            assert_eq!(twin, None, "{id} is stored twice");
        }
    }
}
