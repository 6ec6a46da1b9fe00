//! Handling what was published before, and what is being published.

use std::time::Duration;

use crate::program::{Program, Why, number, seconds};
use crate::report::Cost;
use crate::server::Server;

/// How long the server may take to note what a session that has ended used.
const SETTLE: Duration = Duration::from_millis(300);

/// The result of a program with a backlog.
#[derive(Debug, Clone)]
pub(super) struct Drain {
    /// The program in words.
    pub(super) is: String,
    pub(super) published_per_second: f64,
    pub(super) handled_per_second: f64,
    /// Bytes of write-ahead log per event.
    pub(super) published_wal: f64,
    pub(super) handled_wal: f64,
    /// Of program and server while the backlog was handled.
    pub(super) cost: Cost,
}

/// Publishes `events`, then handles them, in a new database.
///
/// `while_it_runs` is called with the address once the tables are there; what it gives is kept
/// until the end.
pub(super) fn backlog<T>(
    server: &mut Server,
    program: &Program,
    events: u32,
    while_it_runs: impl FnOnce(&Server, &str) -> Result<T, Why>,
) -> Result<(Drain, String, T), Why> {
    let url = server.new_database(program.name)?;
    let prepared = program.call(&url, &["prepare".as_ref()])?;
    let kept = while_it_runs(server, &url)?;
    let count = events.to_string();
    // A page is logged whole at its first change after a checkpoint: everybody begins behind one.
    server.execute("CHECKPOINT")?;
    let wal = server.wal()?;
    let publish = program.call(&url, &["publish".as_ref(), count.as_ref()])?;
    let published_wal = server.wal()? - wal;
    // Without it a plan might be made for tables that were empty a moment ago.
    server.execute_in(&url, "ANALYZE")?;
    std::thread::sleep(SETTLE);
    let (wal, cpu) = (server.wal()?, server.cpu_seconds());
    let drain = program.call(&url, &["drain".as_ref(), count.as_ref()])?;
    std::thread::sleep(SETTLE);
    let (handled_wal, cpu) = (server.wal()? - wal, server.cpu_seconds() - cpu);
    let events = f64::from(events);
    let drain = Drain {
        is: program.words(&prepared),
        published_per_second: events / seconds(&publish, &publish)?,
        handled_per_second: events / seconds(&drain, &drain)?,
        published_wal: published_wal / events,
        handled_wal: handled_wal / events,
        cost: Cost {
            cpu_s: cpu + number(&drain, "cpu_s")?,
            rss_mb: number(&drain, "rss_mb")?,
        },
    };
    eprintln!(
        "  {}: published {:.0}/s, {:.0} B; handled {:.0}/s, {:.0} B, {:.1} µs",
        program.name,
        drain.published_per_second,
        drain.published_wal,
        drain.handled_per_second,
        drain.handled_wal,
        drain.cost.cpu_s * 1e6 / events,
    );
    Ok((drain, url, kept))
}

/// Publishes and handles `events` at once, each in a process of its own. Gives the events per
/// second from the first publish to the last settle, and the program in words.
pub(super) fn at_once(
    server: &mut Server,
    program: &Program,
    events: u32,
) -> Result<(f64, String), Why> {
    let url = server.new_database(program.name)?;
    let prepared = program.call(&url, &["prepare".as_ref()])?;
    let count = events.to_string();
    let handling = program.start(&url, &["drain".as_ref(), count.as_ref()])?;
    handling.answer()?;
    let publish = program.call(&url, &["publish".as_ref(), count.as_ref()])?;
    let drain = handling.finish()?;
    let rate = f64::from(events) / seconds(&publish, &drain)?;
    eprintln!("  {}: published and handled {rate:.0}/s", program.name);
    Ok((rate, program.words(&prepared)))
}
