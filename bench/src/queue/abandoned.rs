//! The fate of the events of a process that was killed.

use std::time::{Duration, Instant, SystemTime};

use super::ours;
use crate::program::{Program, Why, number};
use crate::report::{Cost, Line, skipped};
use crate::server::Server;

const EVENTS: u32 = 50_000;
/// How long after the end of a lease everything must be done.
const GRACE: Duration = Duration::from_secs(2);

pub(super) fn run(server: &mut Server, ours: &Program) {
    let bar = (ours::LEASE + GRACE).as_secs_f64();
    for (bench, how) in [
        ("queue/abandoned-in-handlers", How::InHandlers),
        ("queue/abandoned-at-full-speed", How::AtFullSpeed),
    ] {
        match killed(server, ours, how) {
            Ok((seconds, abandoned)) => {
                eprintln!("  {bench}: {abandoned} abandoned, done after {seconds:.2} s");
                Line {
                    bench,
                    ours: seconds,
                    reference: bar,
                    reference_is: "the most it may be: the lease and 2 s",
                    unit: "s from the kill to the last settle",
                    cost: Cost::default(),
                }
                .print();
            }
            Err(why) => skipped(bench, &why),
        }
    }
}

/// The work of a process when it is killed.
#[derive(Clone, Copy)]
enum How {
    /// Its handlers have begun and do not end.
    InHandlers,
    /// It claims and settles as fast as it can.
    AtFullSpeed,
}

/// Kills a process and gives how long another one took to finish everything, and how many events
/// were claimed by nobody who lived.
fn killed(server: &mut Server, ours: &Program, how: How) -> Result<(f64, i64), Why> {
    let url = server.new_database(ours.name)?;
    let count = EVENTS.to_string();
    ours.call(&url, &["prepare".as_ref()])?;
    ours.call(&url, &["publish".as_ref(), count.as_ref()])?;
    server.execute_in(&url, "ANALYZE")?;
    let mut victim = match how {
        How::InHandlers => ours.start(&url, &["hang".as_ref()])?,
        How::AtFullSpeed => ours.start(&url, &["drain".as_ref(), count.as_ref()])?,
    };
    victim.answer()?;
    if matches!(how, How::AtFullSpeed) {
        wait_for_log(server, &url)?;
    }
    victim.kill();
    let killed = since_1970();
    let claimed = "SELECT count(*) FROM event_queue WHERE status = 'PROCESSING'";
    let abandoned = server.number_in(&url, claimed)?;
    // It need not handle anything to be done: it ends when nothing is left.
    let rest = ours.call(&url, &["drain".as_ref(), "0".as_ref()])?;
    let logged = server.number_in(&url, "SELECT count(*) FROM event_log")?;
    if logged != i64::from(EVENTS) {
        return Err(format!("{logged} of {EVENTS} events are in the log"));
    }
    Ok((number(&rest, "ended_us")? / 1e6 - killed, abandoned))
}

/// Until a fifth of the events are in the log.
fn wait_for_log(server: &Server, url: &str) -> Result<(), Why> {
    let began = Instant::now();
    while server.number_in(url, "SELECT count(*) FROM event_log")? < i64::from(EVENTS / 5) {
        if began.elapsed() > Duration::from_secs(30) {
            return Err("nothing was handled for 30 s".to_owned());
        }
    }
    Ok(())
}

fn since_1970() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64()
}
