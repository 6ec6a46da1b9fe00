//! The queue beside Graphile Worker, River and pg-boss, all on one PostgreSQL; then ours alone: with
//! transactions held open, after a kill, and on SQLite.
//!
//! Payloads have 200 bytes, handlers do nothing, commits are durable. Everybody gets a database and
//! processes of its own, and its best settings.

mod abandoned;
mod drain;
mod held;
mod install;
mod ours;
mod pickup;
mod sqlite;

use std::path::PathBuf;

use crate::program::{Program, Why};
use crate::report::{Cost, Line, skipped};
use crate::server::Server;
use drain::Drain;

pub(crate) use ours::{CHILD, run_child};

const EVENTS: u32 = 200_000;
/// The figure in the middle counts.
const ROUNDS: usize = 3;

/// The surroundings of every measurement.
struct Bench {
    server: Server,
    ours: Program,
    peers: Vec<(&'static str, Result<Program, Why>)>,
    scratch: PathBuf,
}

pub(crate) fn run() {
    match Bench::new() {
        Ok(mut bench) => {
            bench.drain();
            bench.at_once();
            bench.pickup();
            bench.held();
            abandoned::run(&mut bench.server, &bench.ours);
            sqlite::run(&bench.ours, &bench.scratch);
            bench.clear_away();
        }
        Err(why) => skipped("queue", &why),
    }
}

impl Bench {
    fn new() -> Result<Self, Why> {
        let server = Server::connect()?;
        let ours = ours::program()?;
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let scratch = program.with_file_name("bench-queue");
        std::fs::create_dir_all(&scratch)
            .map_err(|error| format!("{}: {error}", scratch.display()))?;
        eprintln!("getting the peers");
        let peers = install::peers();
        Ok(Self {
            server,
            ours,
            peers,
            scratch,
        })
    }

    /// A backlog, in turns, so that whatever the machine does meanwhile falls on everybody.
    fn drain(&mut self) {
        eprintln!("publish, then handle");
        let mut ours = Vec::new();
        let mut theirs: Vec<(&str, Result<Vec<Drain>, Why>)> = Vec::new();
        for (name, peer) in &self.peers {
            theirs.push((name, peer.clone().map(|_| Vec::new())));
        }
        for _ in 0..ROUNDS {
            ours.push(self.our_backlog());
            for ((_, peer), (_, drains)) in self.peers.iter().zip(&mut theirs) {
                let Ok(peer) = peer else {
                    continue;
                };
                let measured = drain::backlog(&mut self.server, peer, EVENTS, |_, _| Ok(()));
                match (measured, drains.as_mut()) {
                    (Ok((drain, ..)), Ok(drains)) => drains.push(drain),
                    (Err(why), Ok(_)) => *drains = Err(why),
                    (_, Err(_)) => {}
                }
            }
        }
        let ours = match in_the_middle(ours.into_iter().collect()) {
            Ok(ours) => ours,
            Err(why) => return skipped("queue/drain", &why),
        };
        for (name, drains) in theirs {
            match in_the_middle(drains) {
                Ok(theirs) => compare(name, &ours, &theirs),
                Err(why) => skipped(&format!("queue/drain-over-{name}"), &why),
            }
        }
        Line {
            bench: "queue/wal",
            ours: ours.published_wal + ours.handled_wal,
            reference: 800.0,
            reference_is: "the most it may be",
            unit: "B of WAL per event, publish to log",
            cost: ours.cost,
        }
        .print();
    }

    /// A backlog of ours, which leaves a row in the log and a result for every event.
    fn our_backlog(&mut self) -> Result<Drain, Why> {
        let (drain, url, ()) = drain::backlog(&mut self.server, &self.ours, EVENTS, |_, _| Ok(()))?;
        for (what, sql) in [
            (
                "events in the log",
                "SELECT count(*) FROM event_log WHERE status = 'COMPLETED'",
            ),
            (
                "results",
                "SELECT count(*) FROM event_handler_state WHERE result = 'SUCCESS'",
            ),
        ] {
            let found = self.server.number_in(&url, sql)?;
            if found != i64::from(EVENTS) {
                return Err(format!("{found} {what} after {EVENTS} events"));
            }
        }
        Ok(drain)
    }

    fn at_once(&mut self) {
        eprintln!("publish and handle at once");
        let ours = drain::at_once(&mut self.server, &self.ours, EVENTS);
        for (name, peer) in &self.peers {
            let bench = format!("queue/at-once-over-{name}");
            let theirs = match peer {
                Ok(peer) => drain::at_once(&mut self.server, peer, EVENTS),
                Err(why) => Err(why.clone()),
            };
            match (&ours, theirs) {
                (Ok((ours, _)), Ok((theirs, is))) => Line {
                    bench: &bench,
                    ours: *ours,
                    reference: theirs,
                    reference_is: &is,
                    unit: "events/s",
                    cost: Cost::default(),
                }
                .print(),
                (Err(why), _) => skipped(&bench, why),
                (_, Err(why)) => skipped(&bench, &why),
            }
        }
    }

