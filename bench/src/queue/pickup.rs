//! How long an event waits between its commit and its handler.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::measure::percentile;
use crate::program::{Program, Why, number};
use crate::report::{Cost, Line};
use crate::server::Server;

const RATE: u32 = 2_000;
const SECONDS: u32 = 20;
/// Of the first of them nothing is told: connections are made and code is compiled.
const WARM_UP: u32 = 2;

/// Milliseconds.
pub(super) struct Pickup {
    /// The program in words.
    pub(super) is: String,
    pub(super) p50: f64,
    pub(super) p99: f64,
}

pub(super) fn at_a_rate(
    server: &mut Server,
    program: &Program,
    scratch: &Path,
) -> Result<Pickup, Why> {
    let url = server.new_database(program.name)?;
    let prepared = program.call(&url, &["prepare".as_ref()])?;
    let file = |what: &str| scratch.join(format!("{}-{what}", program.name));
    let (committed, handled) = (file("committed"), file("handled"));
    let (count, rate, span) = (
        (RATE * SECONDS).to_string(),
        RATE.to_string(),
        SECONDS.to_string(),
    );
    let handling = program.start(
        &url,
        &["drain".as_ref(), count.as_ref(), handled.as_os_str()],
    )?;
    handling.answer()?;
    let publish = program.call(
        &url,
        &[
            "publish-at".as_ref(),
            rate.as_ref(),
            span.as_ref(),
            committed.as_os_str(),
        ],
    )?;
    handling.finish()?;
    let warm = number(&publish, "began_us")? + f64::from(WARM_UP) * 1e6;
    let handled = times(&handled)?;
    let mut waits = Vec::new();
    for (event, committed) in times(&committed)? {
        let begun = handled.get(&event);
        let begun = begun.ok_or_else(|| format!("event {event} was never handled"))?;
        // A handler may begin before its publisher has heard of the commit.
        if committed as f64 >= warm {
            let waited = begun.saturating_sub(committed);
            waits.push(u32::try_from(waited).unwrap_or(u32::MAX));
        }
    }
    let ms = |share| percentile(&mut waits.clone(), share) / 1_000.0;
    let pickup = Pickup {
        is: program.words(&prepared),
        p50: ms(0.5),
        p99: ms(0.99),
    };
    eprintln!(
        "  {}: picked up after {:.2} ms, 99 of 100 within {:.2} ms",
        program.name, pickup.p50, pickup.p99
    );
    Ok(pickup)
}

/// Prints both figures beside those of a reference.
pub(super) fn print(suffix: &str, ours: &Pickup, reference: (f64, f64), reference_is: &str) {
    for (what, ours, reference) in [
        ("p50", ours.p50, reference.0),
        ("p99", ours.p99, reference.1),
    ] {
        Line {
            bench: &format!("queue/pickup-{what}{suffix}"),
            ours,
            reference,
            reference_is,
            unit: "ms from commit to handler, at 2,000/s",
            cost: Cost::default(),
        }
        .print();
    }
}

/// Numbers and microseconds; of a number that is there twice, the first.
fn times(file: &Path) -> Result<HashMap<u32, u64>, Why> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut times = HashMap::new();
    for line in text.lines() {
        let parsed = line.split_once(' ').and_then(|(number, time)| {
            Some((number.parse::<u32>().ok()?, time.parse::<u64>().ok()?))
        });
        let (number, time) = parsed.ok_or_else(|| format!("{}: {line}", file.display()))?;
        let first = times.entry(number).or_insert(time);
        *first = time.min(*first);
    }
    Ok(times)
}
