//! Ours on SQLite, beside bare statements with the same durability.

use std::path::{Path, PathBuf};
use std::time::Instant;

use tidegate_store::sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use tidegate_store::sqlx::{
    self, ConnectOptions as _, Connection as _, Row as _, SqliteConnection,
};

use crate::program::{Program, Why, number, seconds};
use crate::report::{Cost, Line, skipped};

const EVENTS: u32 = 100_000;
/// Events per transaction of the bare statements, as ours has them.
const PUBLISHED: u32 = 1_000;
const HANDLED: u32 = 500;
/// Claimers at once, in so many processes.
const CLAIMERS: u32 = 50;
const PROCESSES: u32 = 2;
/// They finalize one by one, so fewer events will do.
const CLAIMED: u32 = 20_000;

pub(super) fn run(ours: &Program, scratch: &Path) {
    eprintln!("on SQLite");
    let measured = rates(ours, scratch).and_then(|ours| Ok((ours, bare(scratch)?)));
    match measured {
        Ok((ours, bare)) => {
            for (bench, ours, reference) in [
                ("queue/sqlite-publish", ours.published, bare.published),
                ("queue/sqlite-drain", ours.handled, bare.handled),
            ] {
                eprintln!("  {bench}: {ours:.0}/s beside {reference:.0}/s");
                Line {
                    bench,
                    ours,
                    reference,
                    reference_is: "bare statements, as many events per commit",
                    unit: "events/s",
                    cost: Cost::default(),
                }
                .print();
            }
        }
        Err(why) => skipped("queue/sqlite", &why),
    }
    match claimers(ours, scratch) {
        Ok((rate, busy)) => {
            eprintln!("  {CLAIMERS} claimers: {rate:.0}/s");
            Line {
                bench: "queue/sqlite-busy-with-50-claimers",
                ours: busy,
                reference: 0.0,
                reference_is: "the most it may be",
                unit: "BUSY errors",
                cost: Cost::default(),
            }
            .print();
        }
        Err(why) => skipped("queue/sqlite-busy-with-50-claimers", &why),
    }
}

/// Events per second.
struct Rates {
    published: f64,
    handled: f64,
}

fn rates(ours: &Program, scratch: &Path) -> Result<Rates, Why> {
    let (url, count) = (url(&new_file(scratch, "ours")?), EVENTS.to_string());
    ours.call(&url, &["prepare".as_ref()])?;
    let publish = ours.call(&url, &["publish".as_ref(), count.as_ref()])?;
    let drain = ours.call(&url, &["drain".as_ref(), count.as_ref()])?;
    Ok(Rates {
        published: f64::from(EVENTS) / seconds(&publish, &publish)?,
        handled: f64::from(EVENTS) / seconds(&drain, &drain)?,
    })
}

/// Events per second of all claimers together, and how often one was told that another is busy.
fn claimers(ours: &Program, scratch: &Path) -> Result<(f64, f64), Why> {
    let url = url(&new_file(scratch, "claimers")?);
    let (count, tasks) = (CLAIMED.to_string(), (CLAIMERS / PROCESSES).to_string());
    ours.call(&url, &["prepare".as_ref()])?;
    ours.call(&url, &["publish".as_ref(), count.as_ref()])?;
    let began = Instant::now();
    let running = (0..PROCESSES).map(|_| ours.start(&url, &["poll".as_ref(), tasks.as_ref()]));
    let running = running.collect::<Result<Vec<_>, Why>>()?;
    let (mut busy, mut handled) = (0.0, 0.0);
    for process in running {
        let answer = process.finish()?;
        busy += number(&answer, "busy")?;
        handled += number(&answer, "handled")?;
    }
    let rate = f64::from(CLAIMED) / began.elapsed().as_secs_f64();
    if (handled - f64::from(CLAIMED)).abs() > 0.5 {
        return Err(format!("{handled} of {CLAIMED} events were handled"));
    }
    Ok((rate, busy))
}

/// Rows appended, then read and noted in a log: the least that a queue with a log could do.
fn bare(scratch: &Path) -> Result<Rates, Why> {
    let file = new_file(scratch, "bare")?;
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let measured = runtime.block_on(async {
        let mut session = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .connect()
            .await?;
        let tables =
            "CREATE TABLE event (id INTEGER PRIMARY KEY, event_id TEXT, type TEXT, payload TEXT);
            CREATE TABLE log (id INTEGER PRIMARY KEY, attempts INTEGER, handlers INTEGER)";
        sqlx::raw_sql(tables).execute(&mut session).await?;
        let began = Instant::now();
        for first in (0..EVENTS).step_by(PUBLISHED as usize) {
            append(&mut session, first).await?;
        }
        let published = f64::from(EVENTS) / began.elapsed().as_secs_f64();
        let began = Instant::now();
        for first in (0..EVENTS).step_by(HANDLED as usize) {
            note(&mut session, first).await?;
        }
        let handled = f64::from(EVENTS) / began.elapsed().as_secs_f64();
        Ok(Rates { published, handled })
    });
    measured.map_err(|error: sqlx::Error| format!("SQLite: {error}"))
}

async fn append(session: &mut SqliteConnection, first: u32) -> Result<(), sqlx::Error> {
    let mut transaction = session.begin().await?;
    for number in first..first + PUBLISHED {
        sqlx::query("INSERT INTO event VALUES (?, ?, 'Measured', ?)")
            .bind(number)
            .bind(format!("0199f3b2-0000-7000-8000-{number:012}"))
            .bind(super::ours::payload(number))
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await
}

async fn note(session: &mut SqliteConnection, first: u32) -> Result<(), sqlx::Error> {
    let rows = sqlx::query("SELECT id, payload FROM event WHERE id >= ? ORDER BY id LIMIT ?")
        .bind(first)
        .bind(HANDLED)
        .fetch_all(&mut *session)
        .await?;
    let mut transaction = session.begin().await?;
    for row in rows {
        sqlx::query("INSERT INTO log VALUES (?, 1, 1)")
            .bind(row.try_get::<i64, _>(0)?)
            .execute(&mut *transaction)
            .await?;
    }
    transaction.commit().await
}

/// A file that is not there yet, in a directory of its own.
fn new_file(scratch: &Path, name: &str) -> Result<PathBuf, Why> {
    let directory = scratch.join(name);
    // Files of an earlier run that was stopped half-way.
    drop(std::fs::remove_dir_all(&directory));
    std::fs::create_dir_all(&directory)
        .map_err(|error| format!("{}: {error}", directory.display()))?;
    Ok(directory.join("queue.db"))
}

fn url(file: &Path) -> String {
    format!("sqlite://{}", file.display())
}