    fn pickup(&mut self) {
        eprintln!("pickup at 2,000/s");
        let ours = match pickup::at_a_rate(&mut self.server, &self.ours, &self.scratch) {
            Ok(ours) => ours,
            Err(why) => return skipped("queue/pickup", &why),
        };
        let limit = "the most it may be";
        pickup::print("", &ours, (5.0, 15.0), limit);
        for (name, peer) in &self.peers {
            let theirs = match peer {
                Ok(peer) => pickup::at_a_rate(&mut self.server, peer, &self.scratch),
                Err(why) => Err(why.clone()),
            };
            let suffix = format!("-beside-{name}");
            match theirs {
                Ok(theirs) => pickup::print(&suffix, &ours, (theirs.p50, theirs.p99), &theirs.is),
                Err(why) => skipped(&format!("queue/pickup{suffix}"), &why),
            }
        }
    }

    /// With a snapshot held, in turns with backlogs without; and with a writing transaction.
    fn held(&mut self) {
        eprintln!("transactions held open");
        let (mut free, mut held) = (Vec::new(), Vec::new());
        let mut dead = Vec::new();
        for _ in 0..ROUNDS {
            free.push(self.our_backlog());
            let measured = held::reading(&mut self.server, &self.ours, EVENTS);
            held.push(measured.map(|(drain, rows)| {
                dead.push(rows as f64);
                drain
            }));
        }
        let free = in_the_middle(free.into_iter().collect());
        let held = in_the_middle(held.into_iter().collect());
        let (free, held) = match (free, held) {
            (Ok(free), Ok(held)) => (free, held),
            (Err(why), _) | (_, Err(why)) => return skipped("queue/held", &why),
        };
        let line = |bench, ours: &Drain| {
            Line {
                bench,
                ours: ours.handled_per_second,
                reference: free.handled_per_second,
                reference_is: "ours with nothing held",
                unit: "events/s",
                cost: ours.cost,
            }
            .print();
        };
        line("queue/drain-with-snapshot-held", &held);
        Line {
            bench: "queue/dead-rows-with-snapshot-held",
            ours: crate::measure::median(dead),
            reference: f64::from(EVENTS) / 100.0,
            reference_is: "the most it may be: 1 % of the events",
            unit: "dead rows",
            cost: held.cost,
        }
        .print();
        match held::writing(&mut self.server, &self.ours, EVENTS) {
            Ok(drain) => line("queue/drain-with-writer-held", &drain),
            Err(why) => skipped("queue/drain-with-writer-held", &why),
        }
    }

    fn clear_away(mut self) {
        drop(std::fs::remove_dir_all(&self.scratch));
        let names = self.peers.iter().map(|(name, _)| *name);
        for name in names.chain([self.ours.name]).collect::<Vec<_>>() {
            if let Err(why) = self.server.drop_database(name) {
                eprintln!("a database stays behind: {why}");
            }
        }
    }
}

fn compare(name: &str, ours: &Drain, theirs: &Drain) {
    let figures = [
        (
            "drain",
            "events/s",
            ours.handled_per_second,
            theirs.handled_per_second,
        ),
        (
            "publish",
            "events/s",
            ours.published_per_second,
            theirs.published_per_second,
        ),
        (
            "wal",
            "B of WAL per event",
            ours.published_wal + ours.handled_wal,
            theirs.published_wal + theirs.handled_wal,
        ),
        (
            "drain-cpu",
            "µs of CPU per event, server included",
            ours.cost.cpu_s * 1e6 / f64::from(EVENTS),
            theirs.cost.cpu_s * 1e6 / f64::from(EVENTS),
        ),
    ];
    for (what, unit, ours_is, reference) in figures {
        Line {
            bench: &format!("queue/{what}-over-{name}"),
            ours: ours_is,
            reference,
            reference_is: &theirs.is,
            unit,
            cost: ours.cost,
        }
        .print();
    }
}

/// The drain whose rate is in the middle.
fn in_the_middle(drains: Result<Vec<Drain>, Why>) -> Result<Drain, Why> {
    let mut drains = drains?;
    drains.sort_by(|a, b| a.handled_per_second.total_cmp(&b.handled_per_second));
    let middle = drains.len() / 2;
    drains
        .into_iter()
        .nth(middle)
        .ok_or_else(|| "nothing was measured".to_owned())
}
