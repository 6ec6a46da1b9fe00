//! The Event Log API, driven by the event client from another process.
//!
//! The API is this program, called again, with the routes of the real server. Every event that is counted was
//! answered as stored, so it would survive a power cut. `TIDEGATE_BENCH_EVENTS` makes a try shorter.

mod copy;
mod ingest;
mod posts;
mod queries;
mod serve;

use std::path::PathBuf;
use std::time::Duration;

use crate::program::Why;
use crate::report::{Cost, Line, skipped};
use crate::server::Server;
use serve::ApiProcess;

pub(crate) use serve::{CHILD, run_child};

/// Events in the tables when they are queried.
const EVENTS: u64 = 1_000_000;
/// Events of one correlation, of one trace, and with one word.
const HITS: u64 = 1_000;

pub(crate) fn run() {
    let given = std::env::var("TIDEGATE_BENCH_EVENTS").ok();
    let events = given.and_then(|text| text.parse().ok()).unwrap_or(EVENTS);
    // Ten parts are measured, and each of them has every group.
    let events = events.max(10 * HITS);
    if let Err(why) = on_sqlite(events) {
        skipped("api/sqlite", &why);
    }
    if let Err(why) = on_postgres(events) {
        skipped("api/postgres", &why);
    }
}

fn on_sqlite(events: u64) -> Result<(), Why> {
    eprintln!("on SQLite");
    let scratch = Scratch::new()?;
    let url = format!("sqlite://{}", scratch.0.join("events.db").display());
    let api = ApiProcess::start(&url)?;
    let rate = fill("sqlite", &api, events);
    line(
        "sqlite-ingest",
        (rate, 20_000.0),
        ("events/s, durable", "the least it may be"),
        api.cost(),
    );
    let file = ingest::file_rate(&scratch.0.join("plain"), events.min(200_000));
    line(
        "sqlite-ingest-beside-a-file",
        (rate, file),
        (
            "events/s, durable",
            "the same events in the same batches: write + fdatasync",
        ),
        api.cost(),
    );
    queries::run("sqlite", &api, events)?;
    posts::run("sqlite", &api);
    Ok(())
}

fn on_postgres(events: u64) -> Result<(), Why> {
    eprintln!("on PostgreSQL");
    let mut server = Server::connect()?;
    let scratch = Scratch::new()?;
    let url = server.new_database("api")?;
    let api = ApiProcess::start(&url)?;
    server.execute("CHECKPOINT")?;
    let rate = fill("postgres", &api, events);
    server.execute_in(&url, "ANALYZE")?;
    let beside = server.new_database("api_copy")?;
    let rows = scratch.0.join("rows");
    copy::write_rows(&url, &rows)?;
    server.execute("CHECKPOINT")?;
    let copied = copy::rate(&beside, &rows)?;
    server.drop_database("api_copy")?;
    line(
        "postgres-ingest",
        (rate, copied),
        (
            "events/s, durable",
            "COPY of the same rows into the same table with the same indexes",
        ),
        api.cost(),
    );
    queries::run("postgres", &api, events)?;
    posts::run("postgres", &api);
    drop(api);
    server.drop_database("api")
}

/// Stores all events in ten parts, and tells how much memory the API had after two of them and after all.
/// Gives the events per second over all.
fn fill(database: &str, api: &ApiProcess, events: u64) -> f64 {
    let part = events / 10;
    let (mut took, mut warm, mut before) = (Duration::ZERO, 0.0, api.cost());
    for number in 1..=10 {
        let end = if number == 10 { events } else { number * part };
        let one = ingest::send(api, (number - 1) * part..end, events);
        took += one;
        let cost = api.cost();
        if number == 2 {
            warm = cost.rss_mb;
        }
        eprintln!(
            "  {end} events: {:.0}/s, {:.1} s of processor time, {:.1} MiB",
            part as f64 / one.as_secs_f64(),
            cost.cpu_s - before.cpu_s,
            cost.rss_mb
        );
        before = cost;
    }
    line(
        &format!("{database}-memory"),
        (before.rss_mb, warm),
        ("MiB of the API", "the same after a fifth of the events"),
        before,
    );
    events as f64 / took.as_secs_f64()
}

/// Prints ours beside a reference: the figures, the unit, and the reference in words.
fn line(name: &str, (ours, reference): (f64, f64), (unit, reference_is): (&str, &str), cost: Cost) {
    eprintln!("  {name}: {ours:.2} beside {reference:.2}");
    Line {
        bench: &format!("api/{name}"),
        ours,
        reference,
        reference_is,
        unit,
        cost,
    }
    .print();
}

/// A directory on the disk that holds the build, which is a real one. It is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, Why> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let dir = program.with_file_name("bench-api");
        // Files of an earlier run that was stopped half-way.
        drop(std::fs::remove_dir_all(&dir));
        std::fs::create_dir_all(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
